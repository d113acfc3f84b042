#include "runtime/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "llama.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

int DefaultThreads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// llama.cpp's sequence ids. In layers with a sliding window its states leave out tokens that have left the window, so
// SaveState lends them to a scratch sequence, window by window. And it gives such tokens' cells to whoever needs one,
// unless they belong to two sequences: each of several sequences has a keeper that holds on to them.
struct SequenceIds {
  int sequences;
  bool windowed;

  int scratch() const { return sequences; }
  bool keeps() const { return windowed && sequences > 1; }
  int keeper(int sequence) const { return sequences + 1 + sequence; }
  int count() const { return sequences + (windowed ? 1 : 0) + (keeps() ? sequences : 0); }
};

SequenceIds IdsOf(const Model& model, int sequences) { return {sequences, llama_model_n_swa(model.handle()) > 0}; }

llama_context_params ParamsOf(const Model& model, const SessionOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context > 0 ? options.context : model.training_context();
  params.n_ubatch = std::max(options.batch, 1u);
  params.n_threads = params.n_threads_batch = options.threads > 0 ? options.threads : DefaultThreads();
  params.n_seq_max = static_cast<uint32_t>(IdsOf(model, options.sequences).count());
  params.n_batch = std::max(params.n_ubatch, params.n_seq_max);  // llama.cpp aborts on less
  params.rope_freq_base = options.rope_freq_base;
  params.rope_freq_scale = options.rope_freq_scale;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = static_cast<ggml_type>(GgmlTypeOf(options.cache_type_k));
  params.type_v = static_cast<ggml_type>(GgmlTypeOf(options.cache_type_v));
  params.kv_unified = true;
  params.swa_full = true;
  return params;
}

// Refused here rather than after a long prefill.
Status CheckShapes(const std::vector<GraphProbe::Layer>& layers) {
  for (const GraphProbe::Layer& layer : layers) {
    for (const size_t dim : {layer.shape.dim(Side::kKeys), layer.shape.dim(Side::kValues)}) {
      if (dim % 8 == 0 && dim <= kMaxHeadDim) continue;
      return {StatusCode::kUnsupported,
              fmt::format("the model's head size is {}; cards take multiples of 8 up to {}", dim, kMaxHeadDim)};
    }
  }
  return {};
}

// llama.cpp aborts on some of what this refuses.
Status CheckBlocks(const Model& model, const SessionOptions& options) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const CacheType type = side == Side::kKeys ? options.cache_type_k : options.cache_type_v;
    const uint32_t dim = model.head_size(side);
    if (dim % BlockValues(type) == 0) continue;
    return {StatusCode::kUnsupported, fmt::format("cache type {} takes heads of a multiple of {} values, but the "
                                                  "model's have {}; use f16 or bf16",
                                                  CacheTypeName(type), BlockValues(type), dim)};
  }
  return {};
}

// A batch of one sequence, freed on every way out.
class Batch {
 public:
  Batch(size_t tokens, int sequence)
      : batch_(llama_batch_init(static_cast<int32_t>(tokens), 0, 1)), sequence_(sequence) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(int32_t token, size_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence_;
    batch_.logits[i] = static_cast<int8_t>(logits);
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
  llama_seq_id sequence_;
};

}  // namespace

Status CheckSessionOptions(const SessionOptions& options) {
  if (!options.flash_attention && IsQuantized(options.cache_type_v)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a V cache of type {} needs flash attention; use -fa on, or -ctv f16 or bf16",
                        CacheTypeName(options.cache_type_v))};
  }
  if (options.sequences < 1 || options.sequences > kMaxSequences) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} sequences: choose from 1 to {}", options.sequences, kMaxSequences)};
  }
  return {};
}

Session::Session(const Model& model, const SessionOptions& options)
    : model_(model), options_(options), tokens_(static_cast<size_t>(options.sequences)) {}

Result<std::unique_ptr<Session>> Session::Create(const Model& model, const SessionOptions& options) {
  QKV_RETURN_IF_ERROR(CheckSessionOptions(options));
  QKV_RETURN_IF_ERROR(CheckBlocks(model, options));
  std::unique_ptr<Session> session(new Session(model, options));
  TakeLastLlamaError();  // of earlier calls
  try {
    QKV_RETURN_IF_ERROR(session->MakeContext());
    QKV_RETURN_IF_ERROR(session->Probe());
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, fmt::format("llama.cpp failed to make a context: {}", e.what()));
  }
  return session;
}

Session::~Session() {
  if (context_ != nullptr) llama_free(context_);
}

Status Session::MakeContext() {
  llama_context_params params = ParamsOf(model_, options_);
  params.cb_eval = GraphProbe::Callback;
  params.cb_eval_user_data = &probe_;
  params.abort_callback = [](void* data) {
    return static_cast<Session*>(data)->cancelled_.load(std::memory_order_relaxed);
  };
  params.abort_callback_data = this;
  context_ = llama_init_from_model(model_.handle(), params);
  if (context_ == nullptr) {
    return {StatusCode::kOutOfRange, fmt::format("llama.cpp cannot make a context of {} tokens{}; a smaller -c takes "
                                                 "less memory",
                                                 params.n_ctx, LlamaErrorSuffix())};
  }
  threads_ = params.n_threads;
  // llama.cpp rounds the context up, but limits a decode call by what was asked for.
  context_tokens_ = std::min(params.n_ctx, llama_n_ctx(context_));
  batch_ = std::min(llama_n_batch(context_), llama_n_ubatch(context_));
  return {};
}

Status Session::Probe() {
  QKV_ASSIGN_OR_RETURN(const GraphProbe::Description description, DescribeNext());
  QKV_RETURN_IF_ERROR(CheckShapes(description.layers));
  QKV_ASSIGN_OR_RETURN(layout_, LearnLayout(description.layers));
  if (layout_.window() > 0) QKV_RETURN_IF_ERROR(FindWindows(&layout_));
  identity_ = {model_.fingerprint(), description.rope, description.first_rope};
  Clear();
  return {};
}

// Decodes one token, and tells what its graph did.
Result<GraphProbe::Description> Session::DescribeNext() {
  const llama_token bos = llama_vocab_bos(model_.vocab());
  const int32_t token = bos >= 0 ? bos : 0;
  probe_.StartDescribing();
  QKV_RETURN_IF_ERROR(Decode({&token, 1}, /*all_logits=*/false, 0));
  return probe_.FinishDescribing();
}

// Of the one token that there is. Which layers have a window is only guessed: layers that share a mask are alike, and
// the state tells whether a guess has the right layers in each part. FindWindows knows.
Result<StateLayout> Session::LearnLayout(const std::vector<GraphProbe::Layer>& layers) const {
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, SaveRaw(0, 0));
  const auto window = static_cast<uint32_t>(std::max(llama_model_n_swa(model_.handle()), 0));
  std::vector<LayerShape> shapes;
  std::vector<LayerFormat> formats;
  for (const GraphProbe::Layer& layer : layers) {
    shapes.push_back(layer.shape);
    formats.push_back({{options_.cache_type_k, layer.key_rotation}, {options_.cache_type_v, layer.value_rotation}});
  }
  const auto learn = [&](const auto& has_window) {
    for (size_t i = 0; i < layers.size(); ++i) formats[i].window = has_window(layers[i]) ? window : 0;
    return LearnStateLayout(state, shapes, formats, !options_.flash_attention);
  };
  Result<StateLayout> layout = learn([](const auto&) { return false; });
  if (window == 0) return layout;
  const uint64_t first = layers.front().mask;
  if (!layout) layout = learn([&](const auto& layer) { return layer.mask == first; });
  if (!layout) layout = learn([&](const auto& layer) { return layer.mask != first; });
  if (!layout) layout = learn([](const auto&) { return true; });
  return layout;
}

// Looks at what a token sees that is just one window after the first: with a sliding window all but that one.
Status Session::FindWindows(StateLayout* layout) {
  const uint32_t window = layout->window();
  std::vector<int32_t> positions = {0, 1, static_cast<int32_t>(window) - 1};
  if (window < 3) positions.resize(window);
  const auto no_rows = [](size_t, Side, Half*) { return Status(); };
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, BuildState(*layout, positions, 1, no_rows));
  Clear();
  const size_t read = llama_state_seq_set_data(context_, state.data(), state.size(), 0);
  if (read != state.size()) return {StatusCode::kInternal, "llama.cpp refused a state" + LlamaErrorSuffix()};
  tokens_[0].resize(window);
  QKV_ASSIGN_OR_RETURN(const GraphProbe::Description description, DescribeNext());
  const uint32_t all = (1u << (positions.size() + 1)) - 1;
  for (size_t layer = 0; layer < layout->formats.size(); ++layer) {
    const uint32_t visible = description.layers[layer].visible_cells & all;
    if (visible != all && visible != (all & ~1u)) {
      return {StatusCode::kUnsupported,
              fmt::format("layer {} attends to something else than a sliding window of {} tokens", layer, window)};
    }
    layout->formats[layer].window = visible == all ? 0 : window;
  }
  // With the layers in the parts where they are.
  Clear();
  QKV_RETURN_IF_ERROR(DescribeNext().status());
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> one_token, SaveRaw(0, 0));
  QKV_ASSIGN_OR_RETURN(*layout, LearnStateLayout(one_token, std::vector<LayerShape>(layout->shapes),
                                                 std::vector<LayerFormat>(layout->formats), layout->transposed_values));
  return {};
}

Status Session::Decode(std::span<const int32_t> tokens, bool all_logits, int sequence) {
  std::vector<int32_t>& held = tokens_[static_cast<size_t>(sequence)];
  Batch batch(tokens.size(), sequence);
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.Add(tokens[i], held.size() + i, all_logits || i + 1 == tokens.size());
  logits_sequence_ = -1;
  int32_t error = -1;
  try {
    error = llama_decode(context_, batch.get());
  } catch (const std::exception& e) {
    SyncTokens(sequence);
    return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
  }
  if (error == 0) {
    held.insert(held.end(), tokens.begin(), tokens.end());
    Keep(sequence, held.size() - tokens.size());
    logits_sequence_ = sequence;
    return {};
  }
  SyncTokens(sequence);
  if (error == 2) return {StatusCode::kCancelled, "cancelled"};
  if (error == 1) return {StatusCode::kOutOfRange, "the context is full; use a larger -c"};
  return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode (error {}){}", error, LlamaErrorSuffix())};
}

// After a failed decode: drops whatever it left in the cache, so that rows and tokens agree.
void Session::SyncTokens(int sequence) {
  std::vector<int32_t>& held = tokens_[static_cast<size_t>(sequence)];
  Remove(sequence, held.size());
  const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(context_), sequence);
  const size_t rows = last < 0 ? 0 : static_cast<size_t>(last) + 1;
  held.resize(std::min(held.size(), rows));
}

// Has the sequence's keeper, if it has one, hold its tokens from `from` on.
void Session::Keep(int sequence, size_t from) {
  const SequenceIds ids = IdsOf(model_, options_.sequences);
  if (!ids.keeps()) return;
  llama_memory_seq_cp(llama_get_memory(context_), sequence, ids.keeper(sequence), static_cast<llama_pos>(from), -1);
}

// Frees the rows of the sequence's tokens from `from` on.
bool Session::Remove(int sequence, size_t from) {
  const SequenceIds ids = IdsOf(model_, options_.sequences);
  llama_memory_t memory = llama_get_memory(context_);
  const auto first = static_cast<llama_pos>(from);
  const bool kept = !ids.keeps() || llama_memory_seq_rm(memory, ids.keeper(sequence), first, -1);
  return llama_memory_seq_rm(memory, sequence, first, -1) && kept;
}

Status Session::CheckSequence(int sequence) const {
  if (sequence >= 0 && sequence < options_.sequences) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("there is no sequence {}: the session has {}", sequence, options_.sequences)};
}

Status Session::CheckTokens(std::span<const int32_t> tokens) const {
  const int32_t vocab = model_.vocab_size();
  const auto known = [&](int32_t token) { return token >= 0 && token < vocab; };
  if (std::all_of(tokens.begin(), tokens.end(), known)) return {};
  return {StatusCode::kInvalidArgument, "a token id is not in the model's vocabulary"};
}

size_t Session::OthersTokens(int sequence) const {
  const size_t all = std::accumulate(tokens_.begin(), tokens_.end(), size_t{0},
                                     [](size_t sum, const auto& tokens) { return sum + tokens.size(); });
  return all - tokens(sequence).size();
}

Status Session::CheckRoom(size_t tokens, int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  // Any cell will do, so what counts is their number.
  const size_t others = OthersTokens(sequence);
  const size_t available = context() - std::min<size_t>(others, context());
  if (tokens <= available) return {};
  return {StatusCode::kOutOfRange,
          fmt::format("the context is too short: {} tokens needed, {} available{}; use a larger -c", tokens, available,
                      others == 0 ? "" : fmt::format(" beside {} of other sequences", others))};
}

Status Session::Prefill(std::span<const int32_t> tokens, const PrefillOptions& options, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  window_ = {};
  if (tokens.empty()) return {StatusCode::kInvalidArgument, "there are no tokens to prefill"};
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  QKV_RETURN_IF_ERROR(CheckRoom(this->tokens(sequence).size() + tokens.size(), sequence));
  if (options.window > 0 && !options_.flash_attention)
    return {StatusCode::kUnsupported, "policies that look at attention need flash attention; use -fa on"};
  const size_t start = this->tokens(sequence).size();
  const size_t window_start = tokens.size() - std::min<size_t>(options.window, tokens.size());
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(batch_, tokens.size() - done);
    const bool capture = options.window > 0 && done + n > window_start;
    if (capture) probe_.CaptureFrom(static_cast<uint32_t>(window_start > done ? window_start - done : 0));
    const Status status = Decode(tokens.subspan(done, n), options.logits != nullptr, sequence);
    probe_.StopCapturing();
    if (!status.ok()) {
      probe_.TakeQueries();
      return status;
    }
    for (size_t i = 0; options.logits && i < n; ++i)
      options.logits(done + i, llama_get_logits_ith(context_, static_cast<int32_t>(i)));
    done += n;
    if (options.progress) options.progress(done, tokens.size());
  }
  if (options.window > 0) TakeWindow(start + window_start, start + tokens.size(), options, sequence);
  return {};
}

// The captured queries of tokens [first, end), as they were before llama.cpp rotated them.
void Session::TakeWindow(size_t first, size_t end, const PrefillOptions& options, int sequence) {
  window_sequence_ = sequence;
  window_.layers = probe_.TakeQueries();
  for (size_t i = 0; i < std::min(window_.layers.size(), layout_.formats.size()); ++i) {
    LayerQueries& queries = window_.layers[i];
    RotateBlocks(layout_.formats[i].keys.rotation, queries.q.data(), queries.q.size());
    queries.window = layout_.formats[i].window;
  }
  for (size_t i = first; i < end; ++i) window_.last_visible.push_back(static_cast<uint32_t>(i));
  ThinWindow(options.window_stride, &window_);
}

const AttentionWindow& Session::window(int sequence) const {
  static const AttentionWindow kNone;
  return sequence == window_sequence_ ? window_ : kNone;
}

const float* Session::logits(int sequence) const {
  return sequence >= 0 && logits_sequence_ == sequence ? llama_get_logits_ith(context_, -1) : nullptr;
}

std::vector<uint32_t> Session::windows() const {
  std::vector<uint32_t> windows;
  for (const LayerFormat& format : layout_.formats) windows.push_back(format.window);
  return windows;
}

Result<std::vector<uint8_t>> Session::SaveRaw(int sequence, uint32_t flags) const {
  std::vector<uint8_t> state(llama_state_seq_get_size_ext(context_, sequence, flags));
  if (state.empty() ||
      llama_state_seq_get_data_ext(context_, state.data(), state.size(), sequence, flags) != state.size()) {
    return Status(StatusCode::kInternal, "llama.cpp cannot save the sequence's state" + LlamaErrorSuffix());
  }
  return state;
}

Result<std::vector<uint8_t>> Session::SaveState(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  std::vector<std::vector<uint8_t>> states(1);
  QKV_ASSIGN_OR_RETURN(states[0], SaveRaw(sequence, 0));
  if (tokens(sequence).empty()) return std::move(states[0]);
  const size_t window = layout_.window();
  const size_t last = window > 0 ? tokens(sequence).size() - std::min(window, tokens(sequence).size()) : 0;
  const int scratch = IdsOf(model_, options_.sequences).scratch();
  llama_memory_t memory = llama_get_memory(context_);
  for (size_t from = 0; from < last; from += window) {
    llama_memory_seq_cp(memory, sequence, scratch, static_cast<llama_pos>(from),
                        static_cast<llama_pos>(std::min(from + window, last)));
    Result<std::vector<uint8_t>> state = SaveRaw(scratch, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    llama_memory_seq_rm(memory, scratch, -1, -1);
    if (!state) return state.status();
    states.push_back(std::move(*state));
  }
  return CompleteState(std::move(states), layout_);
}

Result<KvState> Session::TakeKv(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  const std::vector<int32_t>& held = tokens(sequence);
  if (held.empty()) return Status(StatusCode::kInvalidArgument, "the session is empty: there is nothing to take");
  QKV_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, SaveState(sequence));
  QKV_ASSIGN_OR_RETURN(KvState state, KvState::Parse(std::move(bytes), layout_, threads_));
  if (state.tokens() != held.size()) {
    return Status(StatusCode::kInternal,
                  fmt::format("the cache holds {} rows for {} tokens", state.tokens(), held.size()));
  }
  return state;
}

Status Session::RestoreState(ByteSpan bytes, std::span<const int32_t> tokens, int sequence) {
  // Everything is checked before llama.cpp sees a byte: its reader may leave a half-changed sequence.
  QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> positions, CheckState(bytes, layout_));
  if (positions.size() != tokens.size()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the state holds {} rows for {} tokens", positions.size(), tokens.size())};
  }
  // They ascend: the last tells whether they count from 0.
  if (positions.front() != 0 || static_cast<size_t>(positions.back()) + 1 != positions.size()) {
    return {StatusCode::kUnsupported, "only states whose positions count from 0 can be restored"};
  }
  return SetState(bytes, tokens, sequence);
}

Status Session::SetState(ByteSpan state, std::span<const int32_t> tokens, int sequence) {
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  // With room for it, llama.cpp has no reason to refuse: where it does refuse, it drops the sequence.
  QKV_RETURN_IF_ERROR(CheckRoom(tokens.size(), sequence));
  if (logits_sequence_ == sequence) logits_sequence_ = -1;
  Remove(sequence, 0);
  size_t read = 0;
  try {
    read = llama_state_seq_set_data(context_, state.data(), state.size(), sequence);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read != state.size()) {
    Clear(sequence);
    return {StatusCode::kInternal,
            "llama.cpp refused the restored state" + LlamaErrorSuffix() + "; the sequence is empty now"};
  }
  tokens_[static_cast<size_t>(sequence)].assign(tokens.begin(), tokens.end());
  Keep(sequence, 0);
  return {};
}

Status Session::Truncate(size_t tokens, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  if (tokens >= this->tokens(sequence).size()) return {};
  if (!Remove(sequence, tokens)) return {StatusCode::kInternal, "llama.cpp cannot remove tokens from the sequence"};
  tokens_[static_cast<size_t>(sequence)].resize(tokens);
  if (logits_sequence_ == sequence) logits_sequence_ = -1;
  return {};
}

void Session::Clear(int sequence) {
  if (OthersTokens(sequence) == 0) {
    llama_memory_clear(llama_get_memory(context_), /*data=*/true);
  } else {
    Remove(sequence, 0);
  }
  tokens_[static_cast<size_t>(sequence)].clear();
  if (logits_sequence_ == sequence) logits_sequence_ = -1;
}

}  // namespace qkvshare
