#include "runtime/restore.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/stopwatch.h"

namespace qkvshare {
namespace {

Status CheckPositions(const Card& card) {
  if (card.has_parent()) {
    return {StatusCode::kUnsupported,
            fmt::format("the card holds tokens {} and on of a context and continues card {}: a card cannot be restored "
                        "without its parent",
                        card.first_token(), ToHex(card.parent()).substr(0, 12))};
  }
  for (size_t i = 0; i < card.positions().size(); ++i) {
    if (card.positions()[i] != static_cast<int32_t>(i)) {
      return {StatusCode::kUnsupported,
              fmt::format(
                  "token {} of the card is at position {}: only cards whose positions count from 0 can be restored yet",
                  i, card.positions()[i])};
    }
  }
  return {};
}

}  // namespace

Status CheckCardModel(const Card& card, const Model& model) {
  const auto start = [](const Digest& digest) { return ToHex(digest).substr(0, 12); };
  if (card.identity().model != model.fingerprint()) {
    return {
        StatusCode::kMismatch,
        fmt::format("the card was made by another model: {} ({}), but this is {} ({}); use that "
                    "model, or prefill the text again",
                    card.info().model_name, start(card.identity().model), model.name(), start(model.fingerprint()))};
  }
  const auto unknown = [&](int32_t id) { return id >= model.vocab_size(); };
  if (std::any_of(card.token_ids().begin(), card.token_ids().end(), unknown)) {
    return {StatusCode::kCorrupt, "the card holds token ids that are not in the model's vocabulary"};
  }
  return {};
}

Status CheckCardFits(const Card& card, const Session& session) {
  QKV_RETURN_IF_ERROR(CheckCardModel(card, session.model()));
  const ModelIdentity &theirs = card.identity(), &ours = session.identity();
  if (theirs.rope != ours.rope) {
    return {
        StatusCode::kMismatch,
        fmt::format("the card was made with another RoPE (base {}, scale {}; here base {}, scale {}); use the sender's "
                    "--rope-freq-base, --rope-freq-scale and, where RoPE depends on it, -c",
                    theirs.first_rope.base, theirs.first_rope.scale, ours.first_rope.base, ours.first_rope.scale)};
  }
  const std::vector<LayerShape>& shapes = session.state_layout().shapes;
  bool same = shapes.size() == card.layers();
  for (size_t i = 0; same && i < shapes.size(); ++i) same = shapes[i] == card.shape(i);
  if (!same) return {StatusCode::kMismatch, "the card's layers have other shapes than the model's"};
  const std::vector<uint32_t> windows = session.windows();
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (card.window(i) != windows[i]) return {StatusCode::kMismatch, "the card's layers have other sliding windows"};
  }
  return {};
}

Status RestoreCard(const Card& card, size_t tokens, Session* session, RestoreTimes* times, int sequence) {
  QKV_RETURN_IF_ERROR(CheckCardFits(card, *session));
  QKV_RETURN_IF_ERROR(CheckPositions(card));
  if (tokens == 0 || tokens > card.tokens()) {
    return {StatusCode::kInvalidArgument, fmt::format("cannot restore {} of {} tokens", tokens, card.tokens())};
  }
  QKV_RETURN_IF_ERROR(session->CheckRoom(tokens, sequence));
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state,
                       BuildState(session->state_layout(), card.positions().first(tokens), session->threads(),
                                  [&](size_t layer, Side side, Half* rows) {
                                    return card.Unpack(*kernels, layer, side, tokens, rows);
                                  }));
  times->dequantize_us = watch.LapUs();
  QKV_RETURN_IF_ERROR(session->SetState(state, card.token_ids().first(tokens), sequence));
  times->inject_us = watch.LapUs();
  return {};
}

}  // namespace qkvshare
