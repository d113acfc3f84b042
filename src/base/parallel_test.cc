#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace qkvshare {
namespace {

class ParallelForTest : public testing::TestWithParam<int> {};

TEST_P(ParallelForTest, CallsEachPieceOnce) {
  for (const size_t count : {0u, 1u, 3u, 1000u}) {
    std::vector<std::atomic<int>> calls(count);
    const Status status = ParallelFor(count, GetParam(), [&](size_t i) {
      ++calls[i];
      return Status();
    });
    EXPECT_TRUE(status.ok());
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1) << i << " of " << count;
  }
}

TEST_P(ParallelForTest, ReturnsTheErrorOfTheLowestPieceThatFailed) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<size_t> started{0};
    const Status status = ParallelFor(1000, GetParam(), [&](size_t i) {
      ++started;
      // The lowest failing piece fails last, so that another one is likely to be seen first.
      if (i == 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
      return i < 2 ? Status() : Status(StatusCode::kIo, std::to_string(i));
    });
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_EQ(status.message(), "2");
    // Every thread may have one failing piece in its hands, no more.
    EXPECT_LE(started, 2u + static_cast<size_t>(std::max(GetParam(), 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelForTest, testing::Values(-1, 1, 4));

TEST(ParallelTest, UsesNoMoreThreadsThanAsked) {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  ASSERT_TRUE(ParallelFor(64, 3, [&](size_t) {
                const int now = ++running;
                int seen = most;
                while (now > seen && !most.compare_exchange_weak(seen, now)) {
                }
                std::this_thread::sleep_for(std::chrono::microseconds(100));
                --running;
                return Status();
              }).ok());
  EXPECT_LE(most, 3);
}

}  // namespace
}  // namespace qkvshare
