#include "agents/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

extern char** environ;

namespace qkvshare {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollInterval{20};  // the cancel flag and the worker's end have nothing to wait on
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kLeftReads = 16;  // a pipe holds 1 MiB at most, if nobody has raised the system's limit
constexpr size_t kTailBytes = 4096;
constexpr size_t kLastLineBytes = 400;

// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // A number above the standard streams', which are the worker's own.
  bool Take(int fd) {
    Close();
    fd_ = fd > STDERR_FILENO ? fd : fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd_ != fd) close(fd);
    return open();
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// A stream between us and the worker.
struct Stream {
  Descriptor ours, theirs;
};

Status CannotStart(const std::string& program, int error) {
  return {error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
          fmt::format("cannot start the worker {}: {}", program, std::strerror(error))};
}

// A socket, not a pipe: writing to a worker that reads no more is an error there, and no SIGPIPE.
bool OpenInput(Stream* stream) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
  const bool taken = stream->ours.Take(ends[0]);
  return stream->theirs.Take(ends[1]) && taken;
}

// Not blocking at our end.
bool OpenOutput(Stream* stream) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  const bool taken = stream->ours.Take(ends[0]);
  return stream->theirs.Take(ends[1]) && taken && fcntl(stream->ours.get(), F_SETFL, O_NONBLOCK) == 0;
}

// Three descriptors as the worker's first three, and no others: some of this process's may be open for all.
struct SpawnFiles {
  SpawnFiles(int input, int output, int errors) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  }
  ~SpawnFiles() { posix_spawn_file_actions_destroy(&actions); }
  SpawnFiles(const SpawnFiles&) = delete;
  SpawnFiles& operator=(const SpawnFiles&) = delete;
  posix_spawn_file_actions_t actions{};
};

// A process group of its own, no signal blocked, and none ignored that is to end the worker.
struct SpawnAttributes {
  SpawnAttributes() {
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigaddset(&signals, SIGPIPE);
    sigaddset(&signals, SIGTERM);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  posix_spawnattr_t attributes{};
};

// The worker's process and its group. The process stays a zombie until Reap, so that no other can have its id before
// the group has been killed.
class Process {
 public:
  Process() = default;
  ~Process() {
    if (pid_ > 0) (void)Reap();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Status Start(const std::vector<std::string>& argv, const SpawnFiles& files) {
    std::vector<char*> arguments;
    for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    const SpawnAttributes how;
    const int error = posix_spawnp(&pid_, arguments[0], &files.actions, &how.attributes, arguments.data(), environ);
    if (error == 0) return {};
    pid_ = 0;
    return CannotStart(argv[0], error);
  }

  bool HasEnded() const {
    siginfo_t info{};
    const int result = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return result != 0 ? errno != EINTR : info.si_pid != 0;
  }

  // Asks the group to end, and waits for the worker to do so.
  void Terminate(std::chrono::milliseconds grace) const {
    kill(-pid_, SIGTERM);
    for (const auto end = Clock::now() + grace; !HasEnded() && Clock::now() < end;) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  // Kills what is left of the group, and returns the worker's status as waitpid gives it, or -1.
  int Reap() {
    kill(-pid_, SIGKILL);
    int status = -1;
    while (waitpid(pid_, &status, 0) < 0) {
      if (errno == EINTR) continue;
      status = -1;
      break;
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
};

// What comes out of the worker, cut into lines.
class LineReader {
 public:
  LineReader(size_t limit, const std::function<Status(const std::string&)>& on_line)
      : limit_(limit), on_line_(on_line) {}

  Status Add(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t end = std::min(bytes.find('\n'), bytes.size());
      if (line_.size() + end > limit_) {
        return {StatusCode::kOutOfRange, fmt::format("the worker wrote a line of more than {} bytes", limit_)};
      }
      line_.append(bytes.substr(0, end));
      if (end == bytes.size()) return {};
      QKV_RETURN_IF_ERROR(on_line_(std::exchange(line_, {})));
      bytes.remove_prefix(end + 1);
    }
    return {};
  }
  // A last line without an end is one too.
  Status Finish() { return line_.empty() ? Status() : on_line_(std::exchange(line_, {})); }

 private:
  size_t limit_;
  const std::function<Status(const std::string&)>& on_line_;
  std::string line_;
};

// The last line that is not empty, on one line and of a length that fits a message.
std::string LastLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  if (text.size() > kLastLineBytes) {
    size_t end = kLastLineBytes;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
    text = text.substr(0, end) + "...";
  }
  const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

// One worker, from its start to its end.
class Worker {
 public:
  Worker(std::string_view input, const WorkerLimits& limits, const std::function<Status(const std::string&)>& on_line)
      : left_(input), limits_(limits), lines_(limits.line_bytes, on_line) {}

  Status Run(const std::vector<std::string>& argv) {
    QKV_RETURN_IF_ERROR(Start(argv));
    Status status = Talk();
    if (!status.ok()) {
      input_.ours.Close();  // a worker that is stuck in reading or writing is so no more
      output_.ours.Close();
      process_.Terminate(limits_.grace);
      return status;
    }
    return HowItEnded(process_.Reap());
  }

 private:
  Status Start(const std::vector<std::string>& argv) {
    if (argv.empty() || argv[0].empty()) return {StatusCode::kInvalidArgument, "no program is named for the worker"};
    if (!OpenInput(&input_) || !OpenOutput(&output_) || !OpenOutput(&errors_)) return CannotStart(argv[0], errno);
    QKV_RETURN_IF_ERROR(
        process_.Start(argv, SpawnFiles(input_.theirs.get(), output_.theirs.get(), errors_.theirs.get())));
    for (Stream* stream : {&input_, &output_, &errors_}) stream->theirs.Close();
    if (left_.empty()) input_.ours.Close();
    return {};
  }

  // Until the worker has ended and all that it wrote has been read; not OK where it is to be ended.
  Status Talk() {
    auto heard = Clock::now();
    while (!process_.HasEnded()) {
      std::array<pollfd, 3> files = {pollfd{input_.ours.get(), POLLOUT, 0}, pollfd{output_.ours.get(), POLLIN, 0},
                                     pollfd{errors_.ours.get(), POLLIN, 0}};
      if (poll(files.data(), files.size(), static_cast<int>(kPollInterval.count())) < 0) continue;  // a signal
      if (limits_.cancel != nullptr && *limits_.cancel) return {StatusCode::kCancelled, "the worker was cancelled"};
      if (files[0].revents != 0 && input_.ours.open()) Send();
      if (files[1].revents != 0) QKV_RETURN_IF_ERROR(ReadOutput());
      if (files[2].revents != 0) ReadErrors();
      if (files[1].revents != 0 || files[2].revents != 0) {
        heard = Clock::now();
      } else if (Clock::now() - heard > limits_.silence) {
        return Silent();
      }
    }
    // What processes outside of the group write from now on does not count, or this might never end.
    for (size_t i = 0; i < kLeftReads && output_.ours.open(); ++i) QKV_RETURN_IF_ERROR(ReadOutput());
    for (size_t i = 0; i < kLeftReads && errors_.ours.open(); ++i) ReadErrors();
    return {};
  }

  void Send() {
    const ssize_t sent = send(input_.ours.get(), left_.data(), left_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) left_.remove_prefix(static_cast<size_t>(sent));
    if (sent < 0 || left_.empty()) input_.ours.Close();  // read by nobody, or complete
  }

  // What is there to read, at most kReadBytes. The stream is closed at its end.
  std::string_view Read(Stream* stream) {
    const ssize_t n = read(stream->ours.get(), buffer_.data(), buffer_.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (n <= 0) stream->ours.Close();
    return {buffer_.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
  }
  Status ReadOutput() { return lines_.Add(Read(&output_)); }
  void ReadErrors() {
    tail_ += Read(&errors_);
    if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  }

  Status Failed(const std::string& how) const {
    const std::string last = LastLine(tail_);
    return {StatusCode::kInternal, "the worker " + how + (last.empty() ? "" : ": " + last)};
  }
  Status Silent() const {
    return Failed(fmt::format("said nothing for {:g} seconds, so it was ended",
                              std::chrono::duration<double>(limits_.silence).count()));
  }
  Status HowItEnded(int status) {
    if (status == -1) return Failed("has ended, it is not known how");
    if (WIFSIGNALED(status)) return Failed(fmt::format("was killed by signal {}", WTERMSIG(status)));
    if (WEXITSTATUS(status) != 0) return Failed(fmt::format("exited with code {}", WEXITSTATUS(status)));
    return lines_.Finish();
  }

  std::string_view left_;  // of the input
  const WorkerLimits& limits_;
  LineReader lines_;
  std::string tail_;  // of standard error
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  Stream input_, output_, errors_;
  Process process_;
};

}  // namespace

Status RunWorkerProcess(const std::vector<std::string>& argv, const std::string& input, const WorkerLimits& limits,
                        const std::function<Status(const std::string& line)>& on_line) {
  return Worker(input, limits, on_line).Run(argv);
}

}  // namespace qkvshare
