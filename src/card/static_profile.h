// A static profile: channel means and scales of a model's keys, measured once on other text (`qkvshare calibrate`), so
// that cards can be packed before their prompt is finished, and cards of one model share them. A small file, pinned to
// the model (docs/profile_format.md).
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

struct StaticProfile {
  ModelIdentity identity;  // first_rope is not stored
  uint64_t tokens = 0;     // that it was measured on
  std::vector<LayerShape> shapes;
  KeyProfiles keys;                     // [layer][kv_head]
  std::vector<LayerAdjustment> layers;  // [layer]
  Digest id{};                          // BLAKE2b of the file; set by reading and writing
};

// The file's bytes. kInvalidArgument where the parts do not fit each other. Sets profile->id.
Result<std::vector<uint8_t>> StaticProfileBytes(StaticProfile* profile);
// Checks every rule. kCorrupt names the rule, kUnsupported a later version.
Result<StaticProfile> ParseStaticProfile(ByteSpan bytes);
// The same from a file; messages name it.
Result<StaticProfile> OpenStaticProfile(const std::string& path);
// Atomic, mode 0600.
Status WriteStaticProfile(const std::string& path, StaticProfile* profile);

// kMismatch where it is of another model, RoPE or shape.
Status CheckProfileFits(const StaticProfile& profile, const ModelIdentity& identity,
                        const std::vector<LayerShape>& shapes);

}  // namespace qkvshare
