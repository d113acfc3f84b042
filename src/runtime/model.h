// A loaded GGUF: tokenizer, chat template, identity. No context: that is runtime/session.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/hash.h"
#include "qkvshare/status.h"
#include "quant/tile.h"

struct llama_model;
struct llama_vocab;
struct common_chat_templates;

namespace qkvshare {

struct KnownContext;  // runtime/card_context.h

struct ModelOptions {
  int gpu_layers = 0;  // -ngl: layers on a GPU, where llama.cpp was built for one
  // Loading in [0, 1]; returns false to cancel. May be empty.
  std::function<bool(float)> progress;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

// Thread-safe after loading.
class Model {
 public:
  // kNotFound, kCorrupt (not a model that llama.cpp can read), kUnsupported (recurrent, hybrid, encoder and multi-axis
  // RoPE models: their cache is more than one row a token), kCancelled.
  static Result<std::unique_ptr<Model>> Load(const std::string& path, const ModelOptions& options);
  // A model that somebody else has loaded, from the GGUF at `path`, and that must stay loaded. kNotFound, kIo,
  // kCorrupt, kMismatch (another file than that), kUnsupported as Load.
  static Result<std::unique_ptr<Model>> Borrow(llama_model* model, const std::string& path);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Token ids of text as llama.cpp makes them for a prompt: special tokens in the text are recognized, and BOS is added
  // where the model wants it, once. add_special: false for text that follows other text.
  std::vector<int32_t> Tokenize(const std::string& text, bool add_special) const;
  // The bytes that these tokens stand for, special tokens written out; a leading BOS that Tokenize would add again is
  // left out. Tokens outside the vocabulary stand for nothing.
  std::string Detokenize(const std::vector<int32_t>& tokens) const;
  // Bytes of one token as generated text: control tokens are empty.
  std::string Piece(int32_t token) const;
  bool IsEndOfGeneration(int32_t token) const;

  // The messages by the model's own chat template, with the start of the assistant's turn if add_generation_prompt.
  // kUnsupported where the model has no template, or one that cannot be read or that refuses them.
  Result<std::string> ApplyChatTemplate(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

  int32_t vocab_size() const;
  uint32_t training_context() const;
  // Values of a head's keys or values, as the file says; layers may differ.
  uint32_t head_size(Side side) const;
  // Whether the effective RoPE is one or another by the size of the context (LongRoPE).
  bool rope_depends_on_context() const;
  std::string name() const;
  std::string architecture() const;
  // Architecture, hyper-parameters, tokenizer and weights: never the file's name.
  const Digest& fingerprint() const { return fingerprint_; }
  llama_model* handle() const { return model_; }
  const llama_vocab* vocab() const;

  // What was found out about the first context of this kind, for those that follow; null where there was none.
  std::shared_ptr<const KnownContext> Recall(const std::string& kind) const;
  void Remember(const std::string& kind, std::shared_ptr<const KnownContext> known) const;

 private:
  Model() = default;
  Status Identify(const std::string& path);
  void LoadTemplates();
  std::string Meta(const char* key) const;
  std::string Bytes(int32_t token, bool special) const;

  llama_model* model_ = nullptr;
  bool borrowed_ = false;
  std::unique_ptr<common_chat_templates, void (*)(common_chat_templates*)> templates_{nullptr, nullptr};
  std::string template_problem_;  // why templates_ is empty
  Digest fingerprint_{};
  mutable std::mutex known_mutex_;
  mutable std::map<std::string, std::shared_ptr<const KnownContext>> known_;
};

}  // namespace qkvshare
