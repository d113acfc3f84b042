#include "eval/run_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace qkvshare {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(parent_); }

  // What the run of such a process would have there.
  fs::path MakeRun(const std::string& process) const {
    const fs::path folder = parent_ / ("run-" + process);
    fs::create_directories(folder);
    std::ofstream(folder / "state") << "rows";
    return folder;
  }

  const fs::path parent_ = fs::temp_directory_path() / ("qkv_run_folder_" + std::to_string(getpid()));
};

TEST_F(RunFolderTest, IsThereUntilItsRunEnds) {
  fs::path path;
  {
    const auto made = RunFolder::Make(parent_ / "deeper");
    ASSERT_TRUE(made) << made.status().message();
    path = (*made)->path();
    EXPECT_EQ(path.parent_path(), parent_ / "deeper");
    std::ofstream(path / "state") << "rows";
    EXPECT_TRUE(fs::exists(path / "state"));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(path.parent_path()));
}

TEST_F(RunFolderTest, TakesAwayWhatKilledRunsLeft) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_GT(child, 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const fs::path gone = MakeRun(std::to_string(child));
  const fs::path own = MakeRun(std::to_string(getpid()));  // of an earlier process with this id
  const fs::path running = MakeRun(std::to_string(getppid()));
  const fs::path others = MakeRun("of-somebody");
  const auto made = RunFolder::Make(parent_);
  ASSERT_TRUE(made) << made.status().message();
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_EQ((*made)->path(), own.string());
  EXPECT_TRUE(fs::is_empty(own));
  EXPECT_TRUE(fs::exists(running / "state"));
  EXPECT_TRUE(fs::exists(others / "state"));
}

TEST_F(RunFolderTest, SaysWhereItCannotBeMade) {
  fs::create_directories(parent_);
  std::ofstream(parent_ / "file") << "no folder";
  const Status status = RunFolder::Make(parent_ / "file").status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find((parent_ / "file").string()), std::string::npos) << status.message();
}

}  // namespace
}  // namespace qkvshare
