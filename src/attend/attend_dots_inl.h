// Dot products of bytes, and of 16-bit numbers, which Highway lacks or does not have for all sets. Included once for
// each target, by attend_simd.cc.
//
// A set has a class of them, Pairs or Fours, with
//   KeySum<bits>  sums of four channels' products of as many keys as a vector of bytes has 32-bit lanes
//   ValueSum      the same of four tokens' products of as many channels
//   ValueCodes    codes of four tokens as ValueSum takes them
//   WeightSums    stores tokens' weights as ValueSum takes them, 8 bytes for four tokens, and adds them up: all, and
//   those
//                 of tokens whose grid is mid-tread. `rounded` has weight + kWeightBias in its lower 16 bits, the mask
//                 is what StoreMask made of ones for these tokens
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Vec = hn::Vec<D>;
template <class V>
using Of = hn::DFromV<V>;

// Vectors of a tile's bytes. At most a line of a tile: 16 tokens (or channels) of four bytes.
using Bytes = hn::CappedTag<uint8_t, 64>;
using Floats = hn::Repartition<float, Bytes>;
using Ints = hn::Repartition<int32_t, Bytes>;
template <class D8>
using IntsOf = hn::Repartition<int32_t, D8>;
template <class D8>
using WordsOf = hn::Repartition<int16_t, D8>;

template <class F, size_t... kIndex>
HWY_INLINE void ForIndicesIn(const F& f, std::index_sequence<kIndex...>) {
  (f(std::integral_constant<int, static_cast<int>(kIndex)>()), ...);
}
// f(0), f(1) .. as constants.
template <size_t kCount, class F>
HWY_INLINE void ForIndices(const F& f) {
  ForIndicesIn(f, std::make_index_sequence<kCount>());
}

// Calls block(row, rows) with rows a constant, at most kMost.
template <size_t kMost, class Block>
HWY_INLINE void ForRowBlocks(size_t rows, const Block& block) {
  size_t row = 0;
  for (; row + kMost <= rows; row += kMost) block(row, std::integral_constant<size_t, kMost>());
  if constexpr (kMost > 1) {
    if (row < rows) {
      ForRowBlocks<kMost - 1>(rows - row, [&](size_t r, auto n) HWY_ATTR { block(row + r, n); });
    }
  }
}

// Fetches what is read soon, from a larger cache, and what the next block reads, from memory: that lies as far ahead as
// this block is long, or is not needed. Only the second-level cache has room for as many fetches as memory takes.
HWY_INLINE void FetchAhead(const uint8_t* at, size_t near, size_t far) {
  __builtin_prefetch(at + near, 0, 3);
  __builtin_prefetch(at + far, 0, 2);
}

// The four bytes at `at`, over and over.
template <class D8>
HWY_INLINE Vec<D8> Repeated(D8 d, const void* at) {
  int32_t four;
  std::memcpy(&four, at, sizeof four);
  return hn::BitCast(d, hn::Set(IntsOf<D8>(), four));
}

// Has each step unpacked when it is due. GCC would unpack all of them first, for which AVX2 has too few registers.
template <int kBits, class V8>
HWY_INLINE void UnpackInTurn([[maybe_unused]] V8& packed) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kBits == 2) asm("" : "+x"(packed.raw));
#endif
}

// Of each byte the code that is `kIndex` places up from its low bits.
template <int kBits, int kIndex, class V8>
HWY_INLINE V8 Unpacked(V8 packed) {
  if constexpr (kBits == 8) {
    return packed;
  } else {
    const Of<V8> d;
    const hn::Repartition<uint16_t, Of<V8>> du;
    const auto mask = hn::Set(d, static_cast<uint8_t>((1 << kBits) - 1));
    if constexpr (kIndex == 0) return hn::And(packed, mask);
    return hn::And(hn::BitCast(d, hn::ShiftRight<kIndex * kBits>(hn::BitCast(du, packed))), mask);
  }
}

// ---- With products of two ----

// Sums of two products each of bytes, in 16 bits: those of two 8-bit codes would not fit.
template <class D8>
class ByteSum {
 public:
#if HWY_TARGET == HWY_NEON
  HWY_INLINE ByteSum() { Clear(); }
  HWY_INLINE void Clear() { low_ = high_ = hn::Zero(WordsOf<D8>()); }
  HWY_INLINE void Add(Vec<D8> codes, Vec<D8> signed_bytes) {
    const int8x16_t a = vreinterpretq_s8_u8(codes.raw);
    const int8x16_t b = vreinterpretq_s8_u8(signed_bytes.raw);
    low_.raw = vmlal_s8(low_.raw, vget_low_s8(a), vget_low_s8(b));
    high_.raw = vmlal_s8(high_.raw, vget_high_s8(a), vget_high_s8(b));
  }
  HWY_INLINE Vec<WordsOf<D8>> Total() const { return Vec<WordsOf<D8>>(vpaddq_s16(low_.raw, high_.raw)); }

 private:
  Vec<WordsOf<D8>> low_, high_;
#else
  HWY_INLINE ByteSum() { Clear(); }
  HWY_INLINE void Clear() { sum_ = hn::Zero(WordsOf<D8>()); }
  HWY_INLINE void Add(Vec<D8> codes, Vec<D8> signed_bytes) {
    if constexpr (sizeof(codes) == 64) {
      sum_ = hn::Add(sum_, Vec<WordsOf<D8>>{_mm512_maddubs_epi16(codes.raw, signed_bytes.raw)});
    } else {
      sum_ = hn::Add(sum_, Vec<WordsOf<D8>>{_mm256_maddubs_epi16(codes.raw, signed_bytes.raw)});
    }
  }
  HWY_INLINE Vec<WordsOf<D8>> Total() const { return sum_; }

 private:
  Vec<WordsOf<D8>> sum_;
#endif
};

// Sums of two products each of 16-bit numbers.
template <class D16>
class WordSum {
 public:
  using D32 = hn::Repartition<int32_t, D16>;

#if HWY_TARGET == HWY_NEON
  HWY_INLINE WordSum() { low_ = high_ = hn::Zero(D32()); }
  HWY_INLINE void Add(Vec<D16> a, Vec<D16> b) {
    low_.raw = vmlal_s16(low_.raw, vget_low_s16(a.raw), vget_low_s16(b.raw));
    high_.raw = vmlal_s16(high_.raw, vget_high_s16(a.raw), vget_high_s16(b.raw));
  }
  HWY_INLINE Vec<D32> Total() const { return Vec<D32>(vpaddq_s32(low_.raw, high_.raw)); }

 private:
  Vec<D32> low_, high_;
#else
  HWY_INLINE WordSum() { sum_ = hn::Zero(D32()); }
  HWY_INLINE void Add(Vec<D16> a, Vec<D16> b) {
    if constexpr (sizeof(a) == 64) {
      sum_ = hn::Add(sum_, Vec<D32>{_mm512_madd_epi16(a.raw, b.raw)});
    } else {
      sum_ = hn::Add(sum_, Vec<D32>{_mm256_madd_epi16(a.raw, b.raw)});
    }
  }
  HWY_INLINE Vec<D32> Total() const { return sum_; }

 private:
  Vec<D32> sum_;
#endif
};

// Sums in registers at once: 32 with AVX-512 and NEON, 16 with AVX2.
inline constexpr size_t kRegisters = HWY_TARGET == HWY_AVX2 ? 16 : 32;

struct Pairs {
  template <int kBits>
  static constexpr size_t kKeySums = kBits == 8 ? 4 : 8;
  template <int kBits>
  static constexpr size_t kKeyRows = HWY_TARGET == HWY_AVX2 ? kKeySums<kBits> : 4;
  static constexpr size_t kValueSums = 8;
  static constexpr size_t kValueRows = HWY_TARGET == HWY_AVX2 ? 8 : 4;

  // Pairs are added up in 16 bits for a while. 8-bit codes are taken as two of 4 bits.
  template <int kBits>
  struct KeySum {
    static constexpr int kParts = kBits == 8 ? 2 : 1;
    static constexpr int kLargest = kBits == 2 ? 3 : 15;
    static constexpr size_t kGroups = 32767 / (2 * 127 * kLargest) / (8 / kBits);  // before Widen

    WordSum<WordsOf<Bytes>> total;
    ByteSum<Bytes> part[kParts];

    HWY_INLINE KeySum() {}
    HWY_INLINE void Add(Vec<Bytes> codes, Vec<Bytes> query) {
      if constexpr (kParts == 1) {
        part[0].Add(codes, query);
      } else {
        part[0].Add(Unpacked<4, 0>(codes), query);
        part[1].Add(Unpacked<4, 1>(codes), query);
      }
    }
    HWY_INLINE void Widen() {
      int16_t factor = 1;
      for (auto& p : part) {
        total.Add(p.Total(), hn::Set(WordsOf<Bytes>(), factor));
        p.Clear();
        factor = 16;
      }
    }
    HWY_INLINE Vec<IntsOf<Bytes>> Total() const { return total.Total(); }
  };

  // Tokens 0 and 2, 1 and 3 of four.
  template <class D8>
  struct ValueCodes {
    Vec<WordsOf<D8>> even, odd;

    HWY_INLINE ValueCodes() {}
    HWY_INLINE ValueCodes(Vec<WordsOf<D8>> even_tokens, Vec<WordsOf<D8>> odd_tokens)
        : even(even_tokens), odd(odd_tokens) {}
  };
  template <int kBits, int kIndex, class V8>
  static HWY_INLINE ValueCodes<Of<V8>> UnpackValues(V8 packed) {
    const hn::Repartition<uint16_t, Of<V8>> du;
    const WordsOf<Of<V8>> d;
    const auto mask = hn::Set(du, static_cast<uint16_t>((1 << kBits) - 1));
    auto even = hn::BitCast(du, packed);
    if constexpr (kIndex > 0) even = hn::ShiftRight<kIndex * kBits>(even);
    auto odd = hn::ShiftRight<8 + kIndex * kBits>(hn::BitCast(du, packed));
    if constexpr ((kIndex + 1) * kBits < 8) odd = hn::And(odd, mask);
    return {hn::BitCast(d, hn::And(even, mask)), hn::BitCast(d, odd)};
  }

  template <class D8>
  struct ValueSum {
    WordSum<WordsOf<D8>> sum;

    HWY_INLINE ValueSum() {}
    HWY_INLINE void Add(const ValueCodes<D8>& codes, const int16_t* weights) {
      const WordsOf<D8> d;
      sum.Add(codes.even, hn::BitCast(d, Repeated(D8(), weights)));
      sum.Add(codes.odd, hn::BitCast(d, Repeated(D8(), weights + 2)));
    }
    HWY_INLINE Vec<IntsOf<D8>> Total() const { return sum.Total(); }
  };

  static constexpr int kWeightBias = 0;
  struct WeightSums {
    Vec<Ints> all, tread;

    HWY_INLINE WeightSums() { all = tread = hn::Zero(Ints()); }
    HWY_INLINE void Store(Vec<Ints> rounded, const int32_t* mask, int16_t* out) {
      const Ints d;
      const hn::Rebind<int16_t, Ints> d16;
      const auto weights = hn::And(rounded, hn::Set(d, 0x7FFF));
      // 0, 2, 1, 3 of each four.
      alignas(64) static constexpr int32_t kOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
      hn::StoreU(hn::DemoteTo(d16, hn::TableLookupLanes(weights, hn::SetTableIndices(d, kOrder))), d16, out);
      all = hn::Add(all, weights);
      tread = hn::Add(tread, hn::And(weights, hn::Load(d, mask)));
    }
    HWY_INLINE int32_t All() const { return hn::GetLane(hn::SumOfLanes(Ints(), all)); }
    HWY_INLINE int32_t Tread() const { return hn::GetLane(hn::SumOfLanes(Ints(), tread)); }
  };
  static HWY_INLINE void StoreMask(Vec<Ints> tread, int32_t* mask) { hn::Store(tread, Ints(), mask); }
};

// ---- With products of four ----

#if HWY_TARGET == HWY_AVX3

// AVX-512 VNNI, by the names of its instructions: not all CPUs of this target have them. A 256-bit one could also be
// encoded for AVX-VNNI, which these CPUs need not have.
template <class V32, class V8>
HWY_INLINE V32 AddFourProducts(V32 sum, V8 codes, V8 signed_bytes) {
  if constexpr (sizeof(V8) == 64) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(signed_bytes.raw));
  } else {
    asm("%{evex%} vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(signed_bytes.raw));
  }
  return sum;
}

struct Fours {
  template <int kBits>
  static constexpr size_t kKeySums = 16;
  template <int kBits>
  static constexpr size_t kKeyRows = 8;
  static constexpr size_t kValueSums = 14;
  static constexpr size_t kValueRows = 8;

  template <int kBits>
  struct KeySum {
    static constexpr size_t kGroups = kMaxHeadDim;

    Vec<IntsOf<Bytes>> total;

    HWY_INLINE KeySum() : total(hn::Zero(IntsOf<Bytes>())) {}
    HWY_INLINE void Add(Vec<Bytes> codes, Vec<Bytes> query) { total = AddFourProducts(total, codes, query); }
    HWY_INLINE void Widen() {}
    HWY_INLINE Vec<IntsOf<Bytes>> Total() const { return total; }
  };

  template <class D8>
  struct ValueCodes {
    Vec<D8> four;
  };
  template <int kBits, int kIndex, class V8>
  static HWY_INLINE ValueCodes<Of<V8>> UnpackValues(V8 packed) {
    return {Unpacked<kBits, kIndex>(packed)};
  }

  // Weights are 256 * high + low, both signed bytes.
  template <class D8>
  struct ValueSum {
    Vec<IntsOf<D8>> high, low;

    HWY_INLINE ValueSum() : high(hn::Zero(IntsOf<D8>())), low(hn::Zero(IntsOf<D8>())) {}
    HWY_INLINE void Add(const ValueCodes<D8>& codes, const int16_t* weights) {
      high = AddFourProducts(high, codes.four, Repeated(D8(), weights));
      low = AddFourProducts(low, codes.four, Repeated(D8(), weights + 2));
    }
    HWY_INLINE Vec<IntsOf<D8>> Total() const { return hn::Add(hn::ShiftLeft<8>(high), low); }
  };

  // The high byte of weight + 128 is `high`, the low one `low` + 128.
  static constexpr int kWeightBias = 128;
  using Split = hn::CappedTag<uint8_t, 32>;
  static HWY_INLINE Vec<Split> SplitWeights(Vec<Ints> biased) {
    const Split d;
    const hn::Repartition<int16_t, Split> d16;
    const Vec<decltype(d16)> words{_mm512_cvtepi32_epi16(biased.raw)};
    alignas(16) static constexpr uint8_t kOrder[16] = {1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14};
    return hn::TableLookupBytes(hn::BitCast(d, hn::Xor(words, hn::Set(d16, int16_t{0x80}))), hn::LoadDup128(d, kOrder));
  }

  // In turn of high and of low halves.
  struct WeightSums {
    Vec<IntsOf<Split>> all, tread;

    HWY_INLINE WeightSums() { all = tread = hn::Zero(IntsOf<Split>()); }
    HWY_INLINE void Store(Vec<Ints> rounded, const int32_t* mask, int16_t* out) {
      const Split d;
      const auto split = SplitWeights(rounded);
      hn::StoreU(split, d, reinterpret_cast<uint8_t*>(out));
      all = AddFourProducts(all, hn::Set(d, uint8_t{1}), split);
      tread = AddFourProducts(tread, hn::Load(d, reinterpret_cast<const uint8_t*>(mask)), split);
    }
    static HWY_INLINE int32_t Total(Vec<IntsOf<Split>> halves) {
      return hn::GetLane(hn::SumOfLanes(IntsOf<Split>(), hn::OddEven(halves, hn::ShiftLeft<8>(halves))));
    }
    HWY_INLINE int32_t All() const { return Total(all); }
    HWY_INLINE int32_t Tread() const { return Total(tread); }
  };
  static HWY_INLINE void StoreMask(Vec<Ints> tread, int32_t* mask) {
    const auto ones = hn::Add(hn::And(tread, hn::Set(Ints(), 0x101)), hn::Set(Ints(), kWeightBias));
    hn::Store(SplitWeights(ones), Split(), reinterpret_cast<uint8_t*>(mask));
  }
};

#elif HWY_TARGET == HWY_NEON && defined(__ARM_FEATURE_DOTPROD)

// Products of signed bytes: 8-bit codes are taken as two of 4 bits. Values gain less and stay with pairs.
struct Fours : Pairs {
  template <int kBits>
  struct KeySum {
    static constexpr size_t kGroups = kMaxHeadDim;

    Vec<IntsOf<Bytes>> low, high;

    HWY_INLINE KeySum() { low = high = hn::Zero(IntsOf<Bytes>()); }
    HWY_INLINE void Add(Vec<Bytes> codes, Vec<Bytes> query) {
      const int8x16_t q = vreinterpretq_s8_u8(query.raw);
      if constexpr (kBits == 8) {
        low.raw = vdotq_s32(low.raw, vreinterpretq_s8_u8(Unpacked<4, 0>(codes).raw), q);
        high.raw = vdotq_s32(high.raw, vreinterpretq_s8_u8(Unpacked<4, 1>(codes).raw), q);
      } else {
        low.raw = vdotq_s32(low.raw, vreinterpretq_s8_u8(codes.raw), q);
      }
    }
    HWY_INLINE void Widen() {}
    HWY_INLINE Vec<IntsOf<Bytes>> Total() const { return hn::Add(low, hn::ShiftLeft<4>(high)); }
  };
};

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
