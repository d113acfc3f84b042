#include "runtime/model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <system_error>

#include "chat.h"
#include "llama.h"
#include "runtime/backend.h"
#include "runtime/fingerprint.h"

namespace qkvshare {
namespace {

// Why a card cannot hold this model's cache; empty where it can.
std::string Obstacle(const llama_model* model) {
  if (llama_model_is_hybrid(model)) return "it is a hybrid with recurrent layers: their state is not a row a token";
  if (llama_model_is_recurrent(model)) return "it is recurrent: its state is not a row a token";
  if (llama_model_is_diffusion(model)) return "it is a diffusion model";
  if (llama_model_has_encoder(model)) return "it has an encoder";
  const enum llama_rope_type rope = llama_model_rope_type(model);
  if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION) {
    return "its positions have several axes";
  }
  return "";
}

Status CheckFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return {StatusCode::kNotFound, "no model file at " + path + "; see `qkvshare models list` for models by name"};
  }
  if (access(path.c_str(), R_OK) == 0) return {};
  return {StatusCode::kIo, fmt::format("cannot read {}: {}", path, std::generic_category().message(errno))};
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& path, const ModelOptions& options) {
  InitBackend();
  QKV_RETURN_IF_ERROR(CheckFile(path));
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = options.gpu_layers;
  bool cancelled = false;
  struct Progress {
    const std::function<bool(float)>* call;
    bool* cancelled;
  } progress{&options.progress, &cancelled};
  if (options.progress) {
    params.progress_callback_user_data = &progress;
    params.progress_callback = [](float done, void* data) {
      auto* p = static_cast<Progress*>(data);
      *p->cancelled = !(*p->call)(done);
      return !*p->cancelled;
    };
  }
  std::unique_ptr<Model> model(new Model());
  TakeLastLlamaError();  // of earlier calls
  try {
    model->model_ = llama_model_load_from_file(path.c_str(), params);
    if (cancelled) return Status(StatusCode::kCancelled, "loading was cancelled");
    if (model->model_ == nullptr)
      return Status(StatusCode::kCorrupt, "cannot load the model " + path + LlamaErrorSuffix());
  } catch (const std::exception& e) {
    return Status(StatusCode::kCorrupt, fmt::format("cannot load the model {}: {}", path, e.what()));
  }
  QKV_RETURN_IF_ERROR(model->Identify(path));
  return model;
}

Result<std::unique_ptr<Model>> Model::Borrow(llama_model* borrowed, const std::string& path) {
  QKV_RETURN_IF_ERROR(CheckFile(path));
  QKV_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(path));
  if (bytes != llama_model_size(borrowed)) {
    return Status(StatusCode::kMismatch, fmt::format("the model was not loaded from {}: it has {} bytes of tensors, "
                                                     "the file {}",
                                                     path, llama_model_size(borrowed), bytes));
  }
  std::unique_ptr<Model> model(new Model());
  model->model_ = borrowed;
  model->borrowed_ = true;
  QKV_RETURN_IF_ERROR(model->Identify(path));
  return model;
}

Status Model::Identify(const std::string& path) {
  if (const std::string obstacle = Obstacle(model_); !obstacle.empty()) {
    return {StatusCode::kUnsupported,
            fmt::format("{} (architecture {}) cannot be handed over yet: {}", path, architecture(), obstacle)};
  }
  LoadTemplates();
  QKV_ASSIGN_OR_RETURN(fingerprint_, FingerprintModel(path));
  return {};
}

// A model is of use without them: what is wrong is said where a template is asked for.
void Model::LoadTemplates() {
  try {
    templates_ = {common_chat_templates_init(model_, "").release(), common_chat_templates_free};
    if (common_chat_templates_was_explicit(templates_.get())) return;
    template_problem_ = "the model has no chat template; give the text without --chat or --messages";
  } catch (const std::exception& e) {
    template_problem_ = fmt::format("llama.cpp cannot read the model's chat template ({})", e.what());
  }
  templates_.reset();
}

Model::~Model() {
  templates_.reset();
  if (model_ != nullptr && !borrowed_) llama_model_free(model_);
}

const llama_vocab* Model::vocab() const { return llama_model_get_vocab(model_); }

std::vector<int32_t> Model::Tokenize(const std::string& text, bool add_special) const {
  std::vector<int32_t> tokens(text.size() + 4);
  const auto call = [&] {
    return llama_tokenize(vocab(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, /*parse_special=*/true);
  };
  int32_t count = call();
  if (count < 0 && count != INT32_MIN) {
    tokens.resize(static_cast<size_t>(-count));
    count = call();
  }
  tokens.resize(static_cast<size_t>(std::max(count, 0)));
  // Text that writes BOS out itself must not get a second one.
  const llama_token bos = llama_vocab_bos(vocab());
  if (add_special && llama_vocab_get_add_bos(vocab()) && tokens.size() > 1 && tokens[0] == bos && tokens[1] == bos) {
    tokens.erase(tokens.begin());
  }
  return tokens;
}

std::string Model::Detokenize(const std::vector<int32_t>& tokens) const {
  // Not llama_detokenize: for some tokenizers that drops spaces before punctuation.
  size_t first = 0;
  if (!tokens.empty() && llama_vocab_get_add_bos(vocab()) && tokens[0] == llama_vocab_bos(vocab())) first = 1;
  std::string text;
  for (size_t i = first; i < tokens.size(); ++i) text += Bytes(tokens[i], /*special=*/true);
  return text;
}

std::string Model::Piece(int32_t token) const { return Bytes(token, /*special=*/false); }

std::string Model::Bytes(int32_t token, bool special) const {
  if (token < 0 || token >= vocab_size()) return "";
  std::string piece(64, '\0');
  const auto call = [&] {
    return llama_token_to_piece(vocab(), token, piece.data(), static_cast<int32_t>(piece.size()), 0, special);
  };
  int32_t bytes = call();
  if (bytes < 0) {
    piece.resize(static_cast<size_t>(-bytes));
    bytes = call();
  }
  piece.resize(static_cast<size_t>(std::max(bytes, 0)));
  return piece;
}

bool Model::IsEndOfGeneration(int32_t token) const { return llama_vocab_is_eog(vocab(), token); }

Result<std::string> Model::ApplyChatTemplate(const std::vector<ChatMessage>& messages,
                                             bool add_generation_prompt) const {
  if (templates_ == nullptr) return Status(StatusCode::kUnsupported, template_problem_);
  try {
    common_chat_templates_inputs inputs;
    for (const ChatMessage& message : messages) {
      common_chat_msg& out = inputs.messages.emplace_back();
      out.role = message.role;
      out.content = message.content;
    }
    inputs.add_generation_prompt = add_generation_prompt;
    inputs.use_jinja = true;
    // The tokenizer adds BOS itself: the template's own is taken off.
    inputs.add_bos = llama_vocab_get_add_bos(vocab());
    inputs.add_eos = llama_vocab_get_add_eos(vocab());
    return common_chat_templates_apply(templates_.get(), inputs).prompt;
  } catch (const std::exception& e) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the model's chat template refuses these messages: {}", e.what()));
  }
}

int32_t Model::vocab_size() const { return llama_vocab_n_tokens(vocab()); }

uint32_t Model::training_context() const { return static_cast<uint32_t>(llama_model_n_ctx_train(model_)); }

uint32_t Model::head_size(Side side) const {
  const char* key = side == Side::kKeys ? ".attention.key_length" : ".attention.value_length";
  const std::string size = Meta((architecture() + key).c_str());
  if (!size.empty()) return static_cast<uint32_t>(std::strtoul(size.c_str(), nullptr, 10));
  return static_cast<uint32_t>(llama_model_n_embd(model_) / std::max(llama_model_n_head(model_), 1));
}

std::string Model::Meta(const char* key) const {
  const int32_t bytes = llama_model_meta_val_str(model_, key, nullptr, 0);
  if (bytes < 0) return "";
  std::string value(static_cast<size_t>(bytes) + 1, '\0');
  llama_model_meta_val_str(model_, key, value.data(), value.size());
  value.resize(static_cast<size_t>(bytes));
  return value;
}

bool Model::rope_depends_on_context() const {
  return Meta((architecture() + ".rope.scaling.type").c_str()) == "longrope" ||
         !Meta((architecture() + ".rope.scaling.original_context_length").c_str()).empty();
}

std::shared_ptr<const KnownContext> Model::Recall(const std::string& kind) const {
  const std::scoped_lock lock(known_mutex_);
  const auto found = known_.find(kind);
  return found == known_.end() ? nullptr : found->second;
}

void Model::Remember(const std::string& kind, std::shared_ptr<const KnownContext> known) const {
  const std::scoped_lock lock(known_mutex_);
  known_.insert_or_assign(kind, std::move(known));
}

std::string Model::name() const { return Meta("general.name"); }

std::string Model::architecture() const { return Meta("general.architecture"); }

}  // namespace qkvshare
