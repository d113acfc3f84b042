// The C++ face of qkvshare.h, which says what each call does: handles that free themselves, Result instead of codes.
// Header-only and thin; needs C++20. Nothing here throws but what the standard library does where memory runs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "qkvshare/status.h"

namespace qkv {

using qkvshare::Result;
using qkvshare::Status;
using qkvshare::StatusCode;

// Returns false to cancel.
using Progress = std::function<bool(size_t done, size_t total)>;

struct Message {
  std::string role;
  std::string content;
};

// Options are those of the C API, filled with their defaults; callbacks are functions here.
struct ModelOptions : qkv_model_options {
  ModelOptions() : qkv_model_options() { qkv_model_options_default(this, sizeof(qkv_model_options)); }
  Progress on_progress;
};
struct SessionOptions : qkv_session_options {
  SessionOptions() : qkv_session_options() { qkv_session_options_default(this, sizeof(qkv_session_options)); }
};
struct PrefillOptions : qkv_prefill_options {
  PrefillOptions() : qkv_prefill_options() { qkv_prefill_options_default(this, sizeof(qkv_prefill_options)); }
  Progress on_progress;
};
struct GenerateOptions : qkv_generate_options {
  GenerateOptions() : qkv_generate_options() { qkv_generate_options_default(this, sizeof(qkv_generate_options)); }
  std::function<bool(std::string_view)> on_piece;  // returns false to stop
};
class Card;
// As qkv_reader.
struct Reader {
  std::string agent;
  uint32_t distance = 1;
  std::string role = {};  // empty: all
};
struct PackOptions : qkv_pack_options {
  PackOptions() : qkv_pack_options() { qkv_pack_options_default(this, sizeof(qkv_pack_options)); }
  std::vector<Message> conversation;        // that the tokens are of; may be empty
  std::vector<Reader> receivers;            // for `readers`; may be empty
  std::vector<const Card*> receiver_cards;  // for `anchor_cards`; may be empty
};

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;
  qkv_stop stop = QKV_STOP_LENGTH;
  int32_t end_token = -1;
};

namespace detail {

struct Delete {
  void operator()(qkv_model* model) const { qkv_model_free(model); }
  void operator()(qkv_session* session) const { qkv_session_free(session); }
  void operator()(qkv_card* card) const { qkv_card_free(card); }
  void operator()(void* memory) const { qkv_free(memory); }
};
template <typename T>
using Handle = std::unique_ptr<T, Delete>;

// Calls a function of the C API with an error to fill in.
template <typename Function>
Status Call(const Function& function) {
  qkv_error error;
  const qkv_status status = function(&error);
  return status == QKV_OK ? Status() : Status(static_cast<StatusCode>(status), error.message);
}

// Calls one that gives an array, and copies that into a container.
template <typename Container, typename Function>
Result<Container> CallForArray(const Function& function) {
  using Value = typename Container::value_type;
  Value* data = nullptr;
  size_t count = 0;
  QKV_RETURN_IF_ERROR(Call([&](qkv_error* error) { return function(&data, &count, error); }));
  const std::unique_ptr<Value, Delete> owned(data);
  return Container(data, data + count);
}

inline std::vector<qkv_message> Messages(const std::vector<Message>& messages) {
  std::vector<qkv_message> list;
  list.reserve(messages.size());
  for (const Message& message : messages) list.push_back({message.role.c_str(), message.content.c_str()});
  return list;
}

// Never NULL, not even for an empty view.
inline const char* Data(std::string_view text) { return text.data() == nullptr ? "" : text.data(); }
template <typename T>
const T* Data(std::span<const T> values) {
  static const T empty{};
  return values.data() == nullptr ? &empty : values.data();
}

inline bool CallProgress(void* data, size_t done, size_t total) {
  return (*static_cast<const Progress*>(data))(done, total);
}

// The options with their callback, if there is one, in place.
template <typename Options>
Options WithProgress(const Options& options) {
  Options bound = options;
  if (options.on_progress) {
    bound.progress = CallProgress;
    bound.progress_data = const_cast<Progress*>(&options.on_progress);
  }
  return bound;
}

}  // namespace detail

class Model {
 public:
  static Result<Model> Load(const std::string& path, const ModelOptions& options = {}) {
    const ModelOptions bound = detail::WithProgress(options);
    qkv_model* model = nullptr;
    QKV_RETURN_IF_ERROR(
        detail::Call([&](qkv_error* error) { return qkv_model_load(path.c_str(), &bound, &model, error); }));
    return Model(model);
  }

  // Its strings live as long as the model.
  qkv_model_info info() const {
    qkv_model_info info{};
    qkv_model_get_info(get(), &info, sizeof info, nullptr);
    return info;
  }
  Result<std::vector<int32_t>> Tokenize(std::string_view text, bool add_special) const {
    return detail::CallForArray<std::vector<int32_t>>([&](int32_t** tokens, size_t* count, qkv_error* error) {
      return qkv_tokenize(get(), detail::Data(text), text.size(), add_special, tokens, count, error);
    });
  }
  Result<std::string> Detokenize(std::span<const int32_t> tokens) const {
    return detail::CallForArray<std::string>([&](char** text, size_t* bytes, qkv_error* error) {
      return qkv_detokenize(get(), detail::Data(tokens), tokens.size(), text, bytes, error);
    });
  }
  Result<std::string> ChatTemplate(const std::vector<Message>& messages, bool add_generation_prompt) const {
    const std::vector<qkv_message> list = detail::Messages(messages);
    return detail::CallForArray<std::string>([&](char** text, size_t* bytes, qkv_error* error) {
      return qkv_chat_template(get(), list.data(), list.size(), add_generation_prompt, text, bytes, error);
    });
  }
  Result<std::string> ChatNextTurn(std::string_view user, std::string_view open_turn = "") const {
    return detail::CallForArray<std::string>([&](char** text, size_t* bytes, qkv_error* error) {
      return qkv_chat_next_turn(get(), detail::Data(user), user.size(), detail::Data(open_turn), open_turn.size(), text,
                                bytes, error);
    });
  }
  // Takes the handle.
  explicit Model(qkv_model* model) : handle_(model) {}
  const qkv_model* get() const { return handle_.get(); }

 private:
  detail::Handle<qkv_model> handle_;
};

class Card {
 public:
  static Result<Card> Open(const std::string& path) {
    return Make([&](qkv_card** card, qkv_error* error) { return qkv_card_open(path.c_str(), card, error); });
  }
  static Result<Card> FromBytes(std::span<const uint8_t> bytes) {
    return Make([&](qkv_card** card, qkv_error* error) {
      return qkv_card_from_bytes(detail::Data(bytes), bytes.size(), card, error);
    });
  }

  Status Verify() const {
    return detail::Call([&](qkv_error* error) { return qkv_card_verify(get(), error); });
  }
  // Its strings live as long as the card, and so do the spans below.
  qkv_card_info info() const {
    qkv_card_info info{};
    qkv_card_get_info(get(), &info, sizeof info, nullptr);
    return info;
  }
  std::span<const int32_t> token_ids() const { return Ids(qkv_card_get_token_ids); }
  std::span<const int32_t> positions() const { return Ids(qkv_card_get_positions); }
  Result<qkv_layer_shape> Shape(size_t layer) const {
    qkv_layer_shape shape{};
    QKV_RETURN_IF_ERROR(
        detail::Call([&](qkv_error* error) { return qkv_card_get_layer_shape(get(), layer, &shape, error); }));
    return shape;
  }
  // [tokens].
  Result<std::vector<uint8_t>> TokenBits(size_t layer, qkv_side side) const {
    std::vector<uint8_t> bits(info().tokens);
    QKV_RETURN_IF_ERROR(detail::Call([&](qkv_error* error) {
      return qkv_card_get_token_bits(get(), layer, side, bits.data(), bits.size(), error);
    }));
    return bits;
  }
  // rows: [tokens, kv_heads, dim], FP16 bits or floats.
  Status Unpack(size_t layer, qkv_side side, size_t tokens, std::span<uint16_t> rows) const {
    return UnpackTo(layer, side, tokens, QKV_F16, rows.data(), rows.size_bytes());
  }
  Status Unpack(size_t layer, qkv_side side, size_t tokens, std::span<float> rows) const {
    return UnpackTo(layer, side, tokens, QKV_F32, rows.data(), rows.size_bytes());
  }
  const qkv_card* get() const { return handle_.get(); }

 private:
  explicit Card(qkv_card* card) : handle_(card) {}
  template <typename Function>
  static Result<Card> Make(const Function& function) {
    qkv_card* card = nullptr;
    QKV_RETURN_IF_ERROR(detail::Call([&](qkv_error* error) { return function(&card, error); }));
    return Card(card);
  }
  template <typename Function>
  std::span<const int32_t> Ids(const Function& function) const {
    const int32_t* ids = nullptr;
    size_t count = 0;
    function(get(), &ids, &count, nullptr);
    return {ids, count};
  }
  Status UnpackTo(size_t layer, qkv_side side, size_t tokens, qkv_dtype dtype, void* rows, size_t bytes) const {
    return detail::Call(
        [&](qkv_error* error) { return qkv_card_unpack(get(), layer, side, tokens, dtype, rows, bytes, error); });
  }
  detail::Handle<qkv_card> handle_;
};

// As qkv_injection.
struct Injection {
  qkv_inject mode = QKV_INJECT_RESTORE;
  size_t tokens = 0;
  std::string reason;
};

namespace detail {

// Options whose arrays are in place. The strings stay those of `options`.
class BoundPackOptions {
 public:
  explicit BoundPackOptions(const PackOptions& options)
      : bound_(static_cast<const qkv_pack_options&>(options)), messages_(Messages(options.conversation)) {
    for (const Reader& reader : options.receivers) {
      readers_.push_back({reader.agent.c_str(), reader.distance, reader.role.empty() ? nullptr : reader.role.c_str()});
    }
    for (const Card* card : options.receiver_cards) cards_.push_back(card == nullptr ? nullptr : card->get());
    Put(messages_, &bound_.messages, &bound_.message_count);
    Put(readers_, &bound_.readers, &bound_.reader_count);
    Put(cards_, &bound_.anchor_cards, &bound_.anchor_card_count);
  }
  ~BoundPackOptions() = default;
  BoundPackOptions(const BoundPackOptions&) = delete;
  BoundPackOptions& operator=(const BoundPackOptions&) = delete;
  const qkv_pack_options* get() const { return &bound_; }

 private:
  // Where there is nothing, what the caller set in the options themselves stays.
  template <typename T>
  static void Put(const std::vector<T>& values, const T** data, size_t* count) {
    if (values.empty()) return;
    *data = values.data();
    *count = values.size();
  }
  qkv_pack_options bound_;
  std::vector<qkv_message> messages_;
  std::vector<qkv_reader> readers_;
  std::vector<const qkv_card*> cards_;
};

// Calls one that puts cards somewhere.
template <typename Function>
Result<Injection> CallForInjection(const Function& function) {
  qkv_injection done{};
  QKV_RETURN_IF_ERROR(Call([&](qkv_error* error) { return function(&done, sizeof done, error); }));
  return Injection{done.mode, done.tokens, done.reason};
}

}  // namespace detail

class Session {
 public:
  static Result<Session> Create(const Model& model, const SessionOptions& options = {}) {
    qkv_session* session = nullptr;
    QKV_RETURN_IF_ERROR(
        detail::Call([&](qkv_error* error) { return qkv_session_create(model.get(), &options, &session, error); }));
    return Session(session);
  }

  qkv_session_info info() const {
    qkv_session_info info{};
    qkv_session_get_info(get(), &info, sizeof info, nullptr);
    return info;
  }
  Result<std::vector<int32_t>> Tokens() const {
    return detail::CallForArray<std::vector<int32_t>>([&](int32_t** tokens, size_t* count, qkv_error* error) {
      return qkv_session_get_tokens(get(), tokens, count, error);
    });
  }
  Status Prefill(std::span<const int32_t> tokens, const PrefillOptions& options = {}) {
    const PrefillOptions bound = detail::WithProgress(options);
    return detail::Call([&](qkv_error* error) {
      return qkv_session_prefill(get(), detail::Data(tokens), tokens.size(), &bound, error);
    });
  }
  Status PrefillText(std::string_view text, const PrefillOptions& options = {}) {
    const PrefillOptions bound = detail::WithProgress(options);
    return detail::Call([&](qkv_error* error) {
      return qkv_session_prefill_text(get(), detail::Data(text), text.size(), &bound, error);
    });
  }
  Status Truncate(size_t tokens) {
    return detail::Call([&](qkv_error* error) { return qkv_session_truncate(get(), tokens, error); });
  }
  void Cancel() { qkv_session_cancel(get()); }

  Result<Generation> Generate(const GenerateOptions& options = {}) {
    GenerateOptions bound = options;
    if (options.on_piece) {
      bound.on_text = [](void* data, const char* text, size_t bytes) {
        return (*static_cast<const std::function<bool(std::string_view)>*>(data))({text, bytes});
      };
      bound.text_data = const_cast<std::function<bool(std::string_view)>*>(&options.on_piece);
    }
    qkv_generation done{};
    QKV_RETURN_IF_ERROR(
        detail::Call([&](qkv_error* error) { return qkv_session_generate(get(), &bound, &done, sizeof done, error); }));
    const std::unique_ptr<char, detail::Delete> text(done.text);
    const std::unique_ptr<int32_t, detail::Delete> tokens(done.tokens);
    return Generation{
        {done.text, done.text_bytes}, {done.tokens, done.tokens + done.token_count}, done.stop, done.end_token};
  }

  Status PackFile(const std::string& path, const PackOptions& options = {}) const {
    const detail::BoundPackOptions bound(options);
    return detail::Call(
        [&](qkv_error* error) { return qkv_session_pack_file(get(), bound.get(), path.c_str(), error); });
  }
  Result<std::vector<uint8_t>> PackMemory(const PackOptions& options = {}) const {
    const detail::BoundPackOptions bound(options);
    return detail::CallForArray<std::vector<uint8_t>>([&](uint8_t** card, size_t* bytes, qkv_error* error) {
      return qkv_session_pack_memory(get(), bound.get(), card, bytes, error);
    });
  }
  // tokens: the card's first ones; 0: all.
  Status Restore(const Card& card, size_t tokens = 0) {
    return detail::Call([&](qkv_error* error) { return qkv_session_restore(get(), card.get(), tokens, error); });
  }
  // tokens: the first ones of all cards; 0: all.
  Result<Injection> Inject(std::span<const Card* const> cards, qkv_inject mode = QKV_INJECT_AUTO, size_t tokens = 0) {
    std::vector<const qkv_card*> list;
    for (const Card* card : cards) list.push_back(card == nullptr ? nullptr : card->get());
    list.push_back(nullptr);  // so that there is an array
    return detail::CallForInjection([&](qkv_injection* done, size_t size, qkv_error* error) {
      return qkv_session_inject(get(), list.data(), list.size() - 1, tokens, mode, done, size, error);
    });
  }
  Result<Injection> Inject(const Card& card, qkv_inject mode = QKV_INJECT_AUTO) {
    const Card* const cards[] = {&card};
    return Inject(cards, mode);
  }
  qkv_session* get() const { return handle_.get(); }

 private:
  explicit Session(qkv_session* session) : handle_(session) {}
  detail::Handle<qkv_session> handle_;
};

}  // namespace qkv
