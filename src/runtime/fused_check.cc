#include "runtime/fused_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "llama.h"
#include "runtime/batch.h"
#include "runtime/card_context.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

// The self-test: a card of so many tokens, the first ones exact and the others packed, and so many after it.
constexpr size_t kTestCard = 20;
constexpr size_t kTestSuffix = 4;
// KL divergence between the two ways, in nats. llama.cpp's own noise is about 0.003; rows that are read wrongly give 1
// and more.
constexpr double kTestBound = 0.1;

double LogSum(const float* logits, size_t n) {
  const double most = *std::max_element(logits, logits + n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::exp(logits[i] - most);
  return most + std::log(sum);
}

double Divergence(const float* p, const float* q, size_t n) {
  const double log_p = LogSum(p, n);
  const double log_q = LogSum(q, n);
  double divergence = 0;
  for (size_t i = 0; i < n; ++i) divergence += std::exp(p[i] - log_p) * ((p[i] - log_p) - (q[i] - log_q));
  return divergence;
}

// Decodes tokens from position `first` on, and gives the last one's logits.
Result<std::vector<float>> Read(std::span<const int32_t> tokens, size_t first, CardContext* context) {
  const size_t most = std::min(llama_n_batch(context->handle()), llama_n_ubatch(context->handle()));
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min(most, tokens.size() - done);
    Batch batch(n, 0);
    for (size_t i = done; i < done + n; ++i) batch.Add(tokens[i], first + i, i + 1 == tokens.size());
    int32_t result = 0;
    QKV_RETURN_IF_ERROR(context->Decode(batch.get(), &result));
    done += n;
  }
  const float* logits = llama_get_logits_ith(context->handle(), -1);
  if (logits == nullptr) return Status(StatusCode::kUnsupported, "the context computes no logits");
  return std::vector<float>(logits, logits + context->model().vocab_size());
}

Result<std::shared_ptr<const AttachedCard>> PackTestCard(std::span<const int32_t> tokens, const CardContext& context) {
  PackOptions options;
  options.code_bits = 8;
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackTokens({context, tokens}, options, &times));
  QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
  return AttachedCard::Make(std::make_shared<const Card>(std::move(card)));
}

// The same tokens with and without a card must give the same distribution.
Status TestFused(CardContext* context) {
  const auto vocab = static_cast<size_t>(context->model().vocab_size());
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < kTestCard + kTestSuffix; ++i) tokens.push_back(static_cast<int32_t>((i * 7919 + 11) % vocab));
  const std::span all(tokens);
  QKV_RETURN_IF_ERROR(Read(all.first(kTestCard), 0, context).status());
  QKV_ASSIGN_OR_RETURN(std::shared_ptr<const AttachedCard> card, PackTestCard(all.first(kTestCard), *context));
  QKV_ASSIGN_OR_RETURN(const std::vector<float> native, Read(all.subspan(kTestCard), kTestCard, context));
  llama_memory_clear(llama_get_memory(context->handle()), /*data=*/true);
  QKV_RETURN_IF_ERROR(context->Attach({{std::move(card), 0, kTestCard}}, 0));
  QKV_ASSIGN_OR_RETURN(const std::vector<float> fused, Read(all.subspan(kTestCard), kTestCard, context));
  const double divergence = Divergence(native.data(), fused.data(), vocab);
  if (divergence < kTestBound) return {};
  return {StatusCode::kUnsupported,
          fmt::format("its distribution differs from llama.cpp's by {:.4g} nats (at most {})", divergence, kTestBound)};
}

}  // namespace

Status CheckFused(CardContext* context) {
  const auto unsupported = [](const char* why) { return Status(StatusCode::kUnsupported, why); };
  const ContextFacts& facts = context->facts();
  if (!facts.flash_attention) return unsupported("attention over cards needs flash attention (-fa on)");
  if (facts.key_type != CacheType::kF16 || facts.value_type != CacheType::kF16)
    return unsupported("attention over cards needs a cache of type f16");
  const Status status = TestFused(context);
  if (status.ok()) return {};
  return {status.code(), fmt::format("the self-test of attention over cards failed: {}", status.message())};
}

}  // namespace qkvshare
