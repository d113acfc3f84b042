#include "runtime/sender.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

using Segments = std::vector<Segment>;

TEST(SegmentsFrom, CountsFromThereAndCutsWhatReachesAcross) {
  const Segments all = {
      {"system", "a", "", 0, 10, {{"c", 2}}}, {"user", "a", "", 10, 5}, {"assistant", "b", "", 15, 7}};
  EXPECT_EQ(SegmentsFrom(all, 0), all);
  EXPECT_EQ(SegmentsFrom(all, 4),
            (Segments{{"system", "a", "", 0, 6, {{"c", 2}}}, {"user", "a", "", 6, 5}, {"assistant", "b", "", 11, 7}}));
  EXPECT_EQ(SegmentsFrom(all, 10), (Segments{{"user", "a", "", 0, 5}, {"assistant", "b", "", 5, 7}}));
  EXPECT_EQ(SegmentsFrom(all, 21), (Segments{{"assistant", "b", "", 0, 1}}));
  EXPECT_EQ(SegmentsFrom(all, 22), Segments());
  EXPECT_EQ(SegmentsFrom({}, 3), Segments());
}

}  // namespace
}  // namespace qkvshare
