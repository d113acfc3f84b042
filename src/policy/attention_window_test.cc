#include "policy/attention_window.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

// Two layers of different sizes; each value tells its layer, query and place.
AttentionWindow MakeWindow(size_t queries) {
  AttentionWindow window;
  window.layers.resize(2);
  window.layers[0].heads = 3, window.layers[0].dim = 2;
  window.layers[1].heads = 1, window.layers[1].dim = 4;
  for (size_t i = 0; i < queries; ++i) {
    window.last_visible.push_back(static_cast<uint32_t>(100 + i));
    for (size_t layer = 0; layer < 2; ++layer) {
      LayerQueries& out = window.layers[layer];
      for (uint32_t k = 0; k < out.heads * out.dim; ++k)
        out.q.push_back(static_cast<float>(layer * 10000 + i * 10 + k));
    }
  }
  return window;
}

TEST(RecentQueries, AreThoseOfTheLastTokensThinned) {
  AttentionWindow window = MakeWindow(9);
  window.end = 103;
  window.layers[1].softcap = 7;
  const AttentionWindow recent = RecentQueries(window, 4, 100);
  EXPECT_EQ(recent.last_visible, (std::vector<uint32_t>{105, 106, 107, 108}));
  EXPECT_EQ(recent.end, 103u);
  ASSERT_EQ(recent.layers.size(), 2u);
  EXPECT_EQ(recent.layers[1].softcap, 7);
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::vector<float>& all = window.layers[layer].q;
    const size_t row = window.layers[layer].heads * window.layers[layer].dim;
    EXPECT_EQ(recent.layers[layer].q, std::vector<float>(all.end() - static_cast<ptrdiff_t>(4 * row), all.end()));
    EXPECT_EQ(recent.layers[layer].heads, window.layers[layer].heads);
  }
  EXPECT_EQ(RecentQueries(window, 4, 2).last_visible, (std::vector<uint32_t>{106, 108}));
  EXPECT_EQ(RecentQueries(window, 5, 2).last_visible, (std::vector<uint32_t>{105, 108}));
  EXPECT_EQ(RecentQueries(window, 1000, 9).last_visible, window.last_visible);
  EXPECT_EQ(RecentQueries(window, 1, 9).last_visible, (std::vector<uint32_t>{108}));
  EXPECT_TRUE(RecentQueries(AttentionWindow(), 5, 2).empty());
  // Every second token has a query: those of the last tokens, not so many queries.
  ThinWindow(2, &window);
  EXPECT_EQ(RecentQueries(window, 4, 100).last_visible, (std::vector<uint32_t>{106, 108}));
}

TEST(ThinWindow, KeepsEveryStridethQueryFromTheLast) {
  for (const uint32_t stride : {1u, 2u, 3u, 4u, 7u, 100u}) {
    for (const size_t queries : {1u, 2u, 7u, 8u, 9u, 12u}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, stride " << stride);
      AttentionWindow expected = MakeWindow(0);
      const AttentionWindow whole = MakeWindow(queries);
      for (size_t i = 0; i < queries; ++i) {
        if ((queries - 1 - i) % stride != 0) continue;
        expected.last_visible.push_back(whole.last_visible[i]);
        for (size_t layer = 0; layer < 2; ++layer) {
          const size_t row = whole.layers[layer].heads * whole.layers[layer].dim;
          const auto first = whole.layers[layer].q.begin() + static_cast<ptrdiff_t>(i * row);
          expected.layers[layer].q.insert(expected.layers[layer].q.end(), first, first + static_cast<ptrdiff_t>(row));
        }
      }
      AttentionWindow window = whole;
      ThinWindow(stride, &window);
      EXPECT_EQ(window.last_visible, expected.last_visible);
      EXPECT_EQ(window.last_visible.back(), whole.last_visible.back());
      for (size_t layer = 0; layer < 2; ++layer) EXPECT_EQ(window.layers[layer].q, expected.layers[layer].q);
    }
  }
}

TEST(ThinWindow, LeavesAnEmptyWindowAlone) {
  AttentionWindow window;
  ThinWindow(4, &window);
  EXPECT_TRUE(window.empty());
  window = MakeWindow(0);
  ThinWindow(4, &window);
  EXPECT_TRUE(window.empty());
  EXPECT_TRUE(window.layers[0].q.empty());
}

TEST(ThinWindow, StrideZeroKeepsAll) {
  AttentionWindow window = MakeWindow(5);
  ThinWindow(0, &window);
  EXPECT_EQ(window.queries(), 5u);
}

TEST(AppendWindow, PutsQueriesAfterThoseThatAreThere) {
  AttentionWindow joined;
  AppendWindow(MakeWindow(3), &joined);
  EXPECT_EQ(joined.queries(), 3u);
  AppendWindow(MakeWindow(2), &joined);
  EXPECT_EQ(joined.last_visible, (std::vector<uint32_t>{100, 101, 102, 100, 101}));
  for (size_t layer = 0; layer < 2; ++layer) {
    std::vector<float> expected = MakeWindow(3).layers[layer].q;
    const std::vector<float> second = MakeWindow(2).layers[layer].q;
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(joined.layers[layer].q, expected);
  }
}

}  // namespace
}  // namespace qkvshare
