#include "cli/memory_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace qkvshare::cli {
namespace {

std::vector<std::string> Shell(const std::string& script) { return {"sh", "-c", script}; }

// A process that says it has so much, and waits at the gate that it is told of as the real one does.
std::string Says(const MemoryCaseResult& result) {
  std::string line = MemoryCaseResultJson(result).dump();
  line.pop_back();
  return "input=$(cat); gate=${input##*\\\"gate\\\":\\\"}; gate=${gate%%\\\"*}; echo '" + line +
         ",\"process\":'$$'}'; flock -s \"$gate\" true";
}

MemoryCaseResult SomeResult() {
  MemoryCaseResult result;
  result.model_private_bytes = 3;
  result.held = {5, 6, 7};
  result.peak_private_bytes = 8;
  result.output_bytes = 9;
  return result;
}

TEST(MemoryProcesses, AllAreThereWhenTheyAreLookedAt) {
  const auto results = RunMemoryProcesses(Shell(Says(SomeResult())), {}, 3, nullptr);
  ASSERT_TRUE(results) << results.status().message();
  ASSERT_EQ(results->size(), 3u);
  for (const MemoryCaseResult& result : *results) {
    EXPECT_EQ(result.held.private_bytes, 5u);
    EXPECT_EQ(result.held.shared_bytes, 6u);
    EXPECT_EQ(result.output_bytes, 9u);
    EXPECT_GT(result.held.proportional_bytes, 7u);  // as the system says of the living process
  }
}

TEST(MemoryProcesses, OneThatFailsEndsTheOthers) {
  const std::string first =
      (std::filesystem::temp_directory_path() / ("qkv_first_" + std::to_string(getpid()))).string();
  const auto begin = std::chrono::steady_clock::now();
  const auto results = RunMemoryProcesses(
      Shell("if mkdir " + first + "; then echo 'error: no model' >&2; exit 3; fi; sleep 100"), {}, 3, nullptr);
  std::filesystem::remove(first);
  EXPECT_EQ(results.status().code(), StatusCode::kInternal);
  EXPECT_NE(results.status().message().find("no model"), std::string::npos) << results.status().message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(MemoryProcesses, RefusesWhatIsNoResult) {
  EXPECT_EQ(RunMemoryProcesses(Shell("true"), {}, 2, nullptr).status().code(), StatusCode::kInternal);
  EXPECT_EQ(RunMemoryProcesses(Shell("echo hello"), {}, 1, nullptr).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(RunMemoryProcesses({"/no/such/program"}, {}, 1, nullptr).status().code(), StatusCode::kNotFound);
}

TEST(MemoryProcesses, CanBeCancelled) {
  std::atomic<bool> cancel{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cancel = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(RunMemoryProcesses(Shell("sleep 100"), {}, 2, &cancel).status().code(), StatusCode::kCancelled);
  later.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace qkvshare::cli
