#include "eval/speed_ways.h"

#include <algorithm>
#include <utility>

#include "runtime/restore.h"

namespace qkvshare {

CacheType CacheTypeOf(const std::string& way) {
  if (way == kQ8) return CacheType::kQ8_0;
  return way == kQ4 ? CacheType::kQ4_0 : CacheType::kF16;
}

Result<const SpeedWay*> SpeedWays::Find(const std::string& name) {
  const auto found = std::find_if(ways_.begin(), ways_.end(), [&](const SpeedWay& way) { return way.name == name; });
  if (found != ways_.end()) return &*found;
  QKV_ASSIGN_OR_RETURN(SpeedWay way, Make(name));
  return &ways_.emplace_back(std::move(way));
}

Result<SpeedWay> SpeedWays::Make(const std::string& name) const {
  const bool fused = name == kFused, empty = name == kEmpty || name == kNoCard;
  const size_t depth = empty ? 0 : context_.depth();
  SessionOptions options = fused ? context_.FusedOptions() : context_.Options(CacheTypeOf(name), depth);
  if (name == kNoCard) options.fused = true;
  QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(context_.model(), options));
  RestoreTimes times;
  if (fused) QKV_RETURN_IF_ERROR(SpeedContext::Attach(context_.card(), session.get()));
  if (!fused && !empty) QKV_RETURN_IF_ERROR(RestoreCard(context_.exact(), depth, session.get(), &times));
  return SpeedWay{name, std::move(session), depth};
}

}  // namespace qkvshare
