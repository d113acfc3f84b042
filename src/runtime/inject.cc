#include "runtime/inject.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/stopwatch.h"
#include "runtime/restore.h"

namespace qkvshare {
namespace {

constexpr std::array<InjectMode, 3> kModes = {InjectMode::kAuto, InjectMode::kFused, InjectMode::kRestore};

Result<std::vector<PlacedCard>> Placed(std::span<const CardPart> parts) {
  std::vector<PlacedCard> cards;
  for (const CardPart& part : parts) {
    QKV_ASSIGN_OR_RETURN(std::shared_ptr<const AttachedCard> card, AttachedCard::Make(part.card));
    cards.push_back({std::move(card), part.offset, part.tokens});
  }
  return cards;
}

// The way in effect, and why this one.
Result<Injection> Choose(InjectMode mode, const Status& can_fuse) {
  Injection injection;
  if (mode == InjectMode::kFused && !can_fuse.ok()) return can_fuse;
  const bool fuse = mode != InjectMode::kRestore && can_fuse.ok();
  injection.mode = fuse ? InjectMode::kFused : InjectMode::kRestore;
  injection.reason = mode != InjectMode::kAuto ? "as asked for" : fuse ? "the self-test passed" : can_fuse.message();
  return injection;
}

Status CheckEmpty(const CardContext& context, int sequence) {
  QKV_RETURN_IF_ERROR(context.CheckSequence(sequence));
  if (context.IsEmpty(sequence) && context.cards(sequence).empty()) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("sequence {} is not empty: detach it (its cards and its tokens) first", sequence)};
}

}  // namespace

const char* InjectModeName(InjectMode mode) {
  switch (mode) {
    case InjectMode::kAuto: return "auto";
    case InjectMode::kFused: return "fused";
    case InjectMode::kRestore: return "restore";
  }
  return "";
}

Result<InjectMode> InjectModeFromName(const std::string& name) {
  const auto found =
      std::find_if(kModes.begin(), kModes.end(), [&](InjectMode mode) { return name == InjectModeName(mode); });
  if (found != kModes.end()) return *found;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no way to inject named {}: use auto, fused or restore", name));
}

Result<Injection> InjectCards(std::span<const CardPart> parts, InjectMode mode, CardContext* context, int sequence) {
  QKV_ASSIGN_OR_RETURN(Injection injection, Choose(mode, context->fused()));
  QKV_RETURN_IF_ERROR(CheckEmpty(*context, sequence));
  if (parts.empty()) return Status(StatusCode::kInvalidArgument, "there is no card");
  Stopwatch watch;
  if (injection.mode == InjectMode::kFused) {
    QKV_RETURN_IF_ERROR(context->CheckAttach(parts));
    QKV_ASSIGN_OR_RETURN(std::vector<PlacedCard> cards, Placed(parts));
    QKV_RETURN_IF_ERROR(context->Attach(std::move(cards), sequence));
    injection.attach_us = watch.LapUs();
    return injection;
  }
  QKV_RETURN_IF_ERROR(CheckRestore(parts, *context));
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, BuildCardState(parts, *context));
  injection.dequantize_us = watch.LapUs();
  QKV_RETURN_IF_ERROR(context->SetState(state, sequence));
  injection.inject_us = watch.LapUs();
  return injection;
}

Result<Injection> InjectCards(std::span<const CardPart> parts, InjectMode mode, Session* session, int sequence) {
  QKV_ASSIGN_OR_RETURN(Injection injection, Choose(mode, session->fused()));
  if (injection.mode == InjectMode::kFused) {
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(std::vector<PlacedCard> cards, Placed(parts));
    QKV_RETURN_IF_ERROR(session->AttachCards(std::move(cards), sequence));
    injection.attach_us = watch.LapUs();
    return injection;
  }
  RestoreTimes times;
  QKV_RETURN_IF_ERROR(RestoreCards(parts, session, &times, sequence));
  injection.dequantize_us = times.dequantize_us;
  injection.inject_us = times.inject_us;
  return injection;
}

}  // namespace qkvshare
