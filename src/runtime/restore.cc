#include "runtime/restore.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/stopwatch.h"

namespace qkvshare {
namespace {

// Of the rows that the parts become.
std::vector<int32_t> PositionsOf(std::span<const CardPart> parts) {
  std::vector<int32_t> positions;
  for (const CardPart& part : parts) {
    for (uint32_t i = part.offset; i < part.end(); ++i) positions.push_back(static_cast<int32_t>(i));
  }
  return positions;
}

Status OtherRope(const RopeParams& theirs, const RopeParams& ours) {
  if (theirs.base == ours.base && theirs.scale == ours.scale) {
    return {StatusCode::kMismatch,
            "the card was made with other RoPE factors: they depend on the size of the context (-c) or on how it is "
            "extended; use the sender's"};
  }
  return {
      StatusCode::kMismatch,
      fmt::format("the card was made with another RoPE (base {}, scale {}; here base {}, scale {}); use the sender's "
                  "--rope-freq-base and --rope-freq-scale",
                  theirs.base, theirs.scale, ours.base, ours.scale)};
}

}  // namespace

void MoveKeys(const LayerRope& rope, int32_t delta, size_t dim, size_t count, Half* rows) {
  const RopeShift shift(rope, -delta);
  std::vector<float> row(dim);
  for (size_t i = 0; i < count; ++i, rows += dim) {
    std::transform(rows, rows + dim, row.begin(), HalfToFloat);
    shift.Apply(row.data());
    std::transform(row.begin(), row.end(), rows, FloatToHalf);
  }
}

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

Status CheckCardFits(const Card& card, const CardContext& context) {
  QKV_RETURN_IF_ERROR(CheckCardModel(card, context.model()));
  const ModelIdentity &theirs = card.identity(), &ours = context.identity();
  if (theirs.rope != ours.rope) return OtherRope(theirs.first_rope, ours.first_rope);
  const std::vector<LayerShape>& shapes = context.facts().layout.shapes;
  bool same = shapes.size() == card.layers();
  for (size_t i = 0; same && i < shapes.size(); ++i) same = shapes[i] == card.shape(i);
  if (!same) return {StatusCode::kMismatch, "the card's layers have other shapes than the model's"};
  const std::vector<uint32_t> windows = context.facts().windows();
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (card.window(i) != windows[i]) return {StatusCode::kMismatch, "the card's layers have other sliding windows"};
  }
  return {};
}

Status CheckRestore(std::span<const CardPart> parts, const CardContext& context) {
  for (const CardPart& part : parts) QKV_RETURN_IF_ERROR(CheckCardFits(*part.card, context));
  QKV_RETURN_IF_ERROR(CheckCardOrder(parts));
  const auto moved = [](const CardPart& part) { return part.shift() != 0; };
  if (std::any_of(parts.begin(), parts.end(), moved)) QKV_RETURN_IF_ERROR(context.facts().rope_status);
  if (parts.empty()) return {StatusCode::kInvalidArgument, "there is no card"};
  return {};
}

Result<std::vector<uint8_t>> BuildCardState(std::span<const CardPart> parts, const CardContext& context) {
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const StateLayout& layout = context.facts().layout;
  const auto fill = [&](size_t layer, Side side, Half* rows) {
    const LayerShape& shape = layout.shapes[layer];
    for (const CardPart& part : parts) {
      QKV_RETURN_IF_ERROR(part.card->Unpack(*kernels, layer, side, part.tokens, rows));
      if (side == Side::kKeys && part.shift() != 0)
        MoveKeys(context.facts().ropes[layer], part.shift(), shape.key_dim, part.tokens * shape.kv_heads, rows);
      rows += part.tokens * shape.row_values(side);
    }
    return Status();
  };
  return BuildState(layout, PositionsOf(parts), context.threads(), fill);
}

Status RestoreCards(std::span<const CardPart> parts, Session* session, RestoreTimes* times, int sequence) {
  QKV_RETURN_IF_ERROR(CheckRestore(parts, session->card_context()));
  QKV_RETURN_IF_ERROR(CheckCardList(parts));
  QKV_RETURN_IF_ERROR(session->CheckRoom(parts.back().end(), sequence));
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, BuildCardState(parts, session->card_context()));
  times->dequantize_us = watch.LapUs();
  QKV_RETURN_IF_ERROR(session->SetState(state, TokensOf(parts), sequence));
  times->inject_us = watch.LapUs();
  return {};
}

Status RestoreCard(const Card& card, size_t tokens, Session* session, RestoreTimes* times, int sequence) {
  const std::shared_ptr<const Card> borrowed(std::shared_ptr<const Card>(), &card);
  const CardPart part{borrowed, 0, static_cast<uint32_t>(std::min<size_t>(tokens, UINT32_MAX))};
  return RestoreCards({&part, 1}, session, times, sequence);
}

}  // namespace qkvshare
