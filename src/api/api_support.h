// What the functions of the C API share: the boundary that nothing throws across, options that grow, owned outputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "card/card.h"
#include "qkvshare/llama.h"
#include "qkvshare/qkvshare.h"
#include "qkvshare/status.h"
#include "runtime/card_context.h"
#include "runtime/inject.h"
#include "runtime/model.h"
#include "runtime/sender.h"
#include "runtime/session.h"

// The handles. Shared where a handle may outlive the one that it was made with.
struct qkv_model {
  std::shared_ptr<const qkvshare::Model> model;
  std::string name, architecture, fingerprint;
};
struct qkv_session {
  std::shared_ptr<const qkvshare::Model> model;
  std::unique_ptr<qkvshare::Session> session;  // after model: it goes first
  size_t restored = 0;                         // first tokens that were restored from cards
  bool keeps_queries = false;                  // as the last prefill wanted it
  std::string inject_reason;
};
struct qkv_attention {
  std::shared_ptr<const qkvshare::Model> model;
  std::unique_ptr<qkvshare::CardContext> context;  // after model: it goes first
  std::set<int> restored;                          // sequences that cards were restored into
  std::string inject_reason;
};
struct qkv_card {
  std::shared_ptr<const qkvshare::Card> card;
  std::string content_id, model_fingerprint, info_json;
};

namespace qkvshare::api {

// Fills `error`, if there is one, and returns the code.
qkv_status Report(const Status& status, qkv_error* error) noexcept;

// Runs a function of the C API: what it throws becomes a status.
template <typename Function>
qkv_status Call(qkv_error* error, const Function& function) noexcept {
  try {
    return Report(function(), error);
  } catch (const std::bad_alloc&) {
    return Report({StatusCode::kOutOfRange, "out of memory"}, error);
  } catch (const std::exception& e) {
    return Report({StatusCode::kInternal, e.what()}, error);
  } catch (...) {
    return Report({StatusCode::kInternal, "an exception of unknown type"}, error);
  }
}

// kInvalidArgument naming the first of the arguments that is NULL.
struct Argument {
  template <typename T>
  Argument(const char* argument, T* value) : name(argument), is_null(value == nullptr) {}
  const char* name;
  bool is_null;
};
Status CheckNotNull(std::initializer_list<Argument> arguments);

// kInvalidArgument, with the offset, where the text is not UTF-8.
Result<std::string> Utf8(const char* text, size_t bytes);

// The options that a caller gave, over the defaults: a caller of an earlier version gives fewer bytes.
template <typename Options>
Status ReadOptions(const Options* given, Options* options) {
  if (given == nullptr) return {};
  if (given->struct_size < sizeof(size_t)) {
    return {StatusCode::kInvalidArgument, "the options were not initialised: call their _default function first"};
  }
  if (given->struct_size > sizeof(Options)) {
    return {StatusCode::kUnsupported, "the options are of a later version of QKVShare; install that one"};
  }
  std::memcpy(options, given, given->struct_size);
  return {};
}

// Writes a struct of this version into the caller's, which may be shorter, or longer (the rest becomes zero).
template <typename Struct>
void CopyOut(const Struct& value, void* out, size_t size) {
  std::memset(out, 0, size);
  std::memcpy(out, &value, std::min(size, sizeof value));
}

// Fills options with `defaults`; struct_size is what the caller has.
template <typename Options>
qkv_status SetDefaults(Options defaults, Options* options, size_t struct_size) noexcept {
  if (options == nullptr || struct_size < sizeof(size_t)) return QKV_INVALID_ARGUMENT;
  defaults.struct_size = struct_size;
  CopyOut(defaults, options, struct_size);
  return QKV_OK;
}

// A copy that the caller frees with qkv_free, followed by a zero element.
template <typename T>
class Owned {
 public:
  explicit Owned(std::span<const T> values) : size_(values.size()), data_(Allocate(values.size() + 1)) {
    std::copy(values.begin(), values.end(), data_.get());
    data_.get()[size_] = T{};
  }
  void Give(T** data, size_t* size) {
    *data = data_.release();
    *size = size_;
  }

 private:
  struct Free {
    void operator()(T* data) const { qkv_free(data); }
  };
  static T* Allocate(size_t count);
  size_t size_;
  std::unique_ptr<T, Free> data_;
};

// The handle of a loaded model; model_api.cc.
Status GiveModel(Result<std::unique_ptr<Model>> loaded, qkv_model** model);

// Packs rows of a context; pack_api.cc.
Result<PackedCard> Pack(const PackSource& source, bool restored, const qkv_pack_options* options);

Result<InjectMode> InjectModeOf(qkv_inject mode);

// What came of an injection, if the caller wants to know. reason: the handle's copy.
void GiveInjection(const Injection& done, size_t tokens, std::string* reason, qkv_injection* injection, size_t size);

std::vector<ChatMessage> Messages(const qkv_message* messages, size_t count);
Status CheckMessages(const qkv_message* messages, size_t count);

}  // namespace qkvshare::api
