#include "eval/chain_summary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/chain_report.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

// Answers of two hops: right is a letter a problem and hop, as "RW RR": R right, W wrong, U unmarked, T truncated.
ChainResults Arm(const std::string& name, const std::vector<std::string>& chains) {
  ChainResults results;
  results.arm = name;
  results.model = "a model";
  results.hops = 2;
  results.chains = 4;
  for (size_t i = 0; i < chains.size(); ++i) {
    for (size_t hop = 0; hop < chains[i].size(); ++hop) {
      ChainAnswer& answer = results.answers.emplace_back();
      answer.chain = "sheet-" + std::to_string(i + 1);
      answer.problem = "gsm8k-" + std::to_string(i + 1);
      answer.hop = hop;
      answer.right = chains[i][hop] == 'R';
      answer.marked = chains[i][hop] == 'R' || chains[i][hop] == 'W';
      answer.truncated = chains[i][hop] == 'T';
    }
  }
  return results;
}

TEST(ChainSummaryTest, CountsByArmAndHop) {
  const ChainSummary summary = *SummarizeChains(std::vector{Arm("f16", {"RR", "RW", "UT", "R"})}, {});
  EXPECT_EQ(summary.model, "a model");
  ASSERT_EQ(summary.arms.size(), 1U);
  const ChainArmRow& row = summary.arms[0];
  EXPECT_EQ(row.chains, 3U);
  EXPECT_EQ(row.planned, 4U);
  EXPECT_EQ(row.hops[0].answers, 4U);
  EXPECT_EQ(row.hops[0].right, 3U);
  EXPECT_EQ(row.hops[0].unmarked, 1U);
  EXPECT_EQ(row.hops[1].answers, 3U);
  EXPECT_EQ(row.hops[1].right, 1U);
  EXPECT_EQ(row.hops[1].truncated, 1U);
  EXPECT_NEAR(row.hops[1].accuracy.value, 1.0 / 3, 1e-12);
  EXPECT_EQ(row.hops[1].accuracy.low, WilsonInterval(1, 3).low);
  EXPECT_EQ(row.answers, 7U);
  EXPECT_EQ(row.unmarked, 2U);
  EXPECT_EQ(row.truncated, 1U);
  EXPECT_TRUE(summary.pairs.empty());
}

TEST(ChainSummaryTest, PairsArmsOnTheProblemsThatBothHave) {
  const std::vector<ChainResults> arms = {Arm("f16", {"RR", "RR", "RW", "WW"}), Arm("uniform@4", {"WR", "RW", "WR"}),
                                          Arm("text", {"RR", "RR", "RW", "RW"})};
  const ChainSummary summary = *SummarizeChains(arms, {});
  ASSERT_EQ(summary.pairs.size(), 4U);
  const ChainPair& first = summary.pairs[0];
  EXPECT_EQ(first.arm, "uniform@4");
  EXPECT_EQ(first.against, "f16");
  EXPECT_EQ(first.hop, 0U);
  EXPECT_EQ(first.problems, 3U);
  EXPECT_EQ(first.wins, 0U);
  EXPECT_EQ(first.losses, 2U);
  EXPECT_DOUBLE_EQ(first.p, 0.5);
  EXPECT_EQ(summary.pairs[1].wins, 1U);
  EXPECT_EQ(summary.pairs[1].losses, 1U);
  EXPECT_EQ(summary.pairs[2].arm, "text");
  EXPECT_EQ(summary.pairs[2].problems, 4U);
  EXPECT_EQ(summary.pairs[2].wins, 1U);
  const std::vector<std::string> against = {"text", "f16"};
  EXPECT_EQ(SummarizeChains(arms, against)->pairs.size(), 8U);
  EXPECT_EQ(SummarizeChains(arms, against)->pairs[0].against, "text");
}

TEST(ChainSummaryTest, CorrectsOverTheArmsOfAHop) {
  // At hop 1 against the first: 0 and 6, 0 and 5, 0 and 0.
  const auto arm = [](const std::string& name, size_t wrong) {
    ChainResults results = Arm(name, std::vector<std::string>(6, "RR"));
    for (size_t i = 0; i < wrong; ++i) results.answers[2 * i].right = false;
    return results;
  };
  const ChainSummary summary = *SummarizeChains(std::vector{arm("f16", 0), arm("a", 6), arm("b", 5), arm("c", 0)}, {});
  ASSERT_EQ(summary.pairs.size(), 6U);
  EXPECT_NEAR(summary.pairs[0].p, 2.0 / 64, 1e-12);
  EXPECT_NEAR(summary.pairs[0].adjusted_p, 6.0 / 64, 1e-12);
  EXPECT_NEAR(summary.pairs[2].p, 2.0 / 32, 1e-12);
  EXPECT_NEAR(summary.pairs[2].adjusted_p, 4.0 / 32, 1e-12);
  for (const size_t i : {1, 3, 4, 5}) EXPECT_EQ(summary.pairs[i].adjusted_p, 1);
}

TEST(ChainSummaryTest, WeighsCardsByTheirTokens) {
  ChainResults arm = Arm("uniform@4", {"RR", "RR"});
  arm.answers[0].card_tokens = 300;
  arm.answers[0].card_bytes = 3000;
  arm.answers[0].code_bits = 4;
  arm.answers[0].total_bits = 4.2;
  arm.answers[2].card_tokens = 100;
  arm.answers[2].card_bytes = 3000;
  arm.answers[2].code_bits = 4;
  arm.answers[2].total_bits = 5;
  const ChainArmRow row = SummarizeChains(std::vector{arm}, {})->arms[0];
  EXPECT_DOUBLE_EQ(row.code_bits, 4);
  EXPECT_NEAR(row.total_bits, 4.4, 1e-12);
  EXPECT_NEAR(row.token_bytes, 15, 1e-12);
  EXPECT_NEAR(row.chain_bytes, 3000, 1e-12);  // of both chains
}

TEST(ChainSummaryTest, RefusesArmsThatAreNotThere) {
  EXPECT_EQ(SummarizeChains({}, {}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<std::string> against = {"text"};
  const Status status = SummarizeChains(std::vector{Arm("f16", {"RR"}), Arm("local@4", {"RR"})}, against).status();
  EXPECT_NE(status.message().find("f16, local@4"), std::string::npos) << status.message();
}

TEST(ChainReportTest, SaysTheSameAsTextMarkdownAndJson) {
  ChainResults cut = Arm("uniform@4", {"RT", "RT", "WR", "RR"});
  cut.answers[0].card_tokens = 10;
  cut.answers[0].code_bits = 4;
  cut.answers[0].total_bits = 4.25;
  const std::vector<ChainResults> arms = {Arm("f16", {"RR", "RR", "RR"}), cut};
  const ChainSummary summary = *SummarizeChains(arms, {});
  for (const std::string& text : {ChainText(summary), ChainMarkdown(summary)}) {
    for (const char* part : {"a model", "f16", "3 of 4", "100.0% [43.9, 100.0]", "4.25", "75.0% [30.1, 95.4]", "25.0%",
                             "uniform@4: more than 5%", "Against f16", "+0 -2, p 0.5 (0.5)", "-66.7"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
    EXPECT_EQ(text.find("f16: more than"), std::string::npos);
  }
  EXPECT_NE(ChainMarkdown(summary).find("| f16 |"), std::string::npos);
  const Json json = ChainJson(summary);
  EXPECT_EQ(json.at("arms")[1].at("hops")[1].at("right"), 2);
  EXPECT_EQ(json.at("arms")[1].at("truncated"), 2);
  EXPECT_EQ(json.at("pairs")[1].at("hop"), 2);
  EXPECT_EQ(json.at("pairs")[1].at("losses"), 2);
  EXPECT_EQ(json.at("differences")[0].at("answers"), 3);
}

TEST(ChainReportTest, SaysWhereArmsAreNotDone) {
  const ChainResults whole = Arm("f16", {"RR", "RR"});
  const std::string unlike = ChainText(*SummarizeChains(std::vector{whole, Arm("text", {"RR"})}, {}));
  EXPECT_NE(unlike.find("Not all arms are done"), std::string::npos) << unlike;
  const std::string alike = ChainText(*SummarizeChains(std::vector{whole, Arm("text", {"RR", "WR"})}, {}));
  EXPECT_EQ(alike.find("Not all arms are done"), std::string::npos) << alike;
}

class ChainFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("qkv_chain_files_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static Json Header(const std::string& arm) {
    return {{"qkvshare_hops", 4},        {"input", "12"},         {"chains", 2},           {"hops", 1},
            {"hand_over", "cards"},      {"packs", {arm}},        {"model", "a model"},    {"model_fingerprint", "34"},
            {"cache_type_k", "f16"},     {"cache_type_v", "f16"}, {"task", "gsm8k"},       {"arm", arm},
            {"cache_token_bytes", 1024}, {"cache_code_bits", 16}, {"cache_total_bits", 16}};
  }
  static Json Line(const std::string& chain) {
    return {{"chain", chain},    {"problem", "gsm8k-" + chain},
            {"hop", 0},          {"right", true},
            {"marked", true},    {"truncated", false},
            {"card_tokens", 10}, {"card_bytes", 5},
            {"code_bits", 4.0},  {"total_bits", 4.5}};
  }
  std::string Write(const std::string& name, const std::vector<Json>& lines) const {
    std::ofstream file(folder_ / name);
    for (const Json& line : lines) file << line.dump() << "\n";
    return (folder_ / name).string();
  }
  static void ExpectRefused(const std::vector<std::string>& paths, const std::vector<std::string>& parts) {
    const Status status = ReadChainResults(paths).status();
    ASSERT_FALSE(status.ok());
    for (const std::string& part : parts) EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  std::filesystem::path folder_;
};

TEST_F(ChainFilesTest, AreReadWholeOrNot) {
  Json cache = Header("cache:q8_0/q4_0");
  cache["hand_over"] = "sequence";
  cache["cache_type_k"] = "q8_0";
  cache["cache_type_v"] = "q4_0";
  cache["cache_token_bytes"] = 416;
  cache["cache_code_bits"] = 6;
  cache["cache_total_bits"] = 6.5;
  const std::vector<std::string> paths = {Write("a.jsonl", {Header("uniform@4"), Line("x"), Line("y")}),
                                          Write("b.jsonl", {cache, Line("x")})};
  const Result<std::vector<ChainResults>> all = ReadChainResults(paths);
  ASSERT_TRUE(all.has_value()) << all.status().message();
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0].arm, "uniform@4");
  EXPECT_EQ((*all)[0].answers.size(), 2U);
  EXPECT_EQ((*all)[0].cache_total_bits, 0);
  EXPECT_EQ((*all)[0].answers[1].chain, "y");
  EXPECT_EQ((*all)[0].answers[1].problem, "gsm8k-y");
  const ChainArmRow row = SummarizeChains(*all, {})->arms[1];
  EXPECT_EQ(row.code_bits, 6);  // without the scales of blocks, as in eval fidelity
  EXPECT_EQ(row.total_bits, 6.5);
  EXPECT_EQ(row.token_bytes, 416);
  EXPECT_EQ((*all)[1].answers.size(), 1U);
}

TEST_F(ChainFilesTest, OfOtherRunsAreRefusedByName) {
  const std::string path = Write("a.jsonl", {Header("uniform@4"), Line("x")});
  Json other = Header("local@4");
  other["input"] = "13";
  ExpectRefused({path, Write("b.jsonl", {other})}, {"a.jsonl", "b.jsonl", "\"input\" differs"});
  other = Header("local@4");
  other["model_fingerprint"] = "35";
  ExpectRefused({path, Write("b.jsonl", {other})}, {"\"model_fingerprint\" differs"});
  other = Header("local@4");
  other["more"] = 1;
  ExpectRefused({path, Write("b.jsonl", {other})}, {"says more"});
  ExpectRefused({path, Write("b.jsonl", {Header("uniform@4")})}, {"both of arm uniform@4"});
  other = Header("local@4");
  other.erase("task");
  ExpectRefused({Write("b.jsonl", {other})}, {"b.jsonl", "no file of eval chain"});
  ExpectRefused({Write("b.jsonl", {{{"something", 1}}})}, {"b.jsonl", "no file of results"});
  other = Header("local@4");
  other["qkvshare_hops"] = 3;
  ExpectRefused({Write("b.jsonl", {other})}, {"b.jsonl", "earlier version"});
  Json line = Line("x");
  line["hop"] = 1;
  ExpectRefused({Write("b.jsonl", {Header("local@4"), line})}, {"b.jsonl", "hop"});
  line.erase("right");
  ExpectRefused({Write("b.jsonl", {Header("local@4"), line})}, {"b.jsonl", "right"});
}

}  // namespace
}  // namespace qkvshare
