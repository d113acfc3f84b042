#include "eval/hop_kl_report.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace qkvshare {
namespace {

// Two chains; in hop h an arm's KL is `kl` to the power of h for each of two tokens.
std::vector<FidelityLine> LinesOf(const std::string& arm, double kl, size_t hops) {
  std::vector<FidelityLine> lines;
  for (const char* chain : {"a", "b"}) {
    double value = 0;
    for (size_t hop = 1; hop <= hops; ++hop) {
      FidelityLine line;
      line.prompt = chain;
      line.continuation = line.kind = "hop " + std::to_string(hop);
      line.arm = arm;
      line.kl = {value, value};
      line.other = {1};
      line.answer_tokens = 2;
      line.bytes = hop > 1 ? 1000 * hop : 0;
      line.code_bits = line.total_bits = hop > 1 ? 4 : 0;
      lines.push_back(line);
      value = hop == 1 ? kl : value * 2;
    }
  }
  return lines;
}

std::vector<FidelityLine> TwoArms(size_t hops) {
  std::vector<FidelityLine> lines = LinesOf("uniform@4", 0.03, hops);
  for (const FidelityLine& line : LinesOf("once@4", 0.01, hops)) lines.push_back(line);
  return lines;
}

TEST(HopKlReportTest, HasARowAnArmAndAColumnAHop) {
  const std::vector<FidelityLine> lines = TwoArms(3);
  const Result<FidelitySummary> summary = SummarizeHopKl(lines, {});
  ASSERT_TRUE(summary.has_value()) << summary.status().message();
  const std::vector<TextTable> tables = HopKlTables(*summary);
  ASSERT_EQ(tables.size(), 3U);
  EXPECT_EQ(tables[0].heads, (std::vector<std::string>{"arm", "bits", "with all", "bytes", "hop 1", "hop 2", "hop 3"}));
  EXPECT_EQ(tables[0].title, "Mean KL of answers by hop: 2 conversations, 12 predictions");
  EXPECT_EQ(tables[0].rows[0][3], "3.0 kB");
  EXPECT_NE(tables[0].note.find("No intervals with fewer than 5 conversations"), std::string::npos);
  EXPECT_TRUE(tables[0].rows[0][5].starts_with("0.03000")) << tables[0].rows[0][5];
  EXPECT_TRUE(tables[0].rows[0][6].starts_with("0.06000")) << tables[0].rows[0][6];
  EXPECT_TRUE(tables[1].rows[1][3].starts_with("50.0%")) << tables[1].rows[1][3];
  // Against the single hand-over, from the second hop on, without itself.
  ASSERT_EQ(tables[2].rows.size(), 1U);
  EXPECT_EQ(tables[2].heads, (std::vector<std::string>{"arm", "hop 2", "hop 3"}));
  EXPECT_EQ(tables[2].rows[0][0], "uniform@4");
  EXPECT_TRUE(tables[2].rows[0][2].starts_with("3.000")) << tables[2].rows[0][2];
  EXPECT_NE(tables[2].note.find("once@4 hands over the same tokens once"), std::string::npos);
}

TEST(HopKlReportTest, ASingleHopHasNothingToCompare) {
  const std::vector<FidelityLine> lines = TwoArms(1);
  const Result<FidelitySummary> summary = SummarizeHopKl(lines, {});
  ASSERT_TRUE(summary.has_value());
  const std::vector<TextTable> tables = HopKlTables(*summary);
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(tables[0].heads.back(), "hop 1");
  EXPECT_EQ(tables[0].rows.size(), 2U);
}

}  // namespace
}  // namespace qkvshare
