#include "eval/speed_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "eval/median.h"
#include "eval/memory_use.h"
#include "eval/speed_ways.h"
#include "runtime/inject.h"

namespace qkvshare {
namespace {

constexpr uint32_t kOwnTokens = 64;
constexpr size_t kSuffix = 32;
constexpr size_t kReceivers = 5;  // of which the median counts
constexpr const char *kRestored = "restored", *kEmpty = "empty";

// Memory that only this process has, in bytes; 0 where the system does not tell.
size_t PrivateBytes() {
  TrimMemory();  // else it would hide what is allocated next
  const Result<MemoryUse> use = ReadMemoryUse();
  return use ? use->private_bytes : 0;
}

// A receiver after its suffix. Named as in ReceiverMemory.
Result<SpeedWay> MakeReceiver(const SpeedContext& context, const std::string& kind) {
  SpeedWay way{kind, nullptr, nullptr, kind == kEmpty ? 0 : context.depth()};
  SessionOptions options =
      kind == kFusedWay ? context.FusedOptions() : context.Options(CacheType::kF16, context.depth());
  options.context = static_cast<uint32_t>(context.depth()) + kOwnTokens;
  if (kind == kEmpty) {
    // As many rows as the fused one has: all of them where RoPE depends on the context's size.
    if (!context.model().rope_depends_on_context()) options.context = kOwnTokens;
    QKV_ASSIGN_OR_RETURN(way.plain, PlainContext::Create(context.model(), options));
  } else {
    QKV_ASSIGN_OR_RETURN(way.session, Session::Create(context.model(), options));
    const CardPart part{context.card(), 0, context.card()->tokens()};
    const InjectMode mode = kind == kFusedWay ? InjectMode::kFused : InjectMode::kRestore;
    QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, mode, way.session.get()).status());
  }
  QKV_RETURN_IF_ERROR(way.Prefill(context.After(kSuffix)));
  return way;
}

// What one more adds: of a third beside two others, since the first ones also bring what all share. Made several times.
Result<size_t> OneMore(const SpeedContext& context, const std::string& kind) {
  std::vector<SpeedWay> others;
  std::vector<size_t> more;
  for (size_t i = 0; i < 2 + kReceivers; ++i) {
    context.Step(fmt::format("memory, {} {}/{}", kind, i + 1, 2 + kReceivers));
    const size_t before = PrivateBytes();
    QKV_ASSIGN_OR_RETURN(SpeedWay receiver, MakeReceiver(context, kind));
    const size_t after = PrivateBytes();
    if (others.size() < 2) {
      others.push_back(std::move(receiver));
    } else {
      more.push_back(after - std::min(before, after));
    }
  }
  return Median(std::move(more));
}

size_t OwnRowBytes(const SpeedContext& context, size_t cells) {
  size_t values = 0;  // of a row, in all layers
  for (size_t layer = 0; layer < context.card()->layers(); ++layer) {
    const LayerShape& shape = context.card()->shape(layer);
    values += shape.row_values(Side::kKeys) + shape.row_values(Side::kValues);
  }
  return cells * values * sizeof(Half);
}

}  // namespace

Result<ReceiverMemory> MeasureMemory(const SpeedContext& context) {
  ReceiverMemory memory;
  QKV_ASSIGN_OR_RETURN(memory.fused, OneMore(context, kFusedWay));
  QKV_ASSIGN_OR_RETURN(memory.restored, OneMore(context, kRestored));
  QKV_ASSIGN_OR_RETURN(memory.empty, OneMore(context, kEmpty));
  QKV_ASSIGN_OR_RETURN(const SpeedWay empty, MakeReceiver(context, kEmpty));
  memory.own_rows = OwnRowBytes(context, empty.plain->cells());
  return memory;
}

}  // namespace qkvshare
