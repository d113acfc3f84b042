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

// e^x for x < 88, within 2e-7 and 2e-8 * |x| of it; 0 or nearly so below -87, and for NaN. Of several vectors, step by
// step for all of them: each step waits for the one before.
template <size_t kN>
HWY_INLINE void Exp(V (&x)[kN]) {
  const Floats d;
  const Ints di;
  // x * log2(e) = n + r. Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
  constexpr float kLog2E = 1.44269504f;
  constexpr float kRound = 0x1.8p23f;
  V shifted[kN], p[kN];
  // 2^-127.2: n = -127 and a mantissa below one, which gives a negative number.
  for (size_t i = 0; i < kN; ++i) x[i] = hn::Max(x[i], hn::Set(d, -88.2f));
  for (size_t i = 0; i < kN; ++i) shifted[i] = hn::MulAdd(x[i], hn::Set(d, kLog2E), hn::Set(d, kRound));
  for (size_t i = 0; i < kN; ++i) {
    x[i] = hn::MulSub(x[i], hn::Set(d, kLog2E), hn::Sub(shifted[i], hn::Set(d, kRound)));
  }
  // 2^r for |r| <= 1/2, fitted for the least relative error (1.7e-7 with roundings) of those that give 1 for 0.
  for (size_t i = 0; i < kN; ++i) p[i] = hn::MulAdd(x[i], hn::Set(d, 0x1.5bba14p-10f), hn::Set(d, 0x1.3cea88p-7f));
  for (const float c : {0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f, 1.0f}) {
    for (size_t i = 0; i < kN; ++i) p[i] = hn::MulAdd(p[i], x[i], hn::Set(d, c));
  }
  for (size_t i = 0; i < kN; ++i) {
    const auto power = hn::Add(hn::BitCast(di, p[i]), hn::ShiftLeft<23>(hn::BitCast(di, shifted[i])));
    x[i] = hn::BitCast(d, hn::Max(power, hn::Zero(di)));
  }
}

// cap * tanh(x / cap).
HWY_INLINE V SoftCapped(V x, float cap) {
  const Floats d;
  const V one = hn::Set(d, 1.0f);
  const V twice = hn::Mul(x, hn::Set(d, 2.0f / cap));
  V e[1] = {hn::Min(hn::Max(twice, hn::Set(d, -40.0f)), hn::Set(d, 40.0f))};
  Exp(e);
  return hn::Mul(hn::Set(d, cap), hn::Div(hn::Sub(e[0], one), hn::Add(e[0], one)));
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
      const auto mask = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), half));
      s = hn::IfThenElse(hn::Eq(mask, masked), masked, hn::Add(s, mask));  // whatever the score, NaN too
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

// Sums are in the order of the places, so that masked ones at the end change nothing.
template <size_t kN>
HWY_INLINE V ExpVectors(V offset, float* scores, V sum) {
  const Floats d;
  V x[kN];
  for (size_t i = 0; i < kN; ++i) x[i] = hn::Sub(hn::LoadU(d, scores + i * kLanes), offset);
  Exp(x);
  for (size_t i = 0; i < kN; ++i) hn::StoreU(x[i], d, scores + i * kLanes);
  for (size_t i = 0; i < kN; ++i) sum = hn::Add(sum, x[i]);
  return sum;
}

// Scores become exp(score - most); returns their sum.
HWY_INLINE float ExpRow(float most, size_t tokens, float* scores) {
  constexpr size_t kN = HWY_TARGET == HWY_AVX2 ? 2 : 4;
  const Floats d;
  const V offset = hn::Set(d, most);
  V sum = hn::Zero(d);
  size_t t = 0;
  for (; t + kN * kLanes <= tokens; t += kN * kLanes) sum = ExpVectors<kN>(offset, scores + t, sum);
  for (; t < tokens; t += kLanes) sum = ExpVectors<1>(offset, scores + t, sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Rows whose maxima are found before their scores are changed, so that no row waits for a maximum.
inline constexpr size_t kRowsAtOnce = 8;

HWY_INLINE void SoftmaxRows(const SoftmaxBlock& block, size_t first, size_t rows) {
  const bool whole =
      block.softcap == 0 && block.mask == nullptr && block.first_visible == nullptr && block.end >= block.tokens;
  std::array<float, kRowsAtOnce> most;
  for (size_t r = 0; r < rows; ++r) {
    float* scores = block.scores + (first + r) * block.stride;
    most[r] = whole ? MaxOf(scores, block.tokens) : MaskRow(block, first + r, scores);
  }
  for (size_t r = 0; r < rows; ++r) {
    const size_t row = first + r;
    float* scores = block.scores + row * block.stride;
    const float before = block.max[row];
    block.rescale[row] = 1;
    if (most[r] > before) {
      block.rescale[row] = std::exp(before - most[r]);
      block.sum[row] *= block.rescale[row];
      block.max[row] = most[r];
    }
    if (block.max[row] == -std::numeric_limits<float>::infinity()) {
      std::fill_n(scores, block.tokens, 0.0f);
    } else {
      block.sum[row] += ExpRow(block.max[row], block.tokens, scores);
    }
  }
}

void Softmax(const SoftmaxBlock& block) {
  for (size_t row = 0; row < block.rows; row += kRowsAtOnce) {
    SoftmaxRows(block, row, std::min(kRowsAtOnce, block.rows - row));
  }
}

// ---- Weights ----

// Tokens' scales, for all rows of a block.
struct WeightScales {
  alignas(64) std::array<float, kMaxBlockTokens> step;
  alignas(64) std::array<int32_t, kMaxBlockTokens> tread;  // masks of a set's WeightSums
};

HWY_INLINE float LargestWeight(const float* in, size_t tokens, const WeightScales& scales) {
  const Floats d;
  const Ints di;
  auto largest = hn::Zero(di);  // numbers that are not negative have the order of their bits
  for (size_t t = 0; t < tokens; t += kLanes) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Mul(hn::LoadU(d, in + t), hn::Load(d, &scales.step[t]))));
  }
  return hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
}

// Returns the sum of weight * zero code.
template <class Dots>
HWY_INLINE float RoundWeights(const float* in, size_t tokens, const WeightScales& scales, float inverse, int bits,
                              int16_t* out) {
  const Floats d;
  const Ints di;
  // As in Exp.
  constexpr float kRound = 0x1.8p23f + Dots::kWeightBias;
  typename Dots::WeightSums sums;
  for (size_t t = 0; t < tokens; t += kLanes) {
    const V weight = hn::Mul(hn::LoadU(d, in + t), hn::Load(d, &scales.step[t]));
    const V rounded = hn::Add(hn::Mul(weight, hn::Set(d, inverse)), hn::Set(d, kRound));
    sums.Store(hn::BitCast(di, rounded), &scales.tread[t], out + t);
  }
  return static_cast<float>(sums.All()) * ZeroCode(CodeGrid::kMidRise, bits) + static_cast<float>(sums.Tread()) * 0.5f;
}

template <class Dots>
void QuantizeWeights(const float* in, size_t stride, size_t tokens, size_t rows, const RowScale* row_scales, int bits,
                     int16_t* out, float* unit, float* zeros) {
  const Floats d;
  const Ints di;
  WeightScales scales;
  for (size_t t = 0; t < tokens; t += kLanes) {
    const auto scale = hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, Floats>(), row_scales + t)));
    hn::Store(hn::Abs(hn::BitCast(d, scale)), d, &scales.step[t]);
    Dots::StoreMask(hn::BroadcastSignBit(scale), &scales.tread[t]);
  }
  // In `unit` for now, so that no row waits for its largest weight.
  for (size_t row = 0; row < rows; ++row) unit[row] = LargestWeight(in + row * stride, tokens, scales);
  for (size_t row = 0; row < rows; ++row, in += stride, out += stride) {
    const float most = unit[row];
    unit[row] = 0;
    zeros[row] = 0;
    if (!(most >= kSmallestQuantized)) {
      std::fill_n(out, tokens, int16_t{0});
      continue;
    }
    zeros[row] = RoundWeights<Dots>(in, tokens, scales, static_cast<float>(kLargestWeight) / most, bits, out);
    unit[row] = most / static_cast<float>(kLargestWeight);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
