#include "eval/result_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
T Take(Result<T> result) {
  EXPECT_TRUE(result) << result.status().message();
  return std::move(*result);
}

class ResultFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two groups: of two lines, and of one.
  static ResultPlan Plan() {
    ResultPlan plan;
    plan.header = {{"things", 1}, {"model", "m"}, {"seed", 7}};
    plan.keys = {{{"thing", "a"}, {"part", 0}}, {{"thing", "a"}, {"part", 1}}, {{"thing", "b"}, {"part", 0}}};
    plan.group_lines = {2, 1};
    plan.check = [](const Json& line) {
      return line.contains("result") ? Status() : Status(StatusCode::kCorrupt, "it has no result");
    };
    return plan;
  }
  static Json Line(const std::string& thing, int part) { return {{"thing", thing}, {"part", part}, {"result", 0.5}}; }
  static std::vector<Json> First() { return {Line("a", 0), Line("a", 1)}; }
  static std::vector<Json> Second() { return {Line("b", 0)}; }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string path() const { return Path("r.jsonl"); }
  std::string Text() const { return Take(ReadText(path(), 1 << 20)); }
  void WriteText(const std::string& text) const { std::ofstream(path()) << text; }
  // A whole file.
  std::string Whole() const {
    ResultFile file = Take(ResultFile::Open(path(), Plan()));
    EXPECT_TRUE(file.Append(First()).ok());
    EXPECT_TRUE(file.Append(Second()).ok());
    return Text();
  }
  void ExpectRefused(const ResultPlan& plan, StatusCode code, const std::string& part) const {
    const std::string before = Text();
    const Status status = ResultFile::Open(path(), plan).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("remove it"), std::string::npos) << status.message();
    EXPECT_EQ(Text(), before);
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("qkv_result_file_" + std::to_string(getpid()));
};

TEST_F(ResultFileTest, GoesOnAfterTheLastWholeGroup) {
  const std::string whole = Whole();
  const size_t second = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    WriteText(whole.substr(0, bytes));
    ResultFile file = Take(ResultFile::Open(path(), Plan()));
    const size_t lines = bytes == whole.size() ? 3 : bytes >= second ? 2 : 0;
    ASSERT_EQ(file.lines().size(), lines) << bytes;
    if (lines == 0) {
      EXPECT_TRUE(file.Append(First()).ok());
    }
    if (lines < 3) {
      EXPECT_TRUE(file.Append(Second()).ok());
    }
    ASSERT_EQ(Text(), whole) << bytes;
  }
}

TEST_F(ResultFileTest, SaysWhichProgramsWroteIt) {
  std::string whole = Whole();
  const Results results = Take(ReadResults(path(), "things"));
  EXPECT_EQ(results.header, Plan().header);
  EXPECT_EQ(results.lines, (std::vector<Json>{Line("a", 0), Line("a", 1), Line("b", 0)}));
  ASSERT_EQ(results.producers, std::vector<Json>{ProducerFacts()});
  EXPECT_EQ(results.producers[0]["program"].get<std::string>().size(), 64u);
  EXPECT_FALSE(results.producers[0]["llama_cpp_system"].get<std::string>().empty());
  // Another program wrote the first group.
  const std::string ours = ProducerFacts()["program"].get<std::string>();
  whole.replace(whole.find(ours), ours.size(), std::string(64, '0'));
  WriteText(whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1));
  ResultFile file = Take(ResultFile::Open(path(), Plan()));
  ASSERT_TRUE(file.Append(Second()).ok());
  const Results both = Take(ReadResults(path(), "things"));
  ASSERT_EQ(both.producers.size(), 2u);
  EXPECT_EQ(both.producers[0]["program"], std::string(64, '0'));
  EXPECT_EQ(both.producers[1], ProducerFacts());
  EXPECT_EQ(both.lines.size(), 3u);
}

TEST_F(ResultFileTest, ResultsOfSomethingElseAreRefusedAndStay) {
  const std::string whole = Whole();
  ResultPlan other = Plan();
  other.header["seed"] = 8;
  ExpectRefused(other, StatusCode::kInvalidArgument, "\"seed\" differs");
  other = Plan();
  other.header["flags"] = Json::array();
  ExpectRefused(other, StatusCode::kInvalidArgument, "\"flags\" differs");
  other = Plan();
  other.header.erase("seed");
  ExpectRefused(other, StatusCode::kInvalidArgument, "says more of its run");
  for (const char* text : {"some notes of mine", "{\"other\": 1}\n", "[1]\n", "\n"}) {
    WriteText(text);
    ExpectRefused(Plan(), StatusCode::kInvalidArgument, "is no file of results with \"things\"");
    EXPECT_EQ(ReadResults(path(), "things").status().code(), StatusCode::kInvalidArgument);
  }
  // Line 1 is the header, line 2 the program, 3 to 5 are results.
  const size_t third = whole.find("{\"thing\":"), fourth = whole.find('\n', third) + 1;
  WriteText(whole.substr(0, third + 10) + "\n" + whole.substr(third + 11));
  ExpectRefused(Plan(), StatusCode::kCorrupt, "line 3 is damaged");
  EXPECT_EQ(ReadResults(path(), "things").status().code(), StatusCode::kCorrupt);
  WriteText(whole.substr(0, fourth) + "{\"thing\": \"a\", \"part\": 1}\n");
  ExpectRefused(Plan(), StatusCode::kCorrupt, "line 4 is damaged");
  WriteText(whole.substr(0, fourth) + whole.substr(third));
  ExpectRefused(Plan(), StatusCode::kCorrupt, "line 4 is not the one that comes next");
  WriteText(whole + whole.substr(third, fourth - third));
  ExpectRefused(Plan(), StatusCode::kCorrupt, "line 6 is not the one that comes next");
}

TEST_F(ResultFileTest, OneRunAtATimeWritesToIt) {
  const ResultFile file = Take(ResultFile::Open(path(), Plan()));
  EXPECT_EQ(ResultFile::Open(path(), Plan()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ResultFile::Open(Path("none/r.jsonl"), Plan()).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace qkvshare
