#include "eval/kept_context.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/stopwatch.h"
#include "runtime/backend.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

ByteSpan BytesOf(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

std::string PathOf(std::span<const int32_t> tokens, const SessionOptions& options, const std::string& folder,
                   const Model& model) {
  const std::string how = fmt::format("{} {} -c {} -ub {} -t {} -fa {} {} {}", LlamaVersion(), LlamaSystemInfo(),
                                      options.context, options.batch, options.threads, options.flash_attention,
                                      options.rope_freq_base, options.rope_freq_scale);
  const std::string text(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return fmt::format("{}/{}-{}-{}.card", folder, ToHex(model.fingerprint()).substr(0, 12), tokens.size(),
                     ToHex(Blake2b(BytesOf(text + how))).substr(0, 12));
}

// Leaves the context as an exact card at `path`, and its time beside it.
Status PrefillTo(const std::string& path, std::span<const int32_t> tokens, Session* session,
                 const std::function<void(size_t, size_t)>& progress) {
  PrefillOptions prefill;
  prefill.progress = progress;
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(session->Prefill(tokens, prefill));
  QKV_RETURN_IF_ERROR(WriteFileAtomic(path + ".us", {BytesOf(std::to_string(watch.LapUs()))}));
  PackOptions options;
  options.code_bits = 16;
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(*session, options, &times));
  return card.Write(path);
}

}  // namespace

Result<std::vector<int32_t>> RepeatTokens(const Model& model, const std::string& text, size_t count) {
  const std::vector<int32_t> once = model.Tokenize(text, /*add_special=*/true);
  if (once.empty()) return Status(StatusCode::kInvalidArgument, "there is no text to make a context of");
  std::vector<int32_t> tokens;
  while (tokens.size() < count) tokens.insert(tokens.end(), once.begin(), once.end());
  return tokens;
}

Status CheckTrained(const Model& model, const SessionOptions& options, size_t tokens, const std::string& what) {
  if (tokens <= model.training_context() || options.rope_freq_base != 0 || options.rope_freq_scale != 0) return {};
  return {StatusCode::kOutOfRange, fmt::format("{} tokens are needed, but the model was trained for {}: give fewer {}",
                                               tokens, model.training_context(), what)};
}

Result<KeptContext> TakeKeptContext(std::span<const int32_t> tokens, const SessionOptions& options,
                                    const std::string& folder, Session* session,
                                    const std::function<void(size_t, size_t)>& progress) {
  const std::string path = PathOf(tokens, options, folder, session->model());
  if (!std::filesystem::exists(path)) QKV_RETURN_IF_ERROR(PrefillTo(path, tokens, session, progress));
  KeptContext kept;
  std::ifstream(path + ".us") >> kept.prefill_us;
  QKV_ASSIGN_OR_RETURN(Card exact, Card::Open(path));
  kept.exact = std::make_shared<const Card>(std::move(exact));
  return kept;
}

}  // namespace qkvshare
