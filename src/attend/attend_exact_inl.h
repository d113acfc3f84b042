// FP16 keys and values. Included once for each target, by attend_simd.cc.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

inline constexpr size_t kExactKeyRows = HWY_TARGET == HWY_AVX2 ? 6 : 8;
// More rows gain by keys that are transposed once; with few registers, few rows' sums have room beside the keys.
inline constexpr size_t kRowsInRegisters = HWY_TARGET == HWY_AVX2 ? 2 : 8;
inline constexpr size_t kExactValueRows = 8;
inline constexpr size_t kExactValueSums = kRegisters / 2;

template <class D>
HWY_INLINE Vec<D> FromHalves(D d, Vec<hn::Rebind<uint16_t, D>> halves) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), halves));
}

// `length` halves of a row that is read soon, and of one that the next block reads.
HWY_INLINE void FetchRowAhead(const Half* row, size_t length, size_t near, size_t far) {
  constexpr size_t kHalvesInLine = 64 / sizeof(Half);
  for (size_t c = 0; c < length; c += kHalvesInLine) {
    FetchAhead(reinterpret_cast<const uint8_t*>(row + c), near * sizeof(Half), far * sizeof(Half));
  }
}

// ---- Keys: transposed, so that no sum runs across a vector ----

// 128-bit blocks of eight channels, of two keys where a vector holds two.
using Halves = hn::CappedTag<uint16_t, 16>;
inline constexpr size_t kKeysAtOnce = hn::MaxLanes(Halves());
inline constexpr size_t kKeyVectors = kKeysAtOnce / hn::MaxLanes(Floats());

template <class D, size_t kN>
HWY_INLINE void WidenKeys(D, Vec<D> halves, Vec<Floats> (&out)[kN]) {
  const Floats df;
  if constexpr (kN == 1) {
    out[0] = FromHalves(df, halves);
  } else {
    const hn::Half<D> half;
    out[0] = FromHalves(df, hn::LowerHalf(half, halves));
    out[1] = FromHalves(df, hn::UpperHalf(half, halves));
  }
}

// Eight channels, each of kKeysAtOnce keys.
struct EightChannels {
  Vec<Floats> key[8][kKeyVectors];

  HWY_INLINE EightChannels() {}
  HWY_INLINE Vec<Floats> Get(size_t channel, size_t i) const { return key[channel][i]; }
};

struct ExactKeys {
  const Half* keys;
  size_t stride, tokens;  // keys from `tokens` on are zeros

  // Channels of a key, and of the key eight later.
  template <class D>
  HWY_INLINE Vec<D> Load([[maybe_unused]] D d, size_t token, size_t channel) const {
    const hn::CappedTag<uint16_t, 8> d8;
    const auto load = [&](size_t t)
                          HWY_ATTR { return t < tokens ? hn::LoadU(d8, keys + t * stride + channel) : hn::Zero(d8); };
    if constexpr (hn::MaxLanes(D()) == 16) {
      return hn::Combine(d, load(token + 8), load(token));
    } else {
      return load(token);
    }
  }

  HWY_INLINE EightChannels operator()(size_t channel) const {
    const Halves d;
    Vec<Halves> v[8], w[8];
    for (size_t i = 0; i < 8; ++i) v[i] = Load(d, i, channel);
    // Keys 4 apart, then 2, then 1 become neighbours.
    const auto interleave = [&](const Vec<Halves>(&from)[8], Vec<Halves>(&to)[8]) HWY_ATTR {
      for (size_t i = 0; i < 4; ++i) {
        to[2 * i] = hn::InterleaveLower(d, from[i], from[i + 4]);
        to[2 * i + 1] = hn::InterleaveUpper(d, from[i], from[i + 4]);
      }
    };
    interleave(v, w);
    interleave(w, v);
    interleave(v, w);
    EightChannels eight;
    for (size_t c = 0; c < 8; ++c) {
      WidenKeys(d, w[c], eight.key[c]);
    }
    return eight;
  }
};

// The same, transposed once for many rows.
struct TransposedKeys {
  alignas(64) std::array<float, kMaxHeadDim * kKeysAtOnce> keys;  // [dim, kKeysAtOnce]

  struct Eight {
    const float* at;
    HWY_INLINE Vec<Floats> Get(size_t channel, size_t i) const {
      return hn::Load(Floats(), at + channel * kKeysAtOnce + i * hn::MaxLanes(Floats()));
    }
  };

  HWY_INLINE void Fill(const ExactKeys& from, size_t dim) {
    const Floats d;
    for (size_t channel = 0; channel < dim; channel += 8) {
      const EightChannels eight = from(channel);
      float* at = &keys[channel * kKeysAtOnce];
      for (const auto& key : eight.key) {
        for (size_t i = 0; i < kKeyVectors; ++i, at += hn::MaxLanes(d)) hn::Store(key[i], d, at);
      }
    }
  }
  HWY_INLINE Eight operator()(size_t channel) const { return {&keys[channel * kKeysAtOnce]}; }
};

// Scores of kKeysAtOnce keys and kRows rows.
template <size_t kRows, class Keys>
HWY_INLINE void ExactKeyBlock(const Keys& keys, size_t dim, const float* queries, float* out, size_t stride) {
  const Floats d;
  Vec<Floats> sums[kRows][kKeyVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  for (size_t channel = 0; channel < dim; channel += 8) {
    const auto eight = keys(channel);
    for (size_t c = 0; c < 8; ++c) {
      for (size_t r = 0; r < kRows; ++r) {
        const auto q = hn::Set(d, queries[r * dim + channel + c]);
        for (size_t i = 0; i < kKeyVectors; ++i) {
          sums[r][i] = hn::MulAdd(eight.Get(c, i), q, sums[r][i]);
        }
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kKeyVectors; ++i) {
      hn::StoreU(sums[r][i], d, out + r * stride + i * hn::MaxLanes(d));
    }
  }
}

void ExactKeyDots(const Half* keys, size_t key_stride, size_t tokens, size_t dim, const float* queries, size_t rows,
                  float* out, size_t stride) {
  TransposedKeys transposed;
  for (size_t t = 0; t < AlignUp(tokens, kTileTokens); t += kKeysAtOnce) {
    const ExactKeys block = {keys + t * key_stride, key_stride, tokens > t ? tokens - t : 0};
    for (size_t i = 0; i < std::min(block.tokens, kKeysAtOnce); ++i) {
      FetchRowAhead(block.keys + i * key_stride, dim, kKeysAtOnce * key_stride, tokens * key_stride);
    }
    const auto scores = [&](const auto& source) HWY_ATTR {
      ForRowBlocks<kExactKeyRows>(rows, [&](size_t row, auto n) HWY_ATTR {
        ExactKeyBlock<n>(source, dim, queries + row * dim, out + row * stride + t, stride);
      });
    };
    if (rows <= kRowsInRegisters) {
      scores(block);
    } else {
      transposed.Fill(block, dim);
      scores(transposed);
    }
  }
}

// ---- Values ----

struct ExactValues {
  const Half* values;
  size_t value_stride, tokens, dim;
  const float* weights;
  size_t stride;
  float* acc;
};

template <size_t kRows, size_t kVectors, class D>
HWY_INLINE void ExactValueBlock(D d, const ExactValues& in, size_t row, size_t channel) {
  Vec<D> sums[kRows][kVectors];
  float* acc = in.acc + row * in.dim + channel;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kVectors; ++i) sums[r][i] = hn::LoadU(d, acc + r * in.dim + i * hn::MaxLanes(d));
  }
  for (size_t t = 0; t < in.tokens; ++t) {
    const Half* values = in.values + t * in.value_stride + channel;
    FetchRowAhead(values, kVectors * hn::MaxLanes(d), 8 * in.value_stride, in.tokens * in.value_stride);
    Vec<D> value[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      value[i] = FromHalves(d, hn::LoadU(hn::Rebind<uint16_t, D>(), values + i * hn::MaxLanes(d)));
    }
    for (size_t r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, in.weights[(row + r) * in.stride + t]);
      for (size_t i = 0; i < kVectors; ++i) sums[r][i] = hn::MulAdd(value[i], weight, sums[r][i]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kVectors; ++i) hn::StoreU(sums[r][i], d, acc + r * in.dim + i * hn::MaxLanes(d));
  }
}

template <size_t kRows>
HWY_INLINE void ExactValueRows(const ExactValues& in, size_t row) {
  constexpr size_t kChannels = hn::MaxLanes(Floats());
  constexpr size_t kVectors = std::clamp<size_t>(kExactValueSums / kRows, 1, 4);
  size_t channel = 0;
  for (; channel + kVectors * kChannels <= in.dim; channel += kVectors * kChannels) {
    ExactValueBlock<kRows, kVectors>(Floats(), in, row, channel);
  }
  for (; channel + kChannels <= in.dim; channel += kChannels) ExactValueBlock<kRows, 1>(Floats(), in, row, channel);
  if (channel < in.dim) ExactValueBlock<kRows, 1>(hn::CappedTag<float, 8>(), in, row, channel);
}

void ExactValueSums(const Half* values, size_t value_stride, size_t tokens, size_t dim, const float* weights,
                    size_t stride, size_t rows, float* acc) {
  const ExactValues in = {values, value_stride, tokens, dim, weights, stride, acc};
  ForRowBlocks<kExactValueRows>(rows, [&](size_t row, auto n) HWY_ATTR { ExactValueRows<n>(in, row); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
