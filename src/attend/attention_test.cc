#include "attend/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attend/attention_test_util.h"

namespace qkvshare {
namespace {

// Against attention in doubles over the rows that a restore of the same card would give (docs/attention.md, "What
// rounding costs"): FP16 cards, and packed ones, whose queries have 8 bits.
constexpr double kExactError = 1e-5;
constexpr double kPackedError = 2e-2;
constexpr double kBetweenSets = 5e-4;  // of kernels: a query on the edge of two codes may get either

std::vector<uint32_t> AllTokens(uint32_t tokens) {
  std::vector<uint32_t> all(tokens);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

std::vector<uint8_t> RandomLevels(size_t tokens, size_t levels, std::mt19937* random) {
  std::vector<uint8_t> level(tokens);
  for (uint8_t& x : level) x = static_cast<uint8_t>((*random)() % levels);
  return level;
}

// Tokens after one card, each attending to it and to some own cells.
TestCall MakeCall(const AttentionShape& shape, const TestCard& card, std::mt19937* random) {
  TestCall call;
  call.shape = shape;
  call.cards = {&card};
  call.sources = {{&card.card, 0, INT32_MAX, AllTokens(shape.tokens)}, {nullptr, 0, 0, AllTokens(shape.tokens)}};
  for (uint32_t i = 0; i < shape.tokens; ++i) call.positions.push_back(static_cast<int32_t>(card.positions.size() + i));
  call.mask.assign(size_t{shape.tokens} * shape.cells, Half{0xFC00});
  for (uint32_t i = 0; i < shape.tokens; ++i) {
    for (uint32_t j = 0; j <= std::min(i, shape.cells - 1); ++j) call.mask[i * shape.cells + j] = 0;
  }
  call.Finish(random);
  return call;
}

struct Case {
  const char* name;
  AttentionShape shape;
  std::vector<Level> levels;
  size_t card_tokens;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AttentionTest : public ::testing::TestWithParam<Case> {
 protected:
  static double Bound() {
    const auto exact = [](Level level) { return level == kExactLevel; };
    return std::all_of(GetParam().levels.begin(), GetParam().levels.end(), exact) ? kExactError : kPackedError;
  }
};

TEST_P(AttentionTest, IsThatOverRestoredRows) {
  std::mt19937 random(7);
  const Case& c = GetParam();
  const auto card = MakeTestCard(c.shape, c.levels, RandomLevels(c.card_tokens, c.levels.size(), &random), &random);
  TestCall call = MakeCall(c.shape, *card, &random);
  std::vector<float> sinks(c.shape.heads, 0.5f);
  for (const bool with_extras : {false, true}) {
    if (with_extras) {
      call.node.softcap = 2.0f;
      call.node.window = static_cast<uint32_t>(c.card_tokens / 2 + 3);
      call.node.sinks = sinks.data();
    }
    const Rows expected = call.Reference();
    const Rows scalar = call.Run(ScalarAttendKernels(), 1);
    for (const AttendKernels* kernels : AvailableAttendKernels()) {
      const Rows out = call.Run(*kernels, 1);
      EXPECT_LT(WorstRowError(out, scalar, c.shape.value_dim), kBetweenSets) << kernels->name;
      EXPECT_LT(WorstRowError(out, expected, c.shape.value_dim), Bound()) << kernels->name << " extras " << with_extras;
      for (const int threads : {2, 3, 8}) EXPECT_EQ(call.Run(*kernels, threads), out) << kernels->name << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    ::testing::Values(Case{"mha_fp16", {3, 4, 4, 64, 64, 32}, {kExactLevel}, 300},
                      Case{"gqa_4", {1, 14, 2, 64, 64, 32}, {{4, 4}}, 5000},
                      Case{"gqa_4_exact", {5, 14, 2, 64, 64, 300}, {{4, 4}, kExactLevel}, 700},
                      Case{"mqa_8", {2, 8, 1, 256, 256, 32}, {{8, 8}}, 333},
                      Case{
                          "mixed", {9, 6, 2, 128, 128, 32}, {{2, 2}, {4, 2}, {4, 4}, {8, 4}, {8, 8}, kExactLevel}, 900},
                      Case{"odd_pairs", {2, 4, 2, 64, 64, 32}, {{16, 4}, {2, 16}, {8, 2}}, 500},
                      Case{"head_72", {2, 4, 2, 72, 72, 32}, {{4, 4}, {2, 2}, {8, 8}}, 200},
                      Case{"head_80_96", {2, 4, 2, 80, 96, 32}, {{4, 4}, {2, 2}, kExactLevel}, 200},
                      Case{"head_192_128", {2, 4, 2, 192, 128, 32}, {{4, 2}, kExactLevel}, 100},
                      Case{"many_rows", {130, 9, 3, 64, 64, 256}, {{4, 4}, {8, 8}}, 600},
                      Case{"one_token", {1, 4, 4, 64, 64, 32}, {{4, 4}}, 1}),
    [](const auto& test) { return std::string(test.param.name); });

// Three sequences in one decode call: over two cards, over one, over none. Each row is as if it had been alone.
TEST(AttentionSourcesTest, EachTokenSeesItsOwnSourcesAlone) {
  std::mt19937 random(8);
  const AttentionShape shape{4, 6, 2, 64, 64, 48};
  const auto first = MakeTestCard(shape, {{4, 4}}, std::vector<uint8_t>(100), &random);
  const auto second = MakeTestCard(shape, {{8, 8}, kExactLevel}, RandomLevels(3000, 2, &random), &random);
  TestCall call;
  call.shape = shape;
  call.cards = {first.get(), second.get()};
  call.sources = {
      {&first->card, 0, INT32_MAX, {0, 2}}, {&second->card, 100, 2500, {0, 1}}, {nullptr, 0, 0, {0, 1, 2, 3}}};
  call.positions = {3100, 3100, 100, 0};
  call.Finish(&random);
  call.node.rotate = [](size_t source, float* q) {
    ASSERT_EQ(source, 1u);
    std::swap(q[0], q[1]);  // any orthogonal transform will do
  };
  const Rows expected = call.Reference();
  for (const AttendKernels* kernels : AvailableAttendKernels()) {
    EXPECT_LT(WorstRowError(call.Run(*kernels, 2), expected, shape.value_dim), kPackedError) << kernels->name;
  }
}

// Sums are rounded in an order that other rows and the cells of others have no part in.
TEST(AttentionSourcesTest, RowsAreAlikeSharedOrAlone) {
  std::mt19937 random(12);
  const std::vector<Level> levels = {{4, 4}, {2, 8}, {16, 4}, {4, 16}, kExactLevel};
  for (const uint32_t heads : {3u, 21u}) {
    const AttentionShape shape{11, heads, 3, 72, 72, 48};
    const auto card = MakeTestCard(shape, levels, RandomLevels(2500, levels.size(), &random), &random);
    TestCall shared = MakeCall(shape, *card, &random);
    shared.node.window = 1200;
    TestCall alone = shared;
    alone.sources.clear();
    for (uint32_t i = 0; i < shape.tokens; ++i) alone.sources.push_back({&card->card, 0, INT32_MAX, {i}});
    for (uint32_t i = 0; i < shape.tokens; ++i) alone.sources.push_back({nullptr, 0, 0, {i}});
    for (const AttendKernels* kernels : AvailableAttendKernels())
      EXPECT_EQ(shared.Run(*kernels, 2), alone.Run(*kernels, 2)) << kernels->name << heads;
  }
}

TEST(AttentionSourcesTest, CellsAreAlikeInWhateverOrderTheyLie) {
  std::mt19937 random(14);
  const AttentionShape shape{2, 4, 2, 64, 64, 300};
  const auto card = MakeTestCard(shape, {{4, 4}}, std::vector<uint8_t>(50), &random);
  TestCall given = MakeCall(shape, *card, &random);
  std::fill(given.mask.begin(), given.mask.end(), Half{0});
  TestCall shuffled = given;
  shuffled.PointNode();
  std::vector<uint32_t> to = AllTokens(shape.cells);
  std::shuffle(to.begin(), to.end(), random);
  std::vector<int32_t> order(shape.cells);
  const size_t row = size_t{shape.kv_heads} * shape.key_dim;
  for (uint32_t cell = 0; cell < shape.cells; ++cell) {
    order[to[cell]] = static_cast<int32_t>(cell);
    std::copy_n(&given.own_keys[cell * row], row, &shuffled.own_keys[to[cell] * row]);
    std::copy_n(&given.own_values[cell * row], row, &shuffled.own_values[to[cell] * row]);
  }
  shuffled.node.cell_order = &order;
  for (const AttendKernels* kernels : AvailableAttendKernels())
    EXPECT_EQ(shuffled.Run(*kernels, 2), given.Run(*kernels, 2)) << kernels->name;
}

TEST(AttentionSourcesTest, CellsAreAlikeWhereverTheyLie) {
  std::mt19937 random(13);
  constexpr uint32_t kVisible = 5000;
  const AttentionShape shape{2, 4, 2, 64, 64, kVisible};
  const auto card = MakeTestCard(shape, {{4, 4}}, std::vector<uint8_t>(50), &random);
  TestCall tight = MakeCall(shape, *card, &random);
  std::fill(tight.mask.begin(), tight.mask.end(), Half{0});
  tight.mask[7] = 0xFC00;  // one that only the other token sees
  // The same among as many cells of others, in pieces.
  TestCall wide = MakeCall({2, 4, 2, 64, 64, 2 * kVisible}, *card, &random);
  wide.q = tight.q;
  wide.PointNode();
  std::fill(wide.mask.begin(), wide.mask.end(), Half{0xFC00});
  const size_t row = size_t{shape.kv_heads} * shape.key_dim;
  for (uint32_t cell = 0, to = 0; cell < kVisible; ++cell, to += cell % 100 == 0 ? 101 : 1) {
    for (uint32_t token = 0; token < 2; ++token)
      wide.mask[token * 2 * kVisible + to] = tight.mask[token * kVisible + cell];
    std::copy_n(&tight.own_keys[cell * row], row, &wide.own_keys[to * row]);
    std::copy_n(&tight.own_values[cell * row], row, &wide.own_values[to * row]);
  }
  for (const AttendKernels* kernels : AvailableAttendKernels())
    EXPECT_EQ(wide.Run(*kernels, 2), tight.Run(*kernels, 2)) << kernels->name;
}

// Layers may differ in heads. A call's plans are all made before the first layer runs.
TEST(AttentionSourcesTest, LayersOfSeveralShapesShareAWorkspace) {
  std::mt19937 random(11);
  const AttentionShape many{3, 8, 8, 64, 64, 16}, few{3, 8, 1, 64, 64, 16};
  const auto card_of_many = MakeTestCard(many, {{4, 4}}, std::vector<uint8_t>(100), &random);
  const auto card_of_few = MakeTestCard(few, {{4, 4}}, std::vector<uint8_t>(100), &random);
  const TestCall calls[] = {MakeCall(many, *card_of_many, &random), MakeCall(few, *card_of_few, &random)};
  for (const AttendKernels* kernels : AvailableAttendKernels()) {
    for (const bool few_last : {true, false}) {
      const AttentionPlan plans[] = {{calls[0].shape, calls[0].sources}, {calls[1].shape, calls[1].sources}};
      AttentionWorkspace workspace(ScalarKernels(), *kernels);
      workspace.Reserve(plans[few_last ? 0 : 1]);
      workspace.Reserve(plans[few_last ? 1 : 0]);
      for (size_t i = 0; i < 2; ++i)
        EXPECT_EQ(calls[i].Run(plans[i], 2, &workspace), calls[i].Run(*kernels, 1)) << kernels->name << i << few_last;
    }
  }
}

// What a token sees of a window of which nothing is in the card, and a token that sees nothing at all.
TEST(AttentionSourcesTest, NothingVisibleGivesZerosAndNoNan) {
  std::mt19937 random(9);
  const AttentionShape shape{2, 4, 2, 64, 64, 16};
  const auto card = MakeTestCard(shape, {{4, 4}}, std::vector<uint8_t>(50), &random);
  TestCall call = MakeCall(shape, *card, &random);
  call.positions = {1000, 1001};
  call.node.window = 8;
  std::fill_n(call.mask.begin() + 16, 16, Half{0xFC00});
  const Rows expected = call.Reference();
  EXPECT_EQ(expected.back(), 0.0f);
  for (const AttendKernels* kernels : AvailableAttendKernels()) {
    EXPECT_LT(WorstRowError(call.Run(*kernels, 2), expected, shape.value_dim), kExactError) << kernels->name;
  }
}

// Masked cells hold what was removed, or another sequence's: infinities, even, and any number of them.
TEST(AttentionSourcesTest, MaskedCellsCountForNothing) {
  std::mt19937 random(11);
  const AttentionShape shape{2, 4, 2, 64, 64, 600};
  const auto card = MakeTestCard(shape, {{4, 4}}, std::vector<uint8_t>(50), &random);
  TestCall call = MakeCall(shape, *card, &random);
  std::fill(call.mask.begin(), call.mask.end(), Half{0xFC00});
  const auto show = [&](uint32_t cell) { call.mask[cell] = call.mask[shape.cells + cell] = 0; };
  for (const uint32_t cell : {3u, 4u, 300u, 599u}) show(cell);
  const Rows expected = call.Reference();
  for (const AttendKernels* kernels : AvailableAttendKernels()) {
    TestCall other = call;
    other.PointNode();
    const Rows clean = other.Run(*kernels, 2);
    EXPECT_LT(WorstRowError(clean, expected, shape.value_dim), kPackedError) << kernels->name;
    const size_t row = size_t{shape.kv_heads} * shape.key_dim;
    for (const size_t cell : {0u, 5u, 299u, 301u}) {
      std::fill_n(other.own_keys.begin() + static_cast<ptrdiff_t>(cell * row), row, Half{0x7C00});
      std::fill_n(other.own_values.begin() + static_cast<ptrdiff_t>(cell * row), row, Half{0x7E00});
    }
    EXPECT_EQ(other.Run(*kernels, 2), clean) << kernels->name;
  }
}

TEST(AttentionCardTest, BlocksHoldEachTokenOnce) {
  const std::vector<uint32_t> sizes = {600, 0, 5, 16, 1000};
  uint32_t place = 0;
  for (const TokenBlock& block : MakeTokenBlocks(sizes)) {
    EXPECT_EQ(block.place, place);
    EXPECT_LE(block.tokens, kMaxBlockTokens);
    EXPECT_EQ(block.tail, block.tokens % kTileTokens != 0);
    place += block.tokens;
  }
  EXPECT_EQ(place, 1621u);
}

TEST(AttentionCardTest, RowsOutOfRangeAreRefused) {
  std::mt19937 random(10);
  const AttentionShape shape{1, 2, 2, 64, 64, 16};
  auto card = MakeTestCard(shape, {{4, 4}, kExactLevel}, RandomLevels(40, 2, &random), &random);
  PackedLayer& layer = card->card.layers[0];
  EXPECT_TRUE(CheckRows(layer).ok());
  const BlockLayout& layout = layer.keys;
  auto* block = const_cast<uint8_t*>(layer.key_blocks[1]);
  const auto breaks = [&](size_t offset) {
    const std::vector<uint8_t> before(block + offset, block + offset + 2);
    block[offset] = 0x00;
    block[offset + 1] = 0x7C;  // infinity of a half, and a step of 2^121
    const Status status = CheckRows(layer);
    std::copy(before.begin(), before.end(), block + offset);
    return status.code() == StatusCode::kCorrupt && status.message().find("keys of KV head 1") != std::string::npos;
  };
  EXPECT_TRUE(breaks(layout.scales_offset));
  EXPECT_TRUE(breaks(layout.runs[1].full_offset));
  EXPECT_TRUE(breaks(layout.runs[1].tail_offset));
  EXPECT_TRUE(CheckRows(layer).ok());
}

}  // namespace
}  // namespace qkvshare
