// A program that has its own llama.cpp context: its attention reads a card where it lies, and it answers a question.
// Usage: attend MODEL.gguf CARD QUESTION
#include <llama.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <qkvshare/llama.hpp>
#include <string>
#include <vector>

namespace {

using LlamaModel = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using LlamaContext = std::unique_ptr<llama_context, decltype(&llama_free)>;

// Reads `tokens`, then decodes greedily; qkv::Attention::Decode stands in for llama_decode.
qkv::Status Answer(const qkv::Model& model, llama_context* context, qkv::Attention* attention,
                   std::vector<int32_t> tokens) {
  const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(context));
  const size_t most = llama_n_ubatch(context);
  for (size_t done = 0; done < tokens.size(); done += most) {
    const auto count = static_cast<int32_t>(std::min(most, tokens.size() - done));
    QKV_RETURN_IF_ERROR(attention->Decode(llama_batch_get_one(tokens.data() + done, count)));
  }
  for (int i = 0; i < 64; ++i) {
    const float* logits = llama_get_logits_ith(context, -1);
    llama_token next =
        static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits);
    if (llama_vocab_is_eog(vocab, next)) break;
    QKV_ASSIGN_OR_RETURN(const std::string piece, model.Detokenize({&next, 1}));
    std::cout << piece << std::flush;
    QKV_RETURN_IF_ERROR(attention->Decode(llama_batch_get_one(&next, 1)));
  }
  std::cout << '\n';
  return {};
}

qkv::Status Run(const std::string& path, const std::string& card_path, const std::string& question) {
  const LlamaModel loaded(llama_model_load_from_file(path.c_str(), llama_model_default_params()), llama_model_free);
  if (loaded == nullptr) return {qkv::StatusCode::kCorrupt, "llama.cpp cannot load " + path};
  QKV_ASSIGN_OR_RETURN(const qkv::Model model, qkv::BorrowModel(loaded.get(), path));
  QKV_ASSIGN_OR_RETURN(const qkv::Card card, qkv::Card::Open(card_path));

  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  QKV_ASSIGN_OR_RETURN(qkv::Attention attention, qkv::Attention::Create(model, &params));
  const LlamaContext context(llama_init_from_model(loaded.get(), params), llama_free);
  if (context == nullptr) return {qkv::StatusCode::kOutOfRange, "llama.cpp cannot make the context"};
  QKV_RETURN_IF_ERROR(attention.Bind(context.get()));

  QKV_ASSIGN_OR_RETURN(const qkv::Injection injection, attention.Inject(0, card));
  std::cerr << injection.tokens << " tokens of a card, " << (injection.mode == QKV_INJECT_FUSED ? "fused" : "restored")
            << ": " << injection.reason << '\n';
  QKV_ASSIGN_OR_RETURN(const std::string turn, model.ChatNextTurn(question));
  QKV_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, model.Tokenize(turn, /*add_special=*/false));
  return Answer(model, context.get(), &attention, std::move(tokens));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: attend MODEL.gguf CARD QUESTION\n";
    return 2;
  }
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
      },
      nullptr);
  llama_backend_init();
  const qkv::Status status = Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << "error: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
