#include "eval/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "eval/fidelity_run.h"
#include "eval/hop_header.h"
#include "eval/hop_kl_report.h"
#include "eval/memory.h"
#include "eval/report_chain.h"
#include "eval/report_fidelity.h"
#include "eval/report_hops.h"
#include "eval/run_facts.h"
#include "eval/ttft.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("qkv_report_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const Json& header, const std::vector<Json>& lines) const {
    std::ofstream file(folder_ / name);
    file << header.dump() << "\n" << R"({"produced_by": {"program": "0123456789abcdef", "qkvshare": "0.1.0"}})" << "\n";
    for (const Json& line : lines) file << line.dump() << "\n";
    return (folder_ / name).string();
  }
  static Json Common(const char* kind) {
    return {{kind, 1},     {"input", "00"}, {"model", "Tiny <b>"}, {"model_fingerprint", "ff"}, {"card_format", {0, 1}},
            {"threads", 2}};
  }
  static Json FidelityHeader(const std::vector<std::string>& arms) {
    Json header = Common(kFidelityKind);
    header["set"] = "facts";
    header["context"] = 1024;
    header["arms"] = arms;
    return header;
  }
  static std::vector<Json> FidelityLines(const std::string& arm, double bits, double kl) {
    std::vector<Json> lines;
    for (const char* prompt : {"p0", "p1", "p2", "p3", "p4"}) {
      FidelityLine line;
      line.prompt = prompt;
      line.continuation = "c0";
      line.kind = "question";
      line.arm = arm;
      line.kl = {kl, 3 * kl};
      line.other = {1};
      line.answer_tokens = 1;
      line.code_bits = line.total_bits = bits;
      lines.push_back(FidelityLineJson(line));
    }
    return lines;
  }
  std::string Fidelity(const std::string& name, const std::string& arm, double bits, double kl) const {
    return Write(name, FidelityHeader({arm}), FidelityLines(arm, bits, kl));
  }
  std::string Ttft(const std::string& name) const {
    Json header = Common(kTtftKind);
    header["depths"] = {1024, 2048};
    header["pack"] = {{"policy", "uniform"}, {"code_bits", 4.0}, {"max_bytes", 0}};
    std::vector<Json> lines;
    for (const size_t depth : {1024U, 2048U}) {
      for (const char* way : {kSenderWay, kReprefillWay, kCardAttachedWay}) {
        TtftLine line;
        line.depth = depth;
        line.way = way;
        line.runs = 3;
        line.bytes = 1000;
        line.total = {4000, 3000, 5000};
        line.stages = {{"open and verify", {1000, 900, 1100}}, {"first token", {3000, 2100, 3900}}};
        if (way != std::string(kSenderWay)) line.speedup = 12.5;
        lines.push_back(TtftJson(line));
      }
    }
    return Write(name, header, lines);
  }
  std::string Memory(const std::string& name) const {
    Json header = Common(kMemoryKind);
    header["depth"] = 2048;
    header["bits"] = 4.0;
    std::vector<Json> lines;
    for (const auto& [shape, number] :
         {std::pair(kContextsShape, 1), std::pair(kContextsShape, 4), std::pair(kHopShape, 1)}) {
      MemoryLine line;
      line.shape = shape;
      line.content = "card";
      line.number = static_cast<size_t>(number);
      line.private_bytes = 150'000'000;
      line.peak_private_bytes = 200'000'000;
      line.model_private_bytes = 100'000'000;
      lines.push_back(MemoryJson(line));
    }
    return Write(name, header, lines);
  }
  std::string Chain(const std::string& name, const std::string& arm, size_t right) const {
    Json header = Common(kHopKind);
    header[kHopKind] = kHopVersion;
    header.update({{"task", "gsm8k"},
                   {"arm", arm},
                   {"hand_over", "cards"},
                   {"hops", 2},
                   {"chains", 10},
                   {"cache_token_bytes", 256},
                   {"cache_code_bits", 16},
                   {"cache_total_bits", 16},
                   {"cache_type_k", "f16"},
                   {"cache_type_v", "f16"}});
    std::vector<Json> lines;
    for (size_t i = 0; i < 10; ++i) {
      for (size_t hop = 0; hop < 2; ++hop) {
        lines.push_back({{"chain", "sheet-" + std::to_string(i)},
                         {"hop", hop},
                         {"problem", "gsm8k-" + std::to_string((i + 2 * hop) % 10)},
                         {"right", i < right},
                         {"marked", true},
                         {"truncated", false},
                         {"answer", 1},
                         {"expected", 1},
                         {"card_bytes", 10},
                         {"card_tokens", 5},
                         {"code_bits", 4.0},
                         {"total_bits", 4.3}});
      }
    }
    return Write(name, header, lines);
  }
  static Report Make(const std::vector<std::string>& files, const std::vector<std::string>& against = {}) {
    ReportRequest request;
    request.files = files;
    request.against = against;
    const Result<Report> report = MakeReport(request);
    EXPECT_TRUE(report.has_value()) << report.status().message();
    return report.has_value() ? *report : Report();
  }
  static Status Refusal(const std::vector<std::string>& files, const std::vector<std::string>& against = {}) {
    ReportRequest request;
    request.files = files;
    request.against = against;
    return MakeReport(request).status();
  }
  static void ExpectHas(const std::string& text, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word;
  }

  std::filesystem::path folder_;
};

TEST_F(ReportTest, HasASectionForEachKind) {
  const Report report = Make({Fidelity("f1", "uniform@4", 4.25, 0.01), Fidelity("f2", "floor", 16, 0.001),
                              Chain("c1", "f16", 6), Chain("c2", "uniform@4", 4), Ttft("t"), Memory("m")});
  ExpectHas(report.html,
            {"Fidelity: Tiny &lt;b&gt;, facts, 1024 tokens", "Chains of GSM8K: Tiny &lt;b&gt;",
             "Time to first token: Tiny &lt;b&gt;, cards of 4.0 bits by uniform", "Memory: Tiny &lt;b&gt;, 2048 tokens",
             "uniform@4", "noise floor", "open and verify", "0123456789ab", "<svg class=\"plot\""});
  ExpectHas(report.markdown, {"## Fidelity: Tiny <b>, facts, 1024 tokens", "## Chains of GSM8K", "| card attached |",
                              "| uniform@4 |", "### Hops of a chain", "100.0 MB"});
  // Nothing is loaded from anywhere, and nothing of a file is markup.
  for (const char* word : {"<script", "http:", "https:", "@import", "url(", "<b>,"})
    EXPECT_EQ(report.html.find(word), std::string::npos) << word;
}

TEST_F(ReportTest, ArmsOfSeveralFilesAreInOneTable) {
  const std::vector<std::string> files = {Fidelity("f1", "uniform@4", 4.25, 0.01),
                                          Fidelity("f2", "local@4", 4.25, 0.005)};
  ExpectHas(Make(files).markdown, {"KL / uniform@4", "0.500 [0.500, 0.500]"});
  ExpectHas(Make(files, {"local@4"}).markdown, {"KL / local@4", "2.000 [2.000, 2.000]"});
  const Status status = Refusal(files, {"oracle@4"});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("oracle@4"), std::string::npos);
}

TEST_F(ReportTest, OtherModelsAndInputsAreNotMixed) {
  const std::string one = Fidelity("f1", "uniform@4", 4.25, 0.01);
  for (const char* member : {"model_fingerprint", "input", "threads", "card_format"}) {
    Json header = FidelityHeader({"local@4"});
    header[member] = "another";
    const std::string other = Write("f2", header, FidelityLines("local@4", 4.25, 0.005));
    const Status status = Refusal({one, other});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    ExpectHas(status.message(), {one, other, member});
  }
  Json header = FidelityHeader({"local@4"});
  header["model"] = "Other";  // a section of its own
  const Report report = Make({one, Write("f2", header, FidelityLines("local@4", 4.25, 0.005))});
  ExpectHas(report.html, {"Fidelity: Tiny", "Fidelity: Other"});
}

TEST_F(ReportTest, DamagedLinesAreNamed) {
  std::vector<Json> lines = FidelityLines("uniform@4", 4, 0.1);
  lines[1].erase("kl");
  const Status status = Refusal({Write("f1", FidelityHeader({"uniform@4"}), lines)});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  ExpectHas(status.message(), {"f1: result 2: "});
  EXPECT_EQ(Refusal({Write("f2", FidelityHeader({}), {})}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal({Write("t", Common(kTtftKind), {})}).code(), StatusCode::kCorrupt);
  const std::string ttft = Ttft("t1");
  std::filesystem::copy_file(ttft, folder_ / "t2");
  ExpectHas(Refusal({ttft, (folder_ / "t2").string()}).message(), {"is in another file too"});
  const std::string memory = Memory("m1");
  std::filesystem::copy_file(memory, folder_ / "m2");
  ExpectHas(Refusal({memory, (folder_ / "m2").string()}).message(), {"m2", "card, contexts", "is in another file too"});
}

TEST_F(ReportTest, TimesOfTwoTextsAreNotMixed) {
  Json header = Common(kTtftKind);
  header["pack"] = {{"policy", "uniform"}, {"code_bits", 4.0}, {"max_bytes", 0}};
  TtftLine line;
  line.way = kReprefillWay;
  line.runs = 1;
  const auto write = [&](const char* name, size_t depth) {
    line.depth = depth;
    header["depths"] = {depth};
    return Write(name, header, {TtftJson(line)});
  };
  const std::string one = write("t1", 1024), same = write("t2", 2048);
  ExpectHas(Make({one, same}).markdown, {"| re-prefill |"});
  header["input"] = "01";
  ExpectHas(Refusal({one, write("t3", 2048)}).message(), {"t1", "t3", "input"});
}

TEST_F(ReportTest, SaysWhatAContextTakesAndWhatIsLeftOut) {
  Json header = Common(kMemoryKind);
  header["depth"] = 2048;
  header["bits"] = 4.0;
  header["left_out"] = {{"card", "heads of 80 <values>"}};
  std::vector<Json> lines;
  MemoryLine line;
  line.shape = kContextsShape;
  line.number = 2;
  line.model_private_bytes = 100'000'000;
  for (const auto& [content, bytes] : {std::pair("empty", 90'000'000U), std::pair("F16", 147'000'000U)}) {
    line.content = content;
    line.private_bytes = line.peak_private_bytes = bytes;
    lines.push_back(MemoryJson(line));
  }
  const Report report = Make({Write("m", header, lines)});
  ExpectHas(report.markdown, {"-10.0 MB", "57.0 MB", "Without card: heads of 80"});
  ExpectHas(report.html, {"Without card: heads of 80 &lt;values&gt;"});
}

TEST_F(ReportTest, SaysWhatIsUnfinished) {
  Json header = Common(kTtftKind);
  header["depths"] = {1024, 2048};
  header["pack"] = {{"policy", "uniform"}, {"code_bits", 4.0}, {"max_bytes", 0}};
  TtftLine line;
  line.way = kReprefillWay;
  line.runs = 1;
  line.depth = 1024;
  const std::string part = Write("t1", header, {TtftJson(line)});
  ExpectHas(Make({part}).markdown, {"Unfinished: ", "t1 has 1 of 2 depths"});
  header["depths"] = {1024};
  EXPECT_EQ(Make({Write("t2", header, {TtftJson(line)})}).html.find("Unfinished"), std::string::npos);
}

TEST_F(ReportTest, TheMarkdownSaysWhatResultsFollowFrom) {
  Json header = FidelityHeader({});
  header["arms"] = Json::array({{{"arm", "uniform@4"}, {"code_bits", 4}}, {{"arm", "exact"}}});
  header["input"] = std::string(64, 'e');
  const std::string markdown = Make({Write("f1", header, FidelityLines("uniform@4", 4.25, 0.01))}).markdown;
  ExpectHas(markdown, {"input eeeeeeeeeeee; ", "threads 2", "arms uniform@4 exact", "card_format [0,1]", "/f1`: "});
  EXPECT_EQ(markdown.find("eeeeeeeeeeeee"), std::string::npos);
}

TEST_F(ReportTest, ModelsThatAreKnownHaveTheirShortNames) {
  Json header = FidelityHeader({"uniform@4"});
  header["model"] = "Smollm2 135M 8k Lc100K Mix1 Ep2";
  header["model_fingerprint"] = "fa9d46b38d5be0f932fbfdf48f7c076c747e0ef5bcf27ba9322b904a5af2d4ba";
  const Report report = Make({Write("f1", header, FidelityLines("uniform@4", 4.25, 0.01))});
  ExpectHas(report.html, {"<h2>Fidelity: smollm2-135m, facts", "smollm2-135m (Smollm2 135M 8k Lc100K Mix1 Ep2)"});
  header["model_fingerprint"] = "00";
  ExpectHas(Make({Write("f2", header, FidelityLines("uniform@4", 4.25, 0.01))}).html,
            {"<h2>Fidelity: Smollm2 135M 8k Lc100K Mix1 Ep2, facts"});
}

TEST_F(ReportTest, SaysThatARunWentOnOnAnotherCpu) {
  const std::string path = Fidelity("f", "uniform@4", 4.25, 0.01);
  EXPECT_EQ(Make({path}).html.find("kinds of CPU<"), std::string::npos);
  std::ofstream(path, std::ios::app)
      << R"({"produced_by": {"program": "0123456789abcdef", "qkvshare": "0.1.0", "llama_cpp_system": "AVX_VNNI = 1"}})"
      << "\n";
  ExpectHas(Make({path}).html, {"0.1.0 0123456789ab; on 2 kinds of CPU<"});
}

TEST(ReportHopsTest, ZerosAndTheFirstHopAreNotDrawn) {
  std::vector<FidelityLine> lines;
  for (const char* arm : {"once@4", "cache:f16"}) {
    for (const char* chain : {"a", "b", "c", "d", "e"}) {
      for (int hop = 1; hop <= 3; ++hop) {
        FidelityLine& line = lines.emplace_back();
        line.prompt = chain;
        line.arm = arm;
        line.continuation = line.kind = "hop " + std::to_string(hop);
        line.kl = {arm[0] == 'o' ? 0.01 * hop : 0};
        line.answer_tokens = 1;
      }
    }
  }
  const Result<FidelitySummary> summary = SummarizeHopKl(lines, {});
  ASSERT_TRUE(summary.has_value());
  const Plot plot = HopKlPlot(*summary);
  ASSERT_EQ(plot.series.size(), 2U);
  ASSERT_EQ(plot.series[0].points.size(), 2U);
  EXPECT_NEAR(plot.series[0].points[0].x, 2, 0.1);
  EXPECT_NEAR(plot.series[0].points[1].y, 0.03, 1e-12);
  EXPECT_NEAR(plot.series[0].points[1].low, 0.03, 1e-12);
  EXPECT_TRUE(plot.series[1].points.empty());
  EXPECT_DOUBLE_EQ(plot.y.ticks.front(), 0.01);
  EXPECT_DOUBLE_EQ(plot.y.ticks.back(), 0.1);
}

TEST(ReportChainTest, ArmsThatAreNotDoneAreNotDrawn) {
  ChainSummary summary;
  summary.hops = 1;
  for (const size_t chains : {5U, 3U, 5U}) {
    ChainArmRow& arm = summary.arms.emplace_back();
    arm.arm = "arm" + std::to_string(summary.arms.size());
    arm.chains = chains;
    arm.hops = {{chains, 2, 0, 0, WilsonInterval(2, chains)}};
  }
  const Plot plot = ChainPlot(summary);
  ASSERT_EQ(plot.series.size(), 2U);
  EXPECT_EQ(plot.series[0].name, "arm1");
  EXPECT_EQ(plot.series[1].name, "arm3");
}

TEST(ReportFidelityTest, TheFrontIsWhatNothingBeats) {
  std::vector<FidelityRow> rows;
  const auto add = [&](const char* arm, double bits, double kl) {
    FidelityRow& row = rows.emplace_back();
    row.arm = arm;
    row.total_bits = bits;
    row.mean_kl = {kl, NAN, NAN};
  };
  add("exact", 16, 0.001);
  add("uniform@4", 4.3, 0.02);
  add("local@4", 4.3, 0.01);
  add("cache:q4_0/q4_0", 4.5, 0.5);
  add("uniform@3", 3.3, 0.1);
  add("oracle@3", 3.3, 0.0001);
  add("floor", 0, 0.0002);
  std::vector<std::string> arms;
  for (const FidelityRow* row : ParetoFront(rows)) arms.push_back(row->arm);
  EXPECT_EQ(arms, (std::vector<std::string>{"uniform@3", "local@4", "exact"}));
  const Plot plot = FidelityPlot(rows);
  EXPECT_EQ(plot.level->first, 0.0002);
  EXPECT_EQ(plot.front.size(), 5U);  // steps
  ASSERT_EQ(plot.series.size(), 5U);
  EXPECT_EQ(plot.series[1].name, "uniform");
  EXPECT_EQ(plot.series[1].points.size(), 2U);
  EXPECT_TRUE(plot.series[4].hollow);
  EXPECT_EQ(plot.x.ticks.front(), 3);
  EXPECT_EQ(plot.x.ticks.back(), 16);
  EXPECT_EQ(plot.y.ticks.back(), 1);
}

}  // namespace
}  // namespace qkvshare
