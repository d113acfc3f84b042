#include "eval/bandwidth.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

// A sum that was not done, or units that are wrong, would be outside: no machine of one or two threads reads a terabyte
// a second, and none, however busy or emulated, takes five seconds for the buffer.
TEST(MeasureReadBandwidth, IsThatOfAMachine) {
  for (const int threads : {1, 2, 0}) {
    const double bytes_a_second = MeasureReadBandwidth(threads);
    EXPECT_GT(bytes_a_second, 1e8) << threads;
    EXPECT_LT(bytes_a_second, threads == 0 ? 1e13 : 1e12) << threads;
  }
}

}  // namespace
}  // namespace qkvshare
