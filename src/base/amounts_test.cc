#include "base/amounts.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

TEST(AmountsTest, AsPeopleReadThem) {
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(12'345), "12.3 kB");
  EXPECT_EQ(FormatBytes(2'000'000'000), "2.00 GB");
  EXPECT_EQ(FormatUs(400), "0.4 ms");
  EXPECT_EQ(FormatUs(8'060'000), "8.06 s");
}

}  // namespace
}  // namespace qkvshare
