#include "eval/report_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

class ReportFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("qkv_report_file_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const Json& header, size_t lines = 1) const {
    std::ofstream file(folder_ / name);
    file << header.dump() << "\n";
    for (size_t i = 0; i < lines; ++i) file << R"({"value": )" << i << "}\n";
    return (folder_ / name).string();
  }
  static Json Header(const std::string& kind = "a_kind") {
    return {{kind, 1}, {"model", "m"}, {"card_format", {0, 12}}, {"arms", {"x"}}};
  }
  static Result<std::vector<ReportFile>> Read(const std::vector<std::string>& paths) {
    return ReadReportFiles(paths, std::vector<std::string>{"a_kind", "b_kind"});
  }
  static Result<std::vector<FileGroup>> Group(const std::vector<ReportFile>& files) {
    return GroupFiles(
        files, "a_kind", [](const Json& header) { return HeaderText(header, "model"); },
        std::vector<std::string>{"arms"});
  }

  std::filesystem::path folder_;
};

TEST_F(ReportFileTest, KindsAreTold) {
  const auto files = Read({Write("1", Header()), Write("2", Header("b_kind"), 3)});
  ASSERT_TRUE(files.has_value()) << files.status().message();
  EXPECT_EQ((*files)[0].kind, "a_kind");
  EXPECT_EQ((*files)[1].kind, "b_kind");
  EXPECT_EQ((*files)[1].results.lines.size(), 3U);
}

TEST_F(ReportFileTest, OtherFilesAreRefused) {
  const std::string one = Write("1", Header());
  EXPECT_EQ(Read({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Read({one, one}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Read({(folder_ / "none").string()}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Read({Write("2", Header("c_kind"))}).status().code(), StatusCode::kInvalidArgument);
  for (const char* content : {"", "\n", "[]\n", "{}\n", "text", "{\"a_kind\": 1"}) {
    std::ofstream(folder_ / "3") << content;
    const Status status = Read({(folder_ / "3").string()}).status();
    EXPECT_FALSE(status.ok()) << content;
    EXPECT_NE(status.message().find("/3: "), std::string::npos) << status.message();
  }
}

TEST_F(ReportFileTest, CardsOfTwoFormatsDoNotGoIntoOneReport) {
  Json other = Header("b_kind");
  other["card_format"] = {0, 13};
  const Status status = Read({Write("1", Header()), Write("2", other)}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* word : {"/1 and ", "/2 do not go together", "card_format"})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST_F(ReportFileTest, FilesAreTogetherByTheirTitle) {
  Json arms = Header(), model = Header();
  arms["arms"] = {"y"};
  model["model"] = "n";
  const auto files = Read({Write("1", Header()), Write("2", model), Write("3", arms), Write("4", Header("b_kind"))});
  const auto groups = Group(*files);
  ASSERT_TRUE(groups.has_value()) << groups.status().message();
  ASSERT_EQ(groups->size(), 2U);
  EXPECT_EQ((*groups)[0].title, "m");
  EXPECT_EQ((*groups)[0].files.size(), 2U);
  EXPECT_EQ((*groups)[1].title, "n");
}

TEST_F(ReportFileTest, WhatDiffersIsNamed) {
  Json longer = Header(), other = Header();
  longer["seed"] = 2;
  for (const auto& [a, b] : {std::pair(Header(), longer), std::pair(longer, Header())}) {
    const Status status = Group(*Read({Write("1", a), Write("2", b)})).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* word : {"/1 and ", "/2 do not", "\"seed\""})
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  other.erase("model");
  EXPECT_EQ(Group(*Read({Write("1", other)})).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace qkvshare
