#include "runtime/inject.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/stopwatch.h"
#include "runtime/restore.h"

namespace qkvshare {
namespace {

constexpr std::array<InjectMode, 3> kModes = {InjectMode::kAuto, InjectMode::kFused, InjectMode::kRestore};

Result<Injection> Fuse(std::span<const CardPart> parts, Session* session, int sequence) {
  Injection injection;
  injection.mode = InjectMode::kFused;
  Stopwatch watch;
  std::vector<PlacedCard> cards;
  for (const CardPart& part : parts) {
    QKV_ASSIGN_OR_RETURN(std::shared_ptr<const AttachedCard> card, AttachedCard::Make(part.card));
    cards.push_back({std::move(card), part.offset, part.tokens});
  }
  QKV_RETURN_IF_ERROR(session->AttachCards(std::move(cards), sequence));
  injection.attach_us = watch.LapUs();
  return injection;
}

Result<Injection> Restore(std::span<const CardPart> parts, Session* session, int sequence) {
  Injection injection;
  RestoreTimes times;
  QKV_RETURN_IF_ERROR(RestoreCards(parts, session, &times, sequence));
  injection.dequantize_us = times.dequantize_us;
  injection.inject_us = times.inject_us;
  return injection;
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

Result<Injection> InjectCards(std::span<const CardPart> parts, InjectMode mode, Session* session, int sequence) {
  const Status& can_fuse = session->fused();
  if (mode == InjectMode::kFused && !can_fuse.ok()) return can_fuse;
  const bool fuse = mode != InjectMode::kRestore && can_fuse.ok();
  QKV_ASSIGN_OR_RETURN(Injection injection, fuse ? Fuse(parts, session, sequence) : Restore(parts, session, sequence));
  if (fuse) {
    injection.reason = mode == InjectMode::kFused ? "as asked for" : "the self-test passed";
  } else {
    injection.reason = mode == InjectMode::kRestore ? "as asked for" : can_fuse.message();
  }
  return injection;
}

}  // namespace qkvshare
