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

inline constexpr size_t kExactKeyRows = 8;
inline constexpr size_t kExactValueRows = 8;
inline constexpr size_t kExactValueSums = kRegisters / 2;

// ---- Keys: transposed, so that no sum runs across a vector ----

// 128-bit blocks of eight channels, of two keys where a vector holds two.
using Halves = hn::CappedTag<uint16_t, 16>;
using HalfFloats = hn::CappedTag<float, 16>;
inline constexpr size_t kKeysAtOnce = hn::MaxLanes(Halves());

// Eight channels of a key, and of the key eight later; zeros for those from `tokens` on.
template <class D>
HWY_INLINE Vec<D> LoadEight([[maybe_unused]] D d, const Half* keys, size_t stride, size_t token, size_t tokens) {
  const hn::CappedTag<uint16_t, 8> d8;
  const auto load = [&](size_t t) HWY_ATTR { return t < tokens ? hn::LoadU(d8, keys + t * stride) : hn::Zero(d8); };
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::Combine(d, load(token + 8), load(token));
  } else {
    return load(token);
  }
}

// Eight channels of kKeysAtOnce keys -> floats [8, kKeysAtOnce].
HWY_INLINE void TransposeEight(const Half* keys, size_t stride, size_t tokens, float* out) {
  const Halves d;
  Vec<Halves> v[8], w[8];
  for (size_t i = 0; i < 8; ++i) v[i] = LoadEight(d, keys, stride, i, tokens);
  // Keys 4 apart, then 2, then 1 become neighbours.
  for (size_t i = 0; i < 4; ++i) {
    w[2 * i] = hn::InterleaveLower(d, v[i], v[i + 4]);
    w[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + 4]);
  }
  for (size_t i = 0; i < 4; ++i) {
    v[2 * i] = hn::InterleaveLower(d, w[i], w[i + 4]);
    v[2 * i + 1] = hn::InterleaveUpper(d, w[i], w[i + 4]);
  }
  for (size_t i = 0; i < 4; ++i) {
    w[2 * i] = hn::InterleaveLower(d, v[i], v[i + 4]);
    w[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + 4]);
  }
  const Floats df;
  for (size_t c = 0; c < 8; ++c) {
    alignas(32) std::array<Half, kKeysAtOnce> row;
    hn::Store(w[c], d, row.data());
    for (size_t t = 0; t < kKeysAtOnce; t += hn::MaxLanes(df)) {
      const auto half = hn::LoadU(hn::Rebind<uint16_t, Floats>(), &row[t]);
      hn::StoreU(hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), half)), df,
                 out + c * kKeysAtOnce + t);
    }
  }
}

// Scores of kKeysAtOnce keys [dim, kKeysAtOnce] and kRows rows.
template <size_t kRows>
HWY_INLINE void ExactKeyBlock(const float* keys, size_t dim, const float* queries, float* out, size_t stride) {
  const Floats d;
  constexpr size_t kVectors = kKeysAtOnce / hn::MaxLanes(Floats());
  Vec<Floats> sums[kRows][kVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  for (size_t c = 0; c < dim; ++c) {
    Vec<Floats> key[kVectors];
    for (size_t i = 0; i < kVectors; ++i) key[i] = hn::Load(d, keys + c * kKeysAtOnce + i * hn::MaxLanes(d));
    for (size_t r = 0; r < kRows; ++r) {
      const auto q = hn::Set(d, queries[r * dim + c]);
      for (size_t i = 0; i < kVectors; ++i) sums[r][i] = hn::MulAdd(key[i], q, sums[r][i]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kVectors; ++i) hn::StoreU(sums[r][i], d, out + r * stride + i * hn::MaxLanes(d));
  }
}

void ExactKeyDots(const Half* keys, size_t key_stride, size_t tokens, size_t dim, const float* queries, size_t rows,
                  float* out, size_t stride) {
  alignas(64) std::array<float, kMaxHeadDim * kKeysAtOnce> transposed;
  for (size_t t = 0; t < AlignUp(tokens, kTileTokens); t += kKeysAtOnce) {
    const size_t left = tokens > t ? tokens - t : 0;
    for (size_t c = 0; c < dim; c += 8) {
      TransposeEight(keys + t * key_stride + c, key_stride, left, &transposed[c * kKeysAtOnce]);
    }
    ForRowBlocks<kExactKeyRows>(rows, [&](size_t row, auto n) HWY_ATTR {
      ExactKeyBlock<n>(transposed.data(), dim, queries + row * dim, out + row * stride + t, stride);
    });
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
    Vec<D> value[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      const auto half =
          hn::LoadU(hn::Rebind<uint16_t, D>(), in.values + t * in.value_stride + channel + i * hn::MaxLanes(d));
      value[i] = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
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
