#include "runtime/kv_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace qkvshare {
namespace {

constexpr uint32_t kMagic = 0x56514b51;
constexpr uint32_t kWindow = 4;

// Four layers of other sizes; two with a window.
StateLayout Layout(CacheType keys, CacheType values, bool transposed, bool windowed = true) {
  StateLayout layout{kMagic, GgmlTypeOf(CacheType::kF16), {{1, 32, 64}, {2, 32, 32}, {1, 64, 32}, {3, 32, 32}}};
  for (size_t i = 0; i < layout.shapes.size(); ++i) {
    const uint32_t rotation = i == 2 && keys != CacheType::kF16 ? 64 : 0;
    layout.formats.push_back({{keys, rotation}, {values, 0}, windowed && i % 2 == 1 ? kWindow : 0});
  }
  layout.transposed_values = transposed;
  return layout;
}

std::vector<int32_t> Count(size_t tokens) {
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

// A value that tells its layer, side, token and channel; small integers, which every type here but Q4_0 holds nearly.
float Value(size_t layer, Side side, int32_t position, size_t channel) {
  return static_cast<float>((layer * 31 + (side == Side::kKeys ? 7 : 11) + static_cast<size_t>(position) * 13 +
                             channel * (1 + channel % 3)) %
                            17) -
         8.0f;
}

std::vector<uint8_t> Build(const StateLayout& layout, const std::vector<int32_t>& positions) {
  const Result<std::vector<uint8_t>> state = BuildState(layout, positions, 2, [&](size_t layer, Side side, Half* rows) {
    const size_t values = layout.shapes[layer].row_values(side);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < values; ++i) rows[t * values + i] = FloatToHalf(Value(layer, side, positions[t], i));
    }
    return Status();
  });
  EXPECT_TRUE(state);
  return *state;
}

void ExpectRows(const StateLayout& layout, const KvState& state, float tolerance) {
  const KvView view = state.view();
  for (size_t layer = 0; layer < layout.shapes.size(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const size_t values = layout.shapes[layer].row_values(side);
      const Half* rows = side == Side::kKeys ? view.layers[layer].keys : view.layers[layer].values;
      for (size_t t = 0; t < state.tokens(); ++t) {
        for (size_t i = 0; i < values; ++i) {
          ASSERT_NEAR(HalfToFloat(rows[t * values + i]), Value(layer, side, state.positions()[t], i), tolerance)
              << "layer " << layer << ", token " << t << ", value " << i;
        }
      }
    }
  }
}

TEST(KvState, RowsOfEveryLayoutComeBack) {
  struct Case {
    CacheType keys, values;
    bool transposed;
    float tolerance;  // half a step of the largest value / 127, where rotated ones are up to 3 times as large; a step
                      // of 8 / 8 at the end
  };
  for (const Case& c : {Case{CacheType::kF16, CacheType::kF16, false, 0},
                        {CacheType::kF16, CacheType::kF16, true, 0},
                        {CacheType::kBF16, CacheType::kBF16, true, 0.1f},
                        {CacheType::kQ8_0, CacheType::kF16, true, 0.25f},
                        {CacheType::kQ8_0, CacheType::kQ4_0, false, 1.01f}}) {
    for (const bool windowed : {false, true}) {
      const StateLayout layout = Layout(c.keys, c.values, c.transposed, windowed);
      const std::vector<uint8_t> bytes = Build(layout, Count(9));
      const Result<KvState> state = KvState::Parse(bytes, layout, 2);
      ASSERT_TRUE(state) << state.status().message();
      EXPECT_EQ(state->positions(), Count(9));
      ExpectRows(layout, *state, c.tolerance);
    }
  }
}

TEST(KvState, WhatAStateIsLikeIsLearnedFromOneToken) {
  const StateLayout layout = Layout(CacheType::kQ8_0, CacheType::kBF16, true);
  const std::vector<uint8_t> bytes = Build(layout, Count(1));
  const Result<StateLayout> learned = LearnStateLayout(bytes, layout.shapes, layout.formats, true);
  ASSERT_TRUE(learned) << learned.status().message();
  EXPECT_EQ(learned->magic, kMagic);
  EXPECT_EQ(learned->window(), kWindow);
  const auto refused = [&](const StateLayout& other) {
    return LearnStateLayout(bytes, other.shapes, other.formats, other.transposed_values).status().code() ==
           StatusCode::kUnsupported;
  };
  StateLayout other = layout;
  std::swap(other.formats[0].window, other.formats[1].window);  // of other sizes
  EXPECT_TRUE(refused(other));
  EXPECT_TRUE(refused(Layout(CacheType::kQ8_0, CacheType::kBF16, true, /*windowed=*/false)));
  EXPECT_TRUE(refused(Layout(CacheType::kQ8_0, CacheType::kF16, true)));
  EXPECT_TRUE(refused(Layout(CacheType::kQ4_0, CacheType::kBF16, true)));
  EXPECT_TRUE(refused(Layout(CacheType::kQ8_0, CacheType::kBF16, false)));
}

TEST(KvState, ATokenIsRepeatedInEveryPart) {
  for (const bool transposed : {false, true}) {
    const StateLayout layout = Layout(CacheType::kQ8_0, CacheType::kBF16, transposed);
    const std::vector<uint8_t> one = Build(layout, {0});
    const std::vector<int32_t> positions = {0, 1, 7};
    const Result<std::vector<uint8_t>> bytes = RepeatToken(one, positions);
    ASSERT_TRUE(bytes) << bytes.status().message();
    const Result<KvState> state = KvState::Parse(*bytes, layout), source = KvState::Parse(one, layout);
    ASSERT_TRUE(state && source) << state.status().message();
    EXPECT_EQ(state->positions(), positions);
    for (size_t layer = 0; layer < layout.shapes.size(); ++layer) {
      const size_t values = layout.shapes[layer].row_values(Side::kValues);
      for (size_t i = 0; i < 3 * values; ++i)
        ASSERT_EQ(state->view().layers[layer].values[i], source->view().layers[layer].values[i % values]);
    }
    for (const size_t bytes_left : {size_t{0}, size_t{7}, size_t{20}, size_t{100}, one.size() - 1})
      EXPECT_FALSE(RepeatToken(ByteSpan(one).first(bytes_left), positions)) << bytes_left;
    EXPECT_EQ(RepeatToken(Build(layout, {0, 1}), positions).status().code(), StatusCode::kUnsupported);
  }
}

// The layout of the layers with a window alone, as their part of a state is.
std::vector<uint8_t> WindowPart(const StateLayout& layout, const std::vector<int32_t>& positions) {
  StateLayout others = layout;
  for (size_t i = layout.shapes.size(); i-- > 0;) {
    if (layout.formats[i].window == 0) continue;
    others.shapes.erase(others.shapes.begin() + static_cast<ptrdiff_t>(i));
    others.formats.erase(others.formats.begin() + static_cast<ptrdiff_t>(i));
  }
  std::vector<uint8_t> part = Build(layout, positions);
  part.erase(part.begin() + 8, part.begin() + static_cast<ptrdiff_t>(Build(others, positions).size()));
  return part;
}

TEST(CompleteState, PutsRowsTogetherFromWindows) {
  for (const bool transposed : {false, true}) {
    const StateLayout layout = Layout(CacheType::kQ8_0, transposed ? CacheType::kF16 : CacheType::kQ8_0, transposed);
    const std::vector<uint8_t> whole = Build(layout, Count(10));
    // As llama.cpp saves it: all rows of the first part, and the window's of the second.
    const size_t second_part = WindowPart(layout, Count(10)).size() - 8;
    std::vector<uint8_t> saved(whole.begin(), whole.end() - static_cast<ptrdiff_t>(second_part));
    const std::vector<uint8_t> last = WindowPart(layout, {6, 7, 8, 9});
    saved.insert(saved.end(), last.begin() + 8, last.end());
    EXPECT_EQ(CheckState(saved, layout).status().code(), StatusCode::kUnsupported);
    const std::vector<uint8_t> early = WindowPart(layout, {0, 1, 2, 3}), late = WindowPart(layout, {4, 5});
    const Result<std::vector<uint8_t>> complete = CompleteState({saved, late, early}, layout);
    ASSERT_TRUE(complete) << complete.status().message();
    EXPECT_EQ(*complete, whole);
    EXPECT_EQ(CompleteState({saved, early}, layout).status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(CompleteState({saved, early, late, late}, layout).status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(CompleteState({saved, late, WindowPart(layout, {0, 1, 2})}, layout).status().code(),
              StatusCode::kUnsupported);
  }
}

TEST(CompleteState, PutsRowsInTheOrderOfTheirPositions) {
  for (const bool transposed : {false, true}) {
    const StateLayout layout = Layout(CacheType::kF16, CacheType::kF16, transposed);
    const std::vector<uint8_t> shuffled = Build(layout, {3, 4, 0, 2, 1});
    EXPECT_EQ(KvState::Parse(shuffled, layout).status().code(), StatusCode::kUnsupported);
    const Result<std::vector<uint8_t>> sorted = CompleteState({shuffled}, layout);
    ASSERT_TRUE(sorted) << sorted.status().message();
    EXPECT_EQ(*sorted, Build(layout, Count(5)));
  }
}

TEST(KvState, ValuesThatFP16DoesNotHoldNameLayerAndToken) {
  const StateLayout layout = Layout(CacheType::kBF16, CacheType::kBF16, false, /*windowed=*/false);
  std::vector<uint8_t> bytes = Build(layout, Count(9));
  const uint16_t large = 0x4780;  // 65536 as BF16
  std::memcpy(bytes.data() + bytes.size() - 2, &large, 2);
  const Status status = KvState::Parse(bytes, layout).status();
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_EQ(status.message(), "values of layer 3, token 8: a value of 65536 is out of the range of FP16 (+-65504)");
}

}  // namespace
}  // namespace qkvshare
