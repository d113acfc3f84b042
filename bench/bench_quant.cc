// The row kernels, and whole cards: 1,024 tokens of 24 layers with 2 KV heads of 64 (the shape of a 0.5B model).
// Time of a row benchmark is per row; items are rows or tokens, bytes are those of the FP16 rows.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "card/card.h"
#include "card/card_test_util.h"
#include "quant/kernels.h"

namespace qkvshare {
namespace {

constexpr size_t kRows = 64;  // stay in the first-level cache

const Kernels& Selected() { return **SelectKernels(); }

std::vector<float> GaussianRows(size_t dim) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> rows(kRows * dim);
  for (float& x : rows) x = normal(random);
  return rows;
}

void Count(benchmark::State& state, size_t items, size_t item_bytes) {
  const auto total = state.iterations() * static_cast<int64_t>(items);
  state.SetItemsProcessed(total);
  state.SetBytesProcessed(total * static_cast<int64_t>(item_bytes));
}

void BM_Rotate(benchmark::State& state) {
  const auto dim = static_cast<size_t>(state.range(0));
  std::vector<float> rows = GaussianRows(dim);
  size_t row = 0;
  for ([[maybe_unused]] auto _ : state) {
    Selected().rotate(&rows[row++ % kRows * dim], dim, RotationBlock(dim));
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}
BENCHMARK(BM_Rotate)->ArgName("dim")->Arg(64)->Arg(128);

void BM_QuantizeRow(benchmark::State& state) {
  const auto dim = static_cast<size_t>(state.range(0));
  const auto bits = static_cast<int>(state.range(1));
  const std::vector<float> rows = GaussianRows(dim);
  std::vector<uint8_t> codes(dim);
  Half scale = 0;
  size_t row = 0;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(Selected().quantize_row(&rows[row++ % kRows * dim], dim, bits, codes.data(), &scale));
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}
BENCHMARK(BM_QuantizeRow)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 128}, {4, 8}});

void BM_DequantizeRow(benchmark::State& state) {
  const auto dim = static_cast<size_t>(state.range(0));
  const auto bits = static_cast<int>(state.range(1));
  std::vector<uint8_t> codes(dim);
  for (size_t i = 0; i < dim; ++i) codes[i] = static_cast<uint8_t>(i % (1u << bits));
  std::vector<float> x(dim);
  for ([[maybe_unused]] auto _ : state) {
    Selected().dequantize_row(codes.data(), dim, bits, 0x3C00, x.data());
    benchmark::ClobberMemory();
  }
  Count(state, 1, dim * sizeof(Half));
}
BENCHMARK(BM_DequantizeRow)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 128}, {4, 8}});

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
BENCHMARK(BM_PackCard)->ArgName("level")->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

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
        if (!card->Unpack(Selected(), layer, side, kTokens, out.data()).ok()) state.SkipWithError("unpack failed");
        benchmark::ClobberMemory();
      }
    }
  }
  Count(state, kTokens, card->fp16_bytes() / kTokens);
  state.SetLabel(LevelName(LevelOf(state)) + ", 1 thread");
}
BENCHMARK(BM_UnpackCard)->ArgName("level")->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

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
