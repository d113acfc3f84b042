#include "eval/median.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace qkvshare {
namespace {

TEST(Median, IsTheMiddleOrTheMeanOfBoth) {
  EXPECT_EQ(Median<int64_t>({7}), 7);
  EXPECT_EQ(Median<int64_t>({9, 1, 2}), 2);
  EXPECT_EQ(Median<int64_t>({30, 1, 10, 20}), 15);
  EXPECT_EQ(Median<double>({2, 1}), 1.5);
}

}  // namespace
}  // namespace qkvshare
