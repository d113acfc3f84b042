// Rotary position embedding (RoPE) as one layer applies it, and the turn that rows need when a card's keys lie at other
// positions than they were cached at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkvshare/status.h"

struct ggml_tensor;

namespace qkvshare {

// Which channels turn together; values as GGML_ROPE_TYPE_*.
enum class RopeMode : int32_t {
  kNorm = 0,  // 2 i and 2 i + 1
  kNeox = 2,  // i and i + dims / 2
};

// Parameters are ggml's; see ggml_rope_ext.
struct LayerRope {
  uint32_t dims = 0;   // channels of a head that turn, even; 0: the layer has no RoPE
  uint32_t first = 0;  // the first of them
  RopeMode mode = RopeMode::kNorm;
  float base = 0;
  float scale = 1;
  float ext_factor = 0;  // YaRN, with the betas and the original context
  float attn_factor = 1;
  float beta_fast = 0;
  float beta_slow = 0;
  int32_t original_context = 0;  // tokens
  std::vector<float> factors{};  // [dims / 2], each divides a pair's frequency; empty: all 1

  friend bool operator==(const LayerRope&, const LayerRope&) = default;
};

// Of a GGML_OP_ROPE node; `first` is the place in the node's own rows. kUnsupported names a mode with several positions
// a token (MROPE, IMROPE, VISION), and frequencies that are no numbers.
Result<LayerRope> ReadRope(const ggml_tensor* node);

// Radians by which each pair turns from one position to the next, [dims / 2]: linear in the position with YaRN too.
std::vector<double> RopeFrequencies(const LayerRope& rope);

// Turns queries so that they meet keys cached at positions p as if these lay at p + delta:
// q(pq) . k(pk + delta) = shifted q(pq) . k(pk). A pure rotation, by -delta positions: what attn_factor scales stays
// scaled once. Exactly nothing for delta 0. The rope is one of ReadRope's or FindRope's. Thread-safe.
// RopeShift(rope, -delta) moves keys from p to p + delta.
class RopeShift {
 public:
  RopeShift(const LayerRope& rope, int32_t delta);

  // In place: `count` rows of a head each, which start `stride` floats apart.
  void Apply(float* rows, size_t count = 1, size_t stride = 0) const;

 private:
  RopeMode mode_;
  size_t first_;
  std::vector<float> cos_, sin_;  // of each pair; empty where nothing turns
};

}  // namespace qkvshare
