// Queries as codes, softmax, weights as integers. Included once for each target, by attend_simd.cc.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

inline constexpr size_t kLanes = hn::MaxLanes(Floats());
using V = Vec<Floats>;
using Ints = hn::RebindToSigned<Floats>;

// ---- Queries ----

template <class D>
HWY_INLINE float AbsMax(D d, const float* x, size_t n) {
  auto most = hn::Zero(d);
  for (size_t i = 0; i < n; i += hn::MaxLanes(d)) most = hn::Max(most, hn::Abs(hn::LoadU(d, x + i)));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

float QuantizeQuery(const float* q, size_t dim, int8_t* codes, size_t stride, int32_t* sum) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<int32_t, decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  std::fill(codes + dim, codes + stride, int8_t{0});
  *sum = 0;
  const float most = AbsMax(d, q, dim);
  if (!(most >= kSmallestQuantized)) {
    std::fill_n(codes, dim, int8_t{0});
    return 0;
  }
  const auto inverse = hn::Set(d, 127.0f / most);
  auto total = hn::Zero(di);
  for (size_t c = 0; c < dim; c += hn::MaxLanes(d)) {
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, q + c), inverse));
    total = hn::Add(total, code);
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + c);
  }
  *sum = hn::GetLane(hn::SumOfLanes(di, total));
  return most / 127.0f;
}

// ---- Softmax ----

// e^x for x < 88, within 2e-7 and 2e-8 * |x| of it; 0 or nearly so below -87, and for NaN.
HWY_INLINE V Exp(V x) {
  const Floats d;
  const Ints di;
  // x * log2(e) = n + r. Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
  constexpr float kLog2E = 1.44269504f;
  constexpr float kRound = 0x1.8p23f;
  // 2^-127.2: n = -127 and a mantissa below one, which gives a negative number.
  x = hn::Max(x, hn::Set(d, -88.2f));
  const V shifted = hn::MulAdd(x, hn::Set(d, kLog2E), hn::Set(d, kRound));
  const V r = hn::MulSub(x, hn::Set(d, kLog2E), hn::Sub(shifted, hn::Set(d, kRound)));
  // 2^r for |r| <= 1/2, fitted for the least relative error (1.7e-7 with roundings) of those that give 1 for 0.
  V p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Max(hn::Add(hn::BitCast(di, p), exponent), hn::Zero(di)));
}

// cap * tanh(x / cap).
HWY_INLINE V SoftCapped(V x, float cap) {
  const Floats d;
  const V one = hn::Set(d, 1.0f);
  const V twice = hn::Mul(x, hn::Set(d, 2.0f / cap));
  const V e = Exp(hn::Min(hn::Max(twice, hn::Set(d, -40.0f)), hn::Set(d, 40.0f)));
  return hn::Mul(hn::Set(d, cap), hn::Div(hn::Sub(e, one), hn::Add(e, one)));
}

// Changes a row's scores to what softmax sees; returns the largest.
HWY_INLINE float MaskRow(const SoftmaxBlock& block, size_t row, float* scores) {
  const Floats d;
  const Ints di;
  const auto first = hn::Set(di, static_cast<int32_t>(block.first_visible == nullptr ? 0 : block.first_visible[row]));
  const auto end = hn::Set(di, static_cast<int32_t>(std::min(block.end, block.tokens)));
  V most = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V masked = most;
  for (size_t t = 0; t < block.tokens; t += kLanes) {
    V s = hn::LoadU(d, scores + t);
    if (block.softcap != 0) s = SoftCapped(s, block.softcap);
    if (block.mask != nullptr) {
      const hn::Rebind<uint16_t, Floats> dh;
      const auto half = hn::LoadU(dh, block.mask[row] + t);
      s = hn::Add(s, hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), half)));
    }
    const auto place = hn::Iota(di, static_cast<int32_t>(t));
    const auto seen = hn::AndNot(hn::Lt(place, first), hn::Lt(place, end));
    s = hn::IfThenElse(hn::RebindMask(d, seen), s, masked);
    hn::StoreU(s, d, scores + t);
    most = hn::Max(most, s);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

HWY_INLINE float MaxOf(const float* scores, size_t tokens) {
  const Floats d;
  V most = hn::LoadU(d, scores);
  for (size_t t = kLanes; t < tokens; t += kLanes) most = hn::Max(most, hn::LoadU(d, scores + t));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Scores become exp(score - most); returns their sum.
HWY_INLINE float ExpRow(float most, size_t tokens, float* scores) {
  const Floats d;
  V sum = hn::Zero(d);
  const V offset = hn::Set(d, most);
  for (size_t t = 0; t < tokens; t += kLanes) {
    const V weight = Exp(hn::Sub(hn::LoadU(d, scores + t), offset));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void Softmax(const SoftmaxBlock& block) {
  const bool whole =
      block.softcap == 0 && block.mask == nullptr && block.first_visible == nullptr && block.end >= block.tokens;
  for (size_t row = 0; row < block.rows; ++row) {
    float* scores = block.scores + row * block.stride;
    const float before = block.max[row];
    const float most = std::max(before, whole ? MaxOf(scores, block.tokens) : MaskRow(block, row, scores));
    block.rescale[row] = 1;
    if (most > before) {
      block.rescale[row] = std::exp(before - most);
      block.sum[row] *= block.rescale[row];
      block.max[row] = most;
    }
    if (most == -std::numeric_limits<float>::infinity()) {
      std::fill_n(scores, block.tokens, 0.0f);
    } else {
      block.sum[row] += ExpRow(most, block.tokens, scores);
    }
  }
}

// ---- Weights ----

template <class Dots>
void QuantizeWeights(const float* in, size_t stride, size_t tokens, size_t rows, const RowScale* scales, int bits,
                     int16_t* out, float* unit, float* zeros) {
  const Floats d;
  const Ints di;
  alignas(64) std::array<float, kMaxBlockTokens> steps;
  alignas(64) std::array<int32_t, kMaxBlockTokens> zeros2;  // twice the zero codes
  for (size_t t = 0; t < tokens; t += kLanes) {
    const auto scale = hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, Floats>(), scales + t)));
    hn::Store(hn::Abs(hn::BitCast(d, scale)), d, &steps[t]);
    hn::Store(hn::Sub(hn::Set(di, (1 << bits) - 1), hn::BroadcastSignBit(scale)), di, &zeros2[t]);
  }
  for (size_t row = 0; row < rows; ++row, in += stride, out += stride) {
    V largest = hn::Zero(d);
    for (size_t t = 0; t < tokens; t += kLanes) {
      largest = hn::Max(largest, hn::Mul(hn::LoadU(d, in + t), hn::Load(d, &steps[t])));
    }
    const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
    unit[row] = 0;
    zeros[row] = 0;
    if (!(most >= kSmallestQuantized)) {
      std::fill_n(out, tokens, int16_t{0});
      continue;
    }
    const V inverse = hn::Set(d, static_cast<float>(kLargestWeight) / most);
    auto sum = hn::Zero(di);
    for (size_t t = 0; t < tokens; t += kLanes) {
      const auto weight = hn::NearestInt(hn::Mul(hn::Mul(hn::LoadU(d, in + t), hn::Load(d, &steps[t])), inverse));
      Dots::StoreWeights(weight, out + t);
      sum = hn::Add(sum, hn::Mul(weight, hn::Load(di, &zeros2[t])));
    }
    unit[row] = most / static_cast<float>(kLargestWeight);
    // Below 2^31 even where all weights and zero codes are as large as they get, but not by an eighth.
    zeros[row] = 0.5f * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
