#include "eval/speed_ways.h"

#include <algorithm>
#include <utility>

#include "eval/plain_state.h"

namespace qkvshare {
CacheType CacheTypeOf(const std::string& way) {
  if (way == kQ8Way) return CacheType::kQ8_0;
  return way == kQ4Way ? CacheType::kQ4_0 : CacheType::kF16;
}

Result<const SpeedWay*> SpeedWays::Find(const std::string& name) {
  const auto found = std::find_if(ways_.begin(), ways_.end(), [&](const SpeedWay& way) { return way.name == name; });
  if (found != ways_.end()) return &*found;
  QKV_ASSIGN_OR_RETURN(SpeedWay way, Make(name));
  return &ways_.emplace_back(std::move(way));
}

Result<const SpeedWay*> SpeedWays::Renew(const std::string& name) {
  std::erase_if(ways_, [&](const SpeedWay& way) { return way.name == name; });
  return Find(name);
}

Result<SpeedWay> SpeedWays::Make(const std::string& name) const {
  SpeedWay way{name, nullptr, nullptr, name == kNoCardWay || name == kLlamaWay ? 0 : context_.depth()};
  if (name == kFusedWay) {
    QKV_ASSIGN_OR_RETURN(way.session, Session::Create(context_.model(), context_.FusedOptions()));
    QKV_RETURN_IF_ERROR(SpeedContext::Attach(context_.card(), way.session.get()));
  } else if (name == kNoCardWay) {
    SessionOptions options = context_.Options(CacheType::kF16, /*tokens=*/0);
    options.fused = true;
    QKV_ASSIGN_OR_RETURN(way.session, Session::Create(context_.model(), options));
  } else if (name == kLlamaWay) {
    const SessionOptions options = context_.Options(CacheType::kF16, /*tokens=*/0);
    QKV_ASSIGN_OR_RETURN(way.plain, PlainContext::Create(context_.model(), options));
  } else {
    QKV_ASSIGN_OR_RETURN(way.plain, MakePlain(context_.model(), context_.Options(CacheTypeOf(name), context_.depth()),
                                              context_.exact()));
  }
  return way;
}

}  // namespace qkvshare
