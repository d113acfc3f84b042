// The kernels of attention on packed rows, on every set that this CPU has (set:0 is the fastest, names are in the last
// column).
//
// Decode: one step of a layer at 8,192 tokens, in blocks of 256, on cards in turn that together lie beyond all caches.
// Shapes are those of a 0.5B and a 1.5B model. Prefill: 64 rows. Times are per token and KV head; bytes are those of
// packed keys, values and scales; "of_read" compares them with the bytes that one thread reads in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attend/attend_kernels.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 8192;
constexpr size_t kBeyondCaches = size_t{256} << 20;  // bytes

// Bytes a second that one thread reads. Measured once.
double ReadBandwidth() {
  static const double bandwidth = [] {
    const std::vector<uint64_t> from(kBeyondCaches / sizeof(uint64_t), 1);
    double most = 0;
    for (int repeat = 0; repeat < 7; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      benchmark::DoNotOptimize(std::accumulate(from.begin(), from.end(), uint64_t{0}));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      most = std::max(most, static_cast<double>(kBeyondCaches) / seconds.count());
    }
    return most;
  }();
  return bandwidth;
}

template <typename T>
struct Aligned {
  std::vector<T> storage;
  T* data;

  explicit Aligned(size_t n) : storage(n + 64 / sizeof(T)) {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (AlignUp(address, 64) - address) / sizeof(T);
  }
};

// One KV head's rows of a card: as many copies as lie beyond the caches, and what the kernels work on.
class Head {
 public:
  Head(const AttendKernels& kernels, size_t dim, int bits, size_t rows, bool cached)
      : kernels_(kernels),
        dim_(dim),
        bits_(bits),
        rows_(rows),
        code_bytes_(bits == 16 ? kTokens * dim * 2 : kTokens / kTileTokens * TileBytes(kTileTokens, dim, bits)),
        bytes_(2 * code_bytes_ + (bits == 16 ? 0 : 2 * kTokens * sizeof(RowScale))),
        copies_(cached ? 1 : std::max<size_t>(2, kBeyondCaches / bytes_)),
        memory_(copies_ * bytes_),
        codes_(rows * PackedQueryStride(dim)),
        queries_(rows * dim),
        scores_(rows * kMaxBlockTokens),
        weights_(rows * kMaxBlockTokens),
        acc_(rows * dim) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    for (size_t i = 0; i < bytes_; ++i) memory_.data[i] = static_cast<uint8_t>(random());
    if (bits == 16) {
      auto* halves = reinterpret_cast<Half*>(memory_.data);
      for (size_t i = 0; i < bytes_ / 2; ++i) halves[i] = FloatToHalf(normal(random));
    } else {
      auto* scales = reinterpret_cast<RowScale*>(memory_.data + 2 * code_bytes_);
      for (size_t i = 0; i < 2 * kTokens; ++i) {
        const float step = 4.0f / static_cast<float>(1 << bits);  // values of about one
        scales[i] = MakeScale(step * (0.8f + 0.2f * std::fabs(normal(random))), CodeGrid::kMidRise);
      }
    }
    for (size_t i = 1; i < copies_; ++i) std::copy_n(memory_.data, bytes_, memory_.data + i * bytes_);
    for (size_t i = 0; i < rows * dim; ++i) queries_.data[i] = 3 * normal(random) / std::sqrt(static_cast<float>(dim));
    for (size_t row = 0; row < rows; ++row) {
      scale_[row] = kernels.quantize_query(queries_.data + row * dim, dim, codes_.data + row * PackedQueryStride(dim),
                                           PackedQueryStride(dim), &sum_[row]);
    }
    max_.fill(-std::numeric_limits<float>::infinity());
    Block(0);
  }

  size_t bytes() const { return bytes_; }
  // Bytes that dots and that sums read.
  size_t key_bytes() const { return bytes_ / 2; }
  size_t blocks() const { return kTokens / kMaxBlockTokens; }

  void Dots(size_t block) {
    if (bits_ == 16) {
      const auto* keys = reinterpret_cast<const Half*>(copy_) + block * kMaxBlockTokens * dim_;
      return kernels_.exact_key_dots(keys, dim_, kMaxBlockTokens, dim_, queries_.data, rows_, scores_.data,
                                     kMaxBlockTokens);
    }
    kernels_.key_dots(copy_ + block * TilesBytes(), bits_, kTiles, dim_, scales() + block * kMaxBlockTokens,
                      {codes_.data, PackedQueryStride(dim_), scale_.data(), sum_.data(), bias_.data()}, rows_,
                      scores_.data, kMaxBlockTokens);
  }
  void Softmax() {
    SoftmaxBlock block;
    block.rows = rows_;
    block.tokens = block.end = block.stride = kMaxBlockTokens;
    block.scores = scores_.data;
    block.max = max_.data();
    block.sum = sums_.data();
    block.rescale = rescale_.data();
    kernels_.softmax(block);
  }
  void Weights(size_t block) {
    if (bits_ == 16) return;
    kernels_.quantize_weights(scores_.data, kMaxBlockTokens, kMaxBlockTokens, rows_,
                              scales() + kTokens + block * kMaxBlockTokens, bits_, weights_.data, unit_.data(),
                              zeros_.data());
  }
  void Sums(size_t block) {
    if (bits_ == 16) {
      const auto* values = reinterpret_cast<const Half*>(copy_ + code_bytes_) + block * kMaxBlockTokens * dim_;
      return kernels_.exact_value_sums(values, dim_, kMaxBlockTokens, dim_, scores_.data, kMaxBlockTokens, rows_,
                                       acc_.data);
    }
    kernels_.value_sums(copy_ + code_bytes_ + block * TilesBytes(), bits_, kTiles, dim_, weights_.data, kMaxBlockTokens,
                        unit_.data(), zeros_.data(), rows_, acc_.data);
  }
  void Block(size_t block) {
    Dots(block);
    Softmax();
    Weights(block);
    Sums(block);
  }
  void NextCopy() {
    turn_ = (turn_ + 1) % copies_;
    copy_ = memory_.data + turn_ * bytes_;
  }

 private:
  static constexpr size_t kTiles = kMaxBlockTokens / kTileTokens;
  size_t TilesBytes() const { return kTiles * TileBytes(kTileTokens, dim_, bits_); }
  const RowScale* scales() const { return reinterpret_cast<const RowScale*>(copy_ + 2 * code_bytes_); }

  const AttendKernels& kernels_;
  size_t dim_;
  int bits_;
  size_t rows_, code_bytes_, bytes_, copies_, turn_ = 0;
  Aligned<uint8_t> memory_;
  const uint8_t* copy_ = memory_.data;
  Aligned<int8_t> codes_;
  Aligned<float> queries_, scores_;
  Aligned<int16_t> weights_;
  Aligned<float> acc_;
  std::array<float, 64> scale_{}, bias_{}, max_{}, sums_{}, rescale_{}, unit_{}, zeros_{};
  std::array<int32_t, 64> sum_{};
};

enum Part : int64_t { kWhole, kCached, kDots, kSoftmax, kWeights, kSums };

// Arguments: set, head size, rows, bits, part.
void BM_Attend(benchmark::State& state) {
  const AttendKernels& kernels = *AvailableAttendKernels()[static_cast<size_t>(state.range(0))];
  const auto dim = static_cast<size_t>(state.range(1));
  const auto rows = static_cast<size_t>(state.range(2));
  const auto bits = static_cast<int>(state.range(3));
  const auto part = static_cast<Part>(state.range(4));
  // Parts are timed on rows in the caches, the whole on rows that are not.
  Head head(kernels, dim, bits, rows, part != kWhole);
  for ([[maybe_unused]] auto _ : state) {
    for (size_t block = 0; block < head.blocks(); ++block) {
      switch (part) {
        case kWhole:
        case kCached: head.Block(block); break;
        case kDots: head.Dots(block); break;
        case kSoftmax: head.Softmax(); break;
        case kWeights: head.Weights(block); break;
        case kSums: head.Sums(block); break;
      }
    }
    head.NextCopy();
    benchmark::ClobberMemory();
  }
  static constexpr std::array<const char*, 6> kNames = {"whole",   "whole, in caches", "dots",
                                                        "softmax", "weights",          "sums"};
  state.SetLabel(std::string(kernels.name) + " " + kNames[part]);
  const auto tokens = static_cast<double>(state.iterations()) * static_cast<double>(kTokens);
  using benchmark::Counter;
  state.counters["tokens"] = Counter(tokens, Counter::kIsRate);
  if (part == kDots || part == kSums) {
    state.counters["mul_adds"] = Counter(tokens * static_cast<double>(dim * rows), Counter::kIsRate);
  }
  if (part == kWhole) {
    const auto bytes = static_cast<double>(state.iterations()) * static_cast<double>(head.bytes());
    state.SetBytesProcessed(static_cast<int64_t>(bytes));
    state.counters["of_read"] = Counter(bytes / ReadBandwidth(), Counter::kIsRate);
  }
}

std::vector<int64_t> Sets() {
  std::vector<int64_t> sets(AvailableAttendKernels().size());
  std::iota(sets.begin(), sets.end(), 0);
  return sets;
}

void Shapes(benchmark::internal::Benchmark* b, const std::vector<std::array<int64_t, 2>>& shapes) {
  b->ArgNames({"set", "dim", "rows", "bits", "part"})->Unit(benchmark::kMicrosecond);
  for (const int64_t set : Sets()) {
    for (const auto& [dim, rows] : shapes) {
      for (const int64_t bits : {2, 4, 8, 16}) {
        for (const int64_t part : {kWhole, kCached, kDots, kSoftmax, kWeights, kSums}) {
          if (bits != 16 || part != kWeights) b->Args({set, dim, rows, bits, part});
        }
      }
    }
  }
}
BENCHMARK(BM_Attend)->Name("Decode")->Apply([](auto* b) { Shapes(b, {{64, 7}, {128, 6}, {64, 1}}); });
BENCHMARK(BM_Attend)->Name("Prefill")->Apply([](auto* b) { Shapes(b, {{64, 64}, {128, 64}}); });

// What "of_read" is a part of.
void BM_Read(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(static_cast<double>(kBeyondCaches) / ReadBandwidth());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBeyondCaches));
}
BENCHMARK(BM_Read)->Name("Read")->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace qkvshare
