#include "agents/worker_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace qkvshare {
namespace {

using std::chrono::milliseconds;

struct Ran {
  Status status;
  std::vector<std::string> lines;
};

// A program of the shell, with `input`.
Ran RunShell(const std::string& program, const std::string& input = "", const WorkerLimits& limits = {}) {
  Ran ran;
  ran.status = RunWorkerProcess({"/bin/sh", "-c", program}, input, limits, [&](const std::string& line) {
    ran.lines.push_back(line);
    return Status();
  });
  return ran;
}

std::string ErrorOf(const std::string& program, const WorkerLimits& limits = {}) {
  const Ran ran = RunShell(program, "", limits);
  EXPECT_EQ(ran.status.ok() ? StatusCode::kInternal : ran.status.code(), StatusCode::kInternal);
  return ran.status.message();
}

bool IsRunning(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string id, name, state;
  return file >> id >> name >> state && state != "Z";
}

// What has been killed takes a moment to be gone.
bool GoesAway(const std::string& pid) {
  for (int i = 0; i < 200 && IsRunning(pid); ++i) std::this_thread::sleep_for(milliseconds(10));
  return !IsRunning(pid);
}

size_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// No test leaves a zombie or an open file.
class WorkerProcessTest : public testing::Test {
 protected:
  WorkerProcessTest() : files_(OpenFiles()) {}
  void TearDown() override {
    EXPECT_EQ(OpenFiles(), files_);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

 private:
  size_t files_;
};

TEST_F(WorkerProcessTest, LinesComeAsTheyAre) {
  const Ran ran = RunShell(R"(printf 'one\n\n three\0 3\r\n'; echo "$1"; printf 'no end')");
  EXPECT_TRUE(ran.status.ok()) << ran.status.message();
  EXPECT_EQ(ran.lines, (std::vector<std::string>{"one", "", std::string(" three\0 3\r", 10), "", "no end"}));
  EXPECT_TRUE(RunShell("").lines.empty());
}

TEST_F(WorkerProcessTest, LinesComeWhenTheyAreWritten) {
  // The worker waits for a file that is made only when its first line has come.
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("qkv_worker_" + std::to_string(getpid()));
  std::vector<std::string> lines;
  const Status status =
      RunWorkerProcess({"/bin/sh", "-c", "echo a; while ! [ -e \"$0\" ]; do sleep 0.02; done; echo b", file.string()},
                       "", {.silence = milliseconds(20'000)}, [&](const std::string& line) {
                         lines.push_back(line);
                         std::ofstream(file) << "x";
                         return Status();
                       });
  std::filesystem::remove(file);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b"}));
}

TEST_F(WorkerProcessTest, InputEndsAndArgumentsAndEnvironmentArePassed) {
  setenv("QKV_WORKER_TEST", "text", 1);
  EXPECT_EQ(RunShell("cat; echo $QKV_WORKER_TEST", "x\ny").lines, (std::vector<std::string>{"x", "ytext"}));
  unsetenv("QKV_WORKER_TEST");
  EXPECT_EQ(RunShell("wc -c").lines, std::vector<std::string>{"0"});
}

TEST_F(WorkerProcessTest, BigInputAndOutputAtOnceDoNotBlock) {
  const std::string line(99'999, 'x');
  std::string input;
  for (int i = 0; i < 100; ++i) input += line + "\n";
  const Ran ran = RunShell("tee /dev/stderr", input);
  EXPECT_TRUE(ran.status.ok()) << ran.status.message();
  EXPECT_EQ(ran.lines, std::vector<std::string>(100, line));
}

TEST_F(WorkerProcessTest, WhoDoesNotReadTheInputMayStillSucceed) {
  const std::string input(5'000'000, 'x');
  EXPECT_TRUE(RunShell("exit 0", input).status.ok());
  const Ran ran = RunShell("exec <&-; sleep 0.1; echo done", input);
  EXPECT_TRUE(ran.status.ok()) << ran.status.message();
  EXPECT_EQ(ran.lines, std::vector<std::string>{"done"});
  EXPECT_EQ(RunShell("head -c 3; sleep 0.1", input).lines, std::vector<std::string>{"xxx"});
}

TEST_F(WorkerProcessTest, EachWayOfEndingIsToldApart) {
  EXPECT_EQ(ErrorOf("exit 3"), "the worker exited with code 3");
  EXPECT_EQ(ErrorOf("echo first >&2; echo 'error: no such card' >&2; echo >&2; exit 3"),
            "the worker exited with code 3: error: no such card");
  EXPECT_EQ(ErrorOf("echo out; kill -KILL $$"), "the worker was killed by signal 9");
  EXPECT_EQ(ErrorOf("echo bad >&2; kill -SEGV $$"), "the worker was killed by signal 11: bad");
  EXPECT_EQ(ErrorOf("kill -PIPE $$"), "the worker was killed by signal 13");  // though this process may ignore it
}

TEST_F(WorkerProcessTest, WhatFailsHandsOverItsWholeLinesOnly) {
  const Ran ran = RunShell("printf 'whole\\ncut off'; exit 1");
  EXPECT_EQ(ran.status.message(), "the worker exited with code 1");
  EXPECT_EQ(ran.lines, std::vector<std::string>{"whole"});
}

TEST_F(WorkerProcessTest, LastLineOfErrorsFitsAMessage) {
  EXPECT_EQ(ErrorOf(R"(printf 'a\033[31m\tred\n' >&2; exit 1)"), "the worker exited with code 1: a?[31m?red");
  // A flood of errors is not kept.
  const std::string flood = ErrorOf("yes error | head -c 18000000 >&2; echo last >&2; exit 1");
  EXPECT_EQ(flood, "the worker exited with code 1: last");
  EXPECT_TRUE(ErrorOf("printf 'x%0300d' 0 | sed 's/0/\u00E9/g' >&2; exit 1").ends_with("\u00E9..."));
  EXPECT_LT(ErrorOf("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1").size(), 500U);
}

TEST_F(WorkerProcessTest, WhatCannotBeStartedIsNamed) {
  const auto no_lines = [](const std::string&) { return Status(); };
  const Status missing = RunWorkerProcess({"/nowhere/worker"}, "", {}, no_lines);
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "cannot start the worker /nowhere/worker: No such file or directory");
  const Status folder = RunWorkerProcess({"/tmp"}, "", {}, no_lines);
  EXPECT_EQ(folder.code(), StatusCode::kIo);
  EXPECT_EQ(RunWorkerProcess({}, "", {}, no_lines).code(), StatusCode::kInvalidArgument);
}

TEST_F(WorkerProcessTest, SilenceEndsIt) {
  const WorkerLimits limits = {.silence = milliseconds(800)};
  std::string pid;
  const Status status = RunWorkerProcess({"/bin/sh", "-c", "echo $$; echo wait >&2; sleep 100"}, "", limits,
                                         [&](const std::string& line) {
                                           pid = line;
                                           return Status();
                                         });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "the worker said nothing for 0.8 seconds, so it was ended: wait");
  EXPECT_FALSE(IsRunning(pid));
  EXPECT_EQ(ErrorOf("exec >&- 2>&-; sleep 100", limits), "the worker said nothing for 0.8 seconds, so it was ended");
  // Stopped, it can't even be asked to end.
  EXPECT_EQ(ErrorOf("kill -STOP $$", {.silence = milliseconds(100), .grace = milliseconds(100)}),
            "the worker said nothing for 0.1 seconds, so it was ended");
}

TEST_F(WorkerProcessTest, AnyOutputBreaksTheSilence) {
  const WorkerLimits limits = {.silence = milliseconds(1500)};
  const Ran ran = RunShell("for i in 1 2 3; do sleep 0.4; printf .; sleep 0.4; printf . >&2; done", "", limits);
  EXPECT_TRUE(ran.status.ok()) << ran.status.message();
  EXPECT_EQ(ran.lines, std::vector<std::string>{"..."});
}

TEST_F(WorkerProcessTest, WhatTheCallerTakesIsNoSilence) {
  const Status status = RunWorkerProcess({"/bin/sh", "-c", "echo a; sleep 0.1; echo b"}, "",
                                         {.silence = milliseconds(800)}, [&](const std::string&) {
                                           std::this_thread::sleep_for(milliseconds(900));
                                           return Status();
                                         });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(WorkerProcessTest, LinesOfAnyNumberButNotOfAnyLength) {
  size_t lines = 0;
  const auto count = [&](const std::string&) {
    ++lines;
    return Status();
  };
  EXPECT_TRUE(RunWorkerProcess({"/bin/sh", "-c", "yes | head -n 1000000"}, "", {.line_bytes = 4}, count).ok());
  EXPECT_EQ(lines, 1'000'000U);
  const Status status = RunShell("echo 1234; echo 12345", "", {.line_bytes = 4}).status;
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), "the worker wrote a line of more than 4 bytes");
  // Without an end of either line or output.
  EXPECT_EQ(RunShell("cat /dev/zero", "", {.line_bytes = 1'000'000}).status.code(), StatusCode::kOutOfRange);
}

TEST_F(WorkerProcessTest, AnErrorOfTheCallerEndsIt) {
  std::string pid;
  const Status status =
      RunWorkerProcess({"/bin/sh", "-c", "echo $$; yes"}, "", {}, [&](const std::string& line) -> Status {
        if (!pid.empty()) return {StatusCode::kCorrupt, "what is y?"};
        pid = line;
        return {};
      });
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "what is y?");
  EXPECT_FALSE(IsRunning(pid));
  // Also of the last lines, which are read when it has ended.
  const auto refuse = [](const std::string& line) {
    return line == "b" ? Status(StatusCode::kCorrupt, "b") : Status();
  };
  EXPECT_EQ(RunWorkerProcess({"/bin/sh", "-c", "printf 'a\\nb'"}, "", {}, refuse).message(), "b");
}

// Cancels when the worker has written a line. The line is its process id.
Ran Cancelled(const std::string& program, milliseconds grace) {
  std::atomic<bool> cancel = false;
  Ran ran;
  ran.status = RunWorkerProcess({"/bin/sh", "-c", program}, "", {.grace = grace, .cancel = &cancel},
                                [&](const std::string& line) {
                                  ran.lines.push_back(line);
                                  cancel = true;
                                  return Status();
                                });
  EXPECT_EQ(ran.status.code(), StatusCode::kCancelled);
  EXPECT_EQ(ran.status.message(), "the worker was cancelled");
  EXPECT_EQ(ran.lines.size(), 1U);
  return ran;
}

TEST_F(WorkerProcessTest, CancellingAsksFirst) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("qkv_worker_asked_" + std::to_string(getpid()));
  const auto start = std::chrono::steady_clock::now();
  Cancelled("trap 'echo bye > " + file.string() + "; exit 0' TERM; echo $$; while :; do sleep 0.05; done",
            milliseconds(20'000));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
  EXPECT_TRUE(std::filesystem::remove(file));
}

TEST_F(WorkerProcessTest, WhoDoesNotListenIsKilledAllTheSame) {
  const Ran ran = Cancelled("trap '' TERM; echo $$; while :; do sleep 0.05; done", milliseconds(200));
  EXPECT_FALSE(IsRunning(ran.lines[0]));
}

TEST_F(WorkerProcessTest, CancelledBeforeItStartsToTalk) {
  const std::atomic<bool> cancel = true;
  const Ran ran = RunShell("sleep 100", "", {.cancel = &cancel});
  EXPECT_EQ(ran.status.code(), StatusCode::kCancelled);
}

TEST_F(WorkerProcessTest, ItsOwnProcessesEndWithIt) {
  const Ran left = RunShell("sleep 100 & echo $!");  // which holds the output open
  EXPECT_TRUE(left.status.ok()) << left.status.message();
  EXPECT_TRUE(GoesAway(left.lines[0]));
  const Ran cancelled = Cancelled("trap '' TERM; sleep 100 & echo $!; wait", milliseconds(100));
  EXPECT_TRUE(GoesAway(cancelled.lines[0]));
}

TEST_F(WorkerProcessTest, IsInAGroupOfItsOwnWithoutBlockedSignals) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const Ran ran = RunShell("echo $$; cut -d' ' -f5 /proc/$$/stat; exec grep SigBlk /proc/self/status");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_EQ(ran.lines.size(), 3U);
  EXPECT_EQ(ran.lines[0], ran.lines[1]);
  EXPECT_EQ(ran.lines[2], "SigBlk:\t0000000000000000");
}

TEST_F(WorkerProcessTest, InheritsNoOpenFile) {
  const int fd = open("/dev/null", O_RDONLY);  // not to be closed by exec
  ASSERT_GE(fd, 0);
  const Ran ran = RunShell("ls /proc/$$/fd");
  close(fd);
  EXPECT_EQ(std::count(ran.lines.begin(), ran.lines.end(), std::to_string(fd)), 0);
  EXPECT_GE(std::count(ran.lines.begin(), ran.lines.end(), "2"), 1);
}

TEST_F(WorkerProcessTest, ManyAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&good, i] {
      const std::string number = std::to_string(i);
      for (int k = 0; k < 5; ++k) {
        if (RunShell("cat", number).lines == std::vector<std::string>{number}) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 40);
}

}  // namespace
}  // namespace qkvshare
