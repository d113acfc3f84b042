// Row kernels and blocks on every set of kernels that this CPU has (set:0 is the fastest, names are in the last
// column), and whole cards on the fastest.
//
// Times of rows and blocks are per row; bytes are those of the FP16 rows. "of_memcpy" compares them with the bytes that
// as many threads copy in the same run, in buffers beyond all caches.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "card/card.h"
#include "card/card_test_util.h"
#include "quant/block.h"
#include "quant/error_metric.h"
#include "quant/kernels.h"

namespace qkvshare {
namespace {

constexpr size_t kBeyondCaches = size_t{256} << 20;  // bytes

// Bytes a second that `threads` copies write. Measured once.
double CopyBandwidth(int threads) {
  static std::map<int, double> measured;
  double& bandwidth = measured[threads];
  if (bandwidth > 0) return bandwidth;
  const auto count = static_cast<size_t>(threads);
  std::vector<std::vector<uint8_t>> from(count, std::vector<uint8_t>(kBeyondCaches, 1));
  std::vector<std::vector<uint8_t>> to(count, std::vector<uint8_t>(kBeyondCaches, 2));
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> copies;
    for (size_t i = 0; i < count; ++i) {
      copies.emplace_back([&, i] { std::memcpy(to[i].data(), from[i].data(), kBeyondCaches); });
    }
    for (std::thread& copy : copies) copy.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    bandwidth = std::max(bandwidth, static_cast<double>(count * kBeyondCaches) / seconds.count());
  }
  return bandwidth;
}

void Count(benchmark::State& state, size_t items, size_t item_bytes) {
  const auto total = state.iterations() * static_cast<int64_t>(items);
  state.SetItemsProcessed(total);
  state.SetBytesProcessed(total * static_cast<int64_t>(item_bytes));
}

std::vector<Half> GaussianRows(size_t values) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<Half> rows(values);
  for (Half& x : rows) x = FloatToHalf(normal(random));
  return rows;
}

ChannelProfile Profile(size_t dim) {
  return {std::vector<Half>(dim, FloatToHalf(0.5f)), std::vector<Half>(dim, FloatToHalf(2.0f))};
}

// ---- Rows, which stay in the first-level cache ----

// Arguments of a benchmark of rows: set, head size, bits.
const Kernels& SetOf(benchmark::State& state) {
  const Kernels& kernels = *AvailableKernels()[static_cast<size_t>(state.range(0))];
  state.SetLabel(kernels.name);
  return kernels;
}
size_t DimOf(const benchmark::State& state) { return static_cast<size_t>(state.range(1)); }
int BitsOf(const benchmark::State& state) { return static_cast<int>(state.range(2)); }

void BM_QuantizeRow(benchmark::State& state) {
  const Kernels& kernels = SetOf(state);
  const size_t dim = DimOf(state);
  const int bits = BitsOf(state);
  constexpr size_t kRows = 64;
  const std::vector<Half> halves = GaussianRows(kRows * dim);
  std::vector<float> rows(halves.size());
  std::transform(halves.begin(), halves.end(), rows.begin(), HalfToFloat);
  std::vector<uint8_t> codes(dim);
  RowScale scale = 0;
  size_t row = 0;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(kernels.quantize_row(&rows[row++ % kRows * dim], dim, bits, codes.data(), &scale));
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}

// Of queries in as many directions as there are channels, which is as slow as others.
ErrorMetric Metric(size_t dim) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> moments(dim * dim);
  std::vector<float> query(dim);
  for (size_t i = 0; i < 4 * dim; ++i) {
    for (float& x : query) x = normal(random);
    AddMoments(query, moments.data());
  }
  return *MakeErrorMetric(moments, dim, 4 * dim);
}

void BM_RoundTile(benchmark::State& state) {
  const Kernels& kernels = SetOf(state);
  const size_t dim = DimOf(state);
  const ErrorMetric metric = Metric(dim);
  alignas(64) std::array<float, kTileTokens * kMaxHeadDim> x;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  for (float& value : x) value = normal(random);
  std::vector<uint8_t> codes(kTileTokens * dim);
  std::array<RowScale, kTileTokens> scales;
  std::array<float, kTileTokens> costs;
  for ([[maybe_unused]] auto _ : state) {
    kernels.round_tile(metric, x.data(), kTileTokens, BitsOf(state), codes.data(), scales.data(), costs.data());
    benchmark::ClobberMemory();
  }
  Count(state, kTileTokens, dim * sizeof(Half));
}

void BM_TransformRow(benchmark::State& state) {
  const Kernels& kernels = SetOf(state);
  const size_t dim = DimOf(state);
  const std::vector<Half> row = GaussianRows(dim);
  alignas(64) std::array<float, kMaxHeadDim> x;
  const RowSpace space = {dim, RotationBlock(dim), nullptr, nullptr, nullptr};
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(kernels.transform_row(row.data(), space, x.data()));
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}

void BM_RestoreRow(benchmark::State& state) {
  const Kernels& kernels = SetOf(state);
  const size_t dim = DimOf(state);
  const int bits = BitsOf(state);
  const std::vector<uint8_t> codes(dim, 3);
  std::vector<Half> row(dim);
  const RowSpace space = {dim, RotationBlock(dim), nullptr, nullptr, nullptr};
  for ([[maybe_unused]] auto _ : state) {
    kernels.restore_row(codes.data(), bits, MakeScale(0.25f, CodeGrid::kMidRise), space, row.data());
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}

std::vector<int64_t> Sets() {
  std::vector<int64_t> sets(AvailableKernels().size());
  std::iota(sets.begin(), sets.end(), 0);
  return sets;
}
BENCHMARK(BM_TransformRow)->ArgNames({"set", "dim"})->ArgsProduct({Sets(), {64, 128}});
BENCHMARK(BM_QuantizeRow)->ArgNames({"set", "dim", "bits"})->ArgsProduct({Sets(), {64, 128}, {2, 4, 8}});
BENCHMARK(BM_RoundTile)->ArgNames({"set", "dim", "bits"})->ArgsProduct({Sets(), {64, 128}, {2, 4}});
BENCHMARK(BM_RestoreRow)->ArgNames({"set", "dim", "bits"})->ArgsProduct({Sets(), {64, 128}, {2, 4, 8}});

// ---- Blocks: 8,192 tokens of one of two heads. Packed ones fit the caches, the rows do not ----

Side SideOf(const benchmark::State& state) { return state.range(3) == 0 ? Side::kKeys : Side::kValues; }

struct Block {
  static constexpr size_t kTokens = 8192;
  static constexpr size_t kHeads = 2;

  BlockCodec codec;
  TokenOrder order;
  BlockLayout layout;
  size_t stride;
  std::vector<Half> rows;  // of as many layers as fit

  explicit Block(benchmark::State& state) : Block(SetOf(state), SideOf(state), DimOf(state), BitsOf(state)) {}
  Block(const Kernels& kernels, Side side, size_t dim, int bits)
      : codec(kernels, side, dim, side == Side::kKeys ? Profile(dim) : ChannelProfile()),
        order(OrderTokens(UniformPlan(kTokens, {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits)}, 0))),
        layout(BlockLayout::Make(dim, std::array{bits}, order.level_size)),
        stride(kHeads * dim),
        rows(kBeyondCaches / sizeof(Half), FloatToHalf(1.0f)) {}

  size_t layers() const { return rows.size() / (kTokens * stride); }
  Half* layer(size_t i) { return &rows[i % layers() * kTokens * stride]; }
};

void CountRows(benchmark::State& state, size_t dim) {
  Count(state, Block::kTokens, dim * sizeof(Half));
  const auto bytes = static_cast<double>(state.iterations()) * static_cast<double>(Block::kTokens * dim * sizeof(Half));
  state.counters["of_memcpy"] = benchmark::Counter(bytes / CopyBandwidth(state.threads()), benchmark::Counter::kIsRate);
}

void BM_PackBlock(benchmark::State& state) {
  const size_t dim = DimOf(state);
  Block block(state);
  const std::vector<Half> random = GaussianRows(Block::kTokens * block.stride);
  for (size_t i = 0; i < block.layers(); ++i) std::copy(random.begin(), random.end(), block.layer(i));
  std::vector<uint8_t> packed(block.layout.bytes);
  size_t layer = 0;
  for ([[maybe_unused]] auto _ : state) {
    const HeadRows rows = {block.layer(layer++), block.stride, Block::kTokens, dim};
    if (!block.codec.Pack(rows, block.order, block.layout, packed.data()).ok()) state.SkipWithError("pack failed");
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
}

void BM_UnpackBlock(benchmark::State& state) {
  const size_t dim = DimOf(state);
  Block block(state);
  const std::vector<Half> random = GaussianRows(Block::kTokens * dim);
  std::vector<uint8_t> packed(block.layout.bytes);
  if (!block.codec.Pack({random.data(), dim, Block::kTokens, dim}, block.order, block.layout, packed.data()).ok()) {
    state.SkipWithError("pack failed");
  }
  size_t turn = 0;
  for ([[maybe_unused]] auto _ : state) {
    // Head after head of a layer, as a card is unpacked.
    Half* out = block.layer(turn / Block::kHeads) + turn % Block::kHeads * dim;
    ++turn;
    if (!block.codec.Unpack(packed.data(), block.order, block.layout, Block::kTokens, out, block.stride).ok()) {
      state.SkipWithError("unpack failed");
    }
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
}

// Keys (0) have a profile, values (1) none.
void AllBlocks(benchmark::internal::Benchmark* block) {
  block->ArgNames({"set", "dim", "bits", "side"})->ArgsProduct({Sets(), {64, 128}, {2, 4, 8}, {0, 1}});
  block->Threads(1)->Threads(2)->UseRealTime();
  block->Setup([](const benchmark::State& state) { CopyBandwidth(state.threads()); });
}
BENCHMARK(BM_PackBlock)->Apply(AllBlocks);
BENCHMARK(BM_UnpackBlock)->Apply(AllBlocks);

void BM_Memcpy(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const double bytes = static_cast<double>(threads) * static_cast<double>(kBeyondCaches);
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(bytes / CopyBandwidth(threads));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

BENCHMARK(BM_Memcpy)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(1);

// ---- Cards: 1,024 tokens of 24 layers with 2 KV heads of 64, the shape of a 0.5B model ----

constexpr size_t kTokens = 1024;

const card_test::SyntheticKv& CardRows() {
  static const card_test::SyntheticKv kv(kTokens, std::vector<LayerShape>(24, LayerShape{2, 64, 64}), 1);
  return kv;
}

Level LevelOf(const benchmark::State& state) { return kLevels[static_cast<size_t>(state.range(0))]; }

void BM_PackCard(benchmark::State& state) {
  const KvView kv = CardRows().view();
  const KeyProfiles profiles = MeasureKeyProfiles(kv, kSinkTokens, 1);
  const CardContent content = card_test::Content(kTokens);
  const BitPlan plan = UniformPlan(kTokens, LevelOf(state), kSinkTokens);
  for ([[maybe_unused]] auto _ : state)
    benchmark::DoNotOptimize(PackCard(kv, plan, profiles, content, 1)->file_bytes());
  Count(state, kTokens, kv.bytes() / kTokens);
  state.SetLabel(LevelName(LevelOf(state)) + ", 1 thread");
}
BENCHMARK(BM_PackCard)
    ->ArgName("level")
    ->DenseRange(0, static_cast<int>(kLevels.size()) - 1)
    ->Unit(benchmark::kMillisecond);

void BM_MeasureKeyProfiles(benchmark::State& state) {
  const KvView kv = CardRows().view();
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(MeasureKeyProfiles(kv, kSinkTokens, 1).size());
  Count(state, kTokens, kv.bytes() / kTokens / 2);
}
BENCHMARK(BM_MeasureKeyProfiles)->Unit(benchmark::kMillisecond);

std::vector<uint8_t> PackedBytes(Level level) {
  const KvView kv = CardRows().view();
  const BitPlan plan = UniformPlan(kTokens, level, kSinkTokens);
  return PackCard(kv, plan, MeasureKeyProfiles(kv, kSinkTokens, 2), card_test::Content(kTokens), 2)->Bytes();
}

void BM_UnpackCard(benchmark::State& state) {
  const Result<Card> card = Card::FromBytes(PackedBytes(LevelOf(state)));
  std::vector<Half> out(kTokens * 128);
  for ([[maybe_unused]] auto _ : state) {
    for (size_t layer = 0; layer < card->layers(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        if (!card->Unpack(**SelectKernels(), layer, side, kTokens, out.data()).ok())
          state.SkipWithError("unpack failed");
        benchmark::ClobberMemory();
      }
    }
  }
  Count(state, kTokens, card->fp16_bytes() / kTokens);
  state.SetLabel(LevelName(LevelOf(state)) + ", 1 thread");
}
BENCHMARK(BM_UnpackCard)
    ->ArgName("level")
    ->DenseRange(0, static_cast<int>(kLevels.size()) - 1)
    ->Unit(benchmark::kMillisecond);

// Opening checks every byte's XXH3 checksum; verifying also every BLAKE2b digest. Bytes are the card's.
void BM_OpenCard(benchmark::State& state) {
  const std::vector<uint8_t> bytes = PackedBytes({4, 4});
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(Card::FromSpan(bytes).has_value());
  Count(state, 1, bytes.size());
}
BENCHMARK(BM_OpenCard)->Unit(benchmark::kMillisecond);

void BM_VerifyDigests(benchmark::State& state) {
  const std::vector<uint8_t> bytes = PackedBytes({4, 4});
  const Card card = *Card::FromSpan(bytes);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(card.VerifyDigests().ok());
  Count(state, 1, bytes.size());
}
BENCHMARK(BM_VerifyDigests)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace qkvshare
