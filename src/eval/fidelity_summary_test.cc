#include "eval/fidelity_summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/fidelity_tables.h"

namespace qkvshare {
namespace {

FidelityLine Line(const std::string& prompt, const std::string& continuation, const std::string& arm,
                  std::vector<double> kl) {
  FidelityLine line;
  line.prompt = prompt;
  line.continuation = continuation;
  line.kind = "question";
  line.arm = arm;
  line.answer_logprob = -2;
  line.ref_answer_logprob = -1.5;
  line.kl = std::move(kl);
  line.answer_tokens = 1;
  line.bytes = 1000;
  line.code_bits = 4;
  line.total_bits = 4.25;
  return line;
}

// Two prompts, two arms: b has twice the KL of a.
std::vector<FidelityLine> TwoArms() {
  return {Line("p0", "c0", "a", {1, 3}), Line("p0", "c0", "b", {2, 6}), Line("p1", "c0", "a", {5}),
          Line("p1", "c0", "b", {10})};
}

FidelitySummary Summarize(const std::vector<FidelityLine>& lines, const FidelitySummaryOptions& options = {}) {
  const Result<FidelitySummary> summary = SummarizeFidelity(lines, options);
  EXPECT_TRUE(summary.has_value()) << summary.status().message();
  return summary.has_value() ? *summary : FidelitySummary();
}

TEST(FidelitySummaryTest, MeansAreOverPredictions) {
  std::vector<FidelityLine> lines = TwoArms();
  lines[0].other = {1};
  const FidelitySummary summary = Summarize(lines);
  ASSERT_EQ(summary.rows.size(), 2U);  // one kind: no rows of its own
  const FidelityRow& a = summary.rows[0];
  EXPECT_EQ(a.arm, "a");
  EXPECT_EQ(a.kind, "");
  EXPECT_EQ(a.prompts, 2U);
  EXPECT_EQ(a.continuations, 2U);
  EXPECT_EQ(a.predictions, 3U);
  EXPECT_DOUBLE_EQ(a.mean_kl.value, 3);
  EXPECT_DOUBLE_EQ(a.mean_kl.low, 2);   // p0 twice
  EXPECT_DOUBLE_EQ(a.mean_kl.high, 5);  // p1 twice
  EXPECT_EQ(a.median_kl, 3);
  EXPECT_EQ(a.p99_kl, 5);
  EXPECT_EQ(a.worst_kl, 5);
  EXPECT_EQ(a.worst_at, "p1/c0");
  EXPECT_DOUBLE_EQ(a.same.value, 2.0 / 3);
  EXPECT_DOUBLE_EQ(a.answer_logprob.value, -0.5);
  EXPECT_DOUBLE_EQ(a.answer_kl.value, 4);  // 3 and 5
  EXPECT_DOUBLE_EQ(a.answer_kl.low, 3);
  EXPECT_DOUBLE_EQ(summary.rows[1].against[0].answer_kl_ratio.value, 2);
  EXPECT_EQ(a.code_bits, 4);
  EXPECT_EQ(a.total_bits, 4.25);
  EXPECT_EQ(a.bytes, 1000);
}

TEST(FidelitySummaryTest, ArmsAreComparedWithThoseThatAreNamed) {
  FidelitySummaryOptions options;
  options.against = {"b", "a"};
  const FidelitySummary summary = Summarize(TwoArms(), options);
  const FidelityRow& b = summary.rows[1];
  ASSERT_EQ(b.against.size(), 2U);
  EXPECT_EQ(b.against[0].arm, "b");
  EXPECT_DOUBLE_EQ(b.against[0].kl_ratio.value, 1);
  EXPECT_EQ(b.against[1].arm, "a");
  EXPECT_DOUBLE_EQ(b.against[1].kl_ratio.value, 2);
  EXPECT_DOUBLE_EQ(b.against[1].kl_ratio.low, 2);  // twice as much in every prompt
  EXPECT_DOUBLE_EQ(b.against[1].kl_ratio.high, 2);
  EXPECT_EQ(Summarize(TwoArms()).rows[1].against[0].arm, "a");  // the first where none is named
  options.against = {"c"};
  const Status status = SummarizeFidelity(TwoArms(), options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("there are a, b"), std::string::npos) << status.message();
}

TEST(FidelitySummaryTest, KindsHaveRowsOfTheirOwn) {
  std::vector<FidelityLine> lines = TwoArms();
  for (const char* arm : {"a", "b"}) {
    lines.push_back(Line("p1", "c1", arm, {7, 7}));
    lines.back().kind = "part";
  }
  const FidelitySummary summary = Summarize(lines);
  EXPECT_EQ(summary.kinds, (std::vector<std::string>{"question", "part"}));
  ASSERT_EQ(summary.rows.size(), 6U);
  EXPECT_EQ(summary.rows[0].predictions, 5U);
  EXPECT_EQ(summary.rows[2].kind, "question");
  EXPECT_DOUBLE_EQ(summary.rows[2].mean_kl.value, 3);
  EXPECT_EQ(summary.rows[4].kind, "part");
  EXPECT_EQ(summary.rows[4].prompts, 1U);
  EXPECT_DOUBLE_EQ(summary.rows[4].mean_kl.value, 7);
  EXPECT_TRUE(std::isnan(summary.rows[4].mean_kl.low));  // of one prompt
}

TEST(FidelitySummaryTest, PromptsThatAnArmLacksAreLeftOut) {
  std::vector<FidelityLine> lines = TwoArms();
  lines.push_back(Line("p2", "c0", "a", {100}));
  lines.push_back(Line("p3", "c0", "a", {100}));
  lines.push_back(Line("p3", "c0", "b", {100}));
  lines.push_back(Line("p3", "c1", "b", {100}));  // half of a prompt
  const FidelitySummary summary = Summarize(lines);
  EXPECT_EQ(summary.left_out, (std::vector<std::string>{"p2", "p3"}));
  EXPECT_DOUBLE_EQ(summary.rows[0].mean_kl.value, 3);
  EXPECT_NE(FidelityText(summary).find("Left out: 2 prompts"), std::string::npos);
  const std::vector<FidelityLine> none = {Line("p0", "c0", "a", {1}), Line("p1", "c0", "b", {1})};
  EXPECT_EQ(SummarizeFidelity(none, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SummarizeFidelity({}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(FidelitySummaryTest, LinesThatContradictEachOtherAreRefused) {
  const auto refused = [](FidelityLine line, const std::string& says) {
    std::vector<FidelityLine> lines = TwoArms();
    lines.push_back(std::move(line));
    const Status status = SummarizeFidelity(lines, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  };
  refused(Line("p0", "c0", "a", {1, 3}), "p0/c0 is there twice with arm a");
  refused(Line("p0", "c0", "c", {1}), "p0/c0 is another continuation with arm c than with a");
  FidelityLine line = Line("p0", "c0", "c", {1, 3});
  line.answer_tokens = 2;
  refused(line, "another continuation");
  line.answer_tokens = 1;
  line.kind = "part";
  refused(line, "another continuation");
}

TEST(FidelitySummaryTest, ALineIsReadAsItWasWritten) {
  FidelityLine line = Line("p0", "c0", "a", {1, 0.25});
  line.other = {0, 1};
  const auto json = FidelityLineJson(line);
  const Result<FidelityLine> read = ParseFidelityLine(json);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(FidelityLineJson(*read), json);
  EXPECT_EQ(read->kl, line.kl);
  EXPECT_EQ(read->other, line.other);
  for (const auto& [key, value] : json.items()) {
    auto without = json;
    without.erase(key);
    EXPECT_EQ(ParseFidelityLine(without).status().code(), StatusCode::kCorrupt) << key;
  }
  const auto refused = [&](const char* key, const nlohmann::ordered_json& value) {
    auto other = json;
    other[key] = value;
    EXPECT_EQ(ParseFidelityLine(other).status().code(), StatusCode::kCorrupt) << key << " " << value;
  };
  refused("kl", nlohmann::ordered_json::array());
  refused("other", {0, 2});
  refused("other", {1, 0});
  refused("other", {1, 1});
  refused("answer_tokens", 3);
  auto more = json;
  more["tokens"] = 1024;
  EXPECT_TRUE(ParseFidelityLine(more).has_value());
}

TEST(FidelitySummaryTest, TablesAndJsonSayTheSame) {
  FidelitySummary summary = Summarize(TwoArms());
  for (FidelityRow& row : summary.rows) row.prompts = kFewestPrompts;
  const std::string text = FidelityText(summary), markdown = FidelityMarkdown(summary);
  for (const char* word : {"3 predictions, 2 continuations, 5 prompts", "6.00000 [4.00000, 10.00000]", "KL / a",
                           "2.000 [2.000, 2.000]", "-0.5000", "100.0% [100.0, 100.0]", "4.25",
                           "All continuations, against a", "8.00000 [6.00000, 10.00000]", "p1/c0", "0.0% [0.0, 0.0]"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
    EXPECT_NE(markdown.find(word), std::string::npos) << word << "\n" << markdown;
  }
  EXPECT_NE(markdown.find("|---|---:|"), std::string::npos);
  const auto json = FidelityJson(summary);
  EXPECT_EQ(json["rows"][1]["mean_kl"]["value"], 6);
  EXPECT_EQ(json["rows"][1]["against"][0]["kl_ratio"]["high"], 2);
  EXPECT_EQ(json["rows"][0]["kind"], "all");
  const std::vector<FidelityLine> one = {Line("p0", "c0", "a", {1})};
  EXPECT_TRUE(FidelityJson(Summarize(one))["rows"][0]["mean_kl"]["low"].is_null());
}

TEST(FidelitySummaryTest, FewPromptsHaveNoIntervalInATable) {
  const std::string text = FidelityText(Summarize({Line("p0", "c0", "a", {1}), Line("p1", "c0", "a", {3})}));
  for (const char* word : {"2 predictions, 2 continuations, 2 prompts", "2.00000 ", "No intervals with fewer than 5"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  EXPECT_EQ(text.find("2.00000 ["), std::string::npos) << text;
  EXPECT_NE(FidelityText(Summarize({Line("p0", "c0", "a", {1})})).find("1 prediction, 1 continuation, 1 prompt\n"),
            std::string::npos);
}

TEST(TextTableTest, ColumnsAreAsWideAsTheyNeed) {
  const TextTable table = {"Title", {"é", "number"}, {{"a|b", "1"}, {"c", "10"}}, "Note."};
  EXPECT_EQ(TerminalTable(table),
            "Title\n"
            "  é    number\n"
            "  a|b       1\n"
            "  c        10\n"
            "  Note.\n");
  EXPECT_EQ(MarkdownTable(table), "### Title\n\n| é | number |\n|---|---:|\n| a\\|b | 1 |\n| c | 10 |\n\nNote.\n");
}

}  // namespace
}  // namespace qkvshare
