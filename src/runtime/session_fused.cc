// Cards attached to a session: attention reads them where they lie.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "llama.h"
#include "runtime/restore.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {
namespace {

// The self-test: a card of so many tokens, and so many after it.
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

}  // namespace

bool Session::OnNode(ggml_tensor* node, bool ask, void* self) {
  auto* session = static_cast<Session*>(self);
  if (session->fused_ != nullptr && ask) session->fused_->BeforeNode(node);
  const bool wanted = GraphProbe::Callback(node, ask, &session->probe_);
  if (session->fused_ != nullptr && ask) session->fused_->AtNode(node);
  return wanted;
}

const std::vector<PlacedCard>& Session::cards(int sequence) const {
  static const std::vector<PlacedCard> kNone;
  return fused_ != nullptr ? fused_->cards(sequence) : kNone;
}

size_t Session::attached(int sequence) const { return fused_ != nullptr ? fused_->end(sequence) : 0; }

Status Session::CheckCards(const std::vector<PlacedCard>& cards) const {
  for (const PlacedCard& placed : cards) {
    QKV_RETURN_IF_ERROR(CheckCardFits(placed.card->card(), *this));
    if (placed.shift() != 0) QKV_RETURN_IF_ERROR(rope_status_);
  }
  return CheckCardList(PartsOf(cards));
}

Status Session::AttachCards(std::vector<PlacedCard> cards, int sequence) {
  QKV_RETURN_IF_ERROR(fused_status_);
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  QKV_RETURN_IF_ERROR(CheckCards(cards));
  std::vector<int32_t> tokens = TokensOf(PartsOf(cards));
  QKV_RETURN_IF_ERROR(CheckRoomFor(tokens.size(), tokens.size(), sequence));
  QKV_RETURN_IF_ERROR(fused_->Attach(sequence, std::move(cards)));
  ForgetEnd(sequence);
  Remove(sequence, 0);
  tokens_[static_cast<size_t>(sequence)] = std::move(tokens);
  return {};
}

// Leaves `tokens` of the tokens that cards hold.
void Session::KeepCards(size_t tokens, int sequence) {
  std::vector<PlacedCard> kept;
  for (PlacedCard placed : cards(sequence)) {
    if (placed.offset >= tokens) break;
    placed.tokens = std::min(placed.tokens, static_cast<uint32_t>(tokens) - placed.offset);
    kept.push_back(std::move(placed));
  }
  (void)fused_->Attach(sequence, std::move(kept));  // parts of what was attached
}

// What rules it out, from what is known to what has to be tried.
Status Session::CheckFused() {
  const auto unsupported = [](const char* why) { return Status(StatusCode::kUnsupported, why); };
  if (fused_ == nullptr) return unsupported("attention over cards was not asked for");
  if (!options_.flash_attention) return unsupported("attention over cards needs flash attention (-fa on)");
  if (options_.cache_type_k != CacheType::kF16 || options_.cache_type_v != CacheType::kF16)
    return unsupported("attention over cards needs a cache of type f16");
  std::vector<FusedLayer> layers;
  for (size_t i = 0; i < ropes_.size(); ++i) layers.push_back({layout_.format(i).window, ropes_[i]});
  fused_->SetLayers(std::move(layers));
  const Status status = TestFused();
  for (int i = 0; i < options_.sequences; ++i) Clear(i);
  if (status.ok()) return {};
  return {StatusCode::kUnsupported, fmt::format("the self-test of attention over cards failed: {}", status.message())};
}

// The same tokens with and without a card must give the same distribution.
Status Session::TestFused() {
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < kTestCard + kTestSuffix; ++i) tokens.push_back(static_cast<int32_t>((i * 7919 + 11) % vocab));
  const std::span all(tokens);
  QKV_RETURN_IF_ERROR(Prefill(all.first(kTestCard), {}));
  QKV_ASSIGN_OR_RETURN(std::shared_ptr<const AttachedCard> card, PackExact());
  QKV_RETURN_IF_ERROR(Prefill(all.subspan(kTestCard), {}));
  const std::vector<float> native(logits(), logits() + vocab);
  Clear();
  QKV_RETURN_IF_ERROR(AttachTest({card, 0, kTestCard}));
  QKV_RETURN_IF_ERROR(Prefill(all.subspan(kTestCard), {}));
  const double divergence = Divergence(native.data(), logits(), vocab);
  if (divergence < kTestBound) return {};
  return {StatusCode::kUnsupported,
          fmt::format("its distribution differs from llama.cpp's by {:.4g} nats (at most {})", divergence, kTestBound)};
}

Status Session::AttachTest(const PlacedCard& card) {
  QKV_RETURN_IF_ERROR(fused_->Attach(0, {card}));
  tokens_[0] = TokensOf(PartsOf({&card, 1}));
  return {};
}

Result<std::shared_ptr<const AttachedCard>> Session::PackExact() const {
  PackOptions options;
  options.code_bits = 16;
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(*this, options, &times));
  QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
  return AttachedCard::Make(std::make_shared<const Card>(std::move(card)));
}

}  // namespace qkvshare
