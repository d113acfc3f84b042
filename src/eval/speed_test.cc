#include "eval/speed.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

Timing Of(const char* way, int64_t us) { return {way, us, us, us}; }

TEST(SpeedReport, BandwidthIsThatOfWhatTheCardAdds) {
  SpeedReport report;
  report.attended_bytes = 6'000'000;
  EXPECT_EQ(report.AttentionBandwidth(), 0);  // not measured
  report.tests = {{"suffix 32", {Of("fused", 1)}},
                  {"decode", {Of("fused", 5000), Of("F16", 9000), Of("no card", 3000)}}};
  EXPECT_EQ(report.AttentionBandwidth(), 3e9);
  report.tests[1].ways[2].median_us = 5000;
  EXPECT_EQ(report.AttentionBandwidth(), 0);  // no time is left
}

}  // namespace
}  // namespace qkvshare
