#include "handoff/wire.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

constexpr int kSliceMs = 50;  // between looks at `cancel`
constexpr int kDrainMs = 1;   // between looks at what is left in a pipe
constexpr int64_t kHurryUs = 100'000;
constexpr int64_t kSpinUs = 100;  // a peer that is at work has more in less than it takes to fall asleep and wake up
constexpr size_t kMaxDescriptors = 16;  // that are looked at; one is expected

std::string ErrorText(int error) { return std::system_category().message(error); }

Status StoodStill(const std::string& who, int64_t us) {
  return {StatusCode::kIo, fmt::format("{} has stood still for {:.1f} s", who, static_cast<double>(us) / 1e6)};
}

// Holds back SIGPIPE for this thread, and takes away one that a write has raised.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    if (raised_ && !was_pending_) {
      const timespec now{};
      while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;
  void Raised() { raised_ = true; }

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false, raised_ = false;
};

// A call that is not to be waited for yet.
bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// lend: the pipe may refer to the bytes where they are, instead of taking a copy.
ssize_t WritePipe(int fd, ByteSpan bytes, bool lend) {
  SigpipeGuard guard;
#ifdef SPLICE_F_NONBLOCK
  const iovec data{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  const ssize_t n = lend ? vmsplice(fd, &data, 1, SPLICE_F_NONBLOCK) : write(fd, bytes.data(), bytes.size());
#else
  static_cast<void>(lend);
  const ssize_t n = write(fd, bytes.data(), bytes.size());
#endif
  const int error = errno;
  if (n < 0 && error == EPIPE) guard.Raised();
  errno = error;
  return n;
}

ssize_t SendSocket(int fd, ByteSpan bytes, int pass) {
  iovec data{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (pass >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &pass, sizeof pass);
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Descriptors that came with a message.
std::vector<Descriptor> TakeDescriptors(msghdr* message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

Status WaitFor(int fd, short events, const WireOptions& options, const std::string& what) {
  Stopwatch watch;
  for (int64_t waited_us = 0;; waited_us += watch.LapUs()) {
    if (options.cancel != nullptr && options.cancel->load()) return {StatusCode::kCancelled, "cancelled"};
    if (options.idle_us > 0 && waited_us >= options.idle_us) return StoodStill(what, waited_us);
    int slice = kSliceMs;
    if (options.idle_us > 0)
      slice = static_cast<int>(std::min<int64_t>(slice, (options.idle_us - waited_us) / 1000 + 1));
    pollfd poll_fd{fd, events, 0};
    const int ready = poll(&poll_fd, 1, slice);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return {StatusCode::kIo, "cannot wait for " + what + ": " + ErrorText(errno)};
  }
}

Result<Wire> Wire::Take(Descriptor fd, std::string peer, const WireOptions& options) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0)
    return Status(StatusCode::kInvalidArgument, "no open descriptor: " + ErrorText(errno));
  if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode))
    return Status(StatusCode::kInvalidArgument, "cards are streamed over a pipe or a socket, and this is neither");
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0) return Status(StatusCode::kIo, "cannot use the descriptor: " + ErrorText(errno));
  Wire wire(std::move(fd), std::move(peer), options);
  wire.is_socket_ = S_ISSOCK(info.st_mode);
  if (!wire.is_socket_) {
    if (fcntl(wire.get(), F_SETFL, flags | O_NONBLOCK) != 0)
      return Status(StatusCode::kIo, "cannot use the descriptor: " + ErrorText(errno));
    wire.flags_ = flags;
#ifdef F_SETPIPE_SZ
    fcntl(wire.get(), F_SETPIPE_SZ, static_cast<int>(kPipeBytes));  // as large as the system allows, or as it was
#endif
  }
  return wire;
}

Wire::~Wire() {
  if (fd_.valid() && flags_ >= 0) fcntl(fd_.get(), F_SETFL, flags_);
}

Wire::Wire(Wire&& other) noexcept
    : fd_(std::move(other.fd_)),
      peer_(std::move(other.peer_)),
      options_(other.options_),
      is_socket_(other.is_socket_),
      flags_(std::exchange(other.flags_, -1)) {}

Status Wire::Write(ByteSpan bytes, int pass) { return WriteAll(bytes, pass, /*lend=*/false); }

Status Wire::Lend(ByteSpan bytes) { return WriteAll(bytes, /*pass=*/-1, /*lend=*/true); }

Status Wire::WaitUntilRead() {
  if (is_socket_) return {};
  Stopwatch watch;
  int64_t idle_us = 0;
  for (int before = 0;;) {
    int left = 0;
    if (ioctl(fd_.get(), FIONREAD, &left) != 0 || left == 0) return {};
    const int64_t lap_us = watch.LapUs();
    idle_us = left == before ? idle_us + lap_us : 0;
    before = left;
    if (options_.cancel != nullptr && options_.cancel->load()) return {StatusCode::kCancelled, "cancelled"};
    if (options_.idle_us > 0 && idle_us >= options_.idle_us) return StoodStill(peer_, idle_us);
    // An end that is gone is told of; for one that reads there is nothing to wait for.
    pollfd poll_fd{fd_.get(), 0, 0};
    if (poll(&poll_fd, 1, kDrainMs) > 0)
      return {StatusCode::kIo, fmt::format("{} is gone before it has read everything", peer_)};
  }
}

Status Wire::WriteAll(ByteSpan bytes, int pass, bool lend) {
  while (!bytes.empty()) {
    const ssize_t n = is_socket_ ? SendSocket(fd_.get(), bytes, pass) : WritePipe(fd_.get(), bytes, lend);
    if (n > 0) {
      waiting_us_ = 0;
      pass = -1;
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && !IsTransient(errno)) {
      const bool gone = errno == EPIPE || errno == ECONNRESET;
      return {StatusCode::kIo, gone ? peer_ + " is gone" : "cannot write to " + peer_ + ": " + ErrorText(errno)};
    }
    QKV_RETURN_IF_ERROR(Wait(POLLOUT));
  }
  return {};
}

Status Wire::Wait(short events) {
  const int64_t lap_us = watch_.LapUs();
  waiting_us_ = waiting_us_ == 0 ? 1 : waiting_us_ + lap_us;
  if (waiting_us_ >= kSpinUs) return WaitFor(fd_.get(), events, options_, peer_);
  std::this_thread::yield();
  return {};
}

// What is there: 0 at the end.
Result<size_t> Wire::ReadSome(std::span<uint8_t> out, Descriptor* passed) {
  for (;;) {
    ssize_t n = 0;
    if (is_socket_) {
      iovec data{out.data(), out.size()};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      n = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      const int error = errno;
      if (n >= 0) {
        std::vector<Descriptor> taken = TakeDescriptors(&message);
        const bool too_many = (message.msg_flags & MSG_CTRUNC) != 0 || taken.size() > 1 ||
                              (!taken.empty() && passed != nullptr && passed->valid());
        if (too_many) return Status(StatusCode::kCorrupt, peer_ + " sent more descriptors than one");
        if (!taken.empty() && passed != nullptr) *passed = std::move(taken.front());
      }
      errno = error;
    } else {
      n = read(fd_.get(), out.data(), out.size());
    }
    if (n >= 0) {
      waiting_us_ = 0;
      return static_cast<size_t>(n);
    }
    if (errno == ECONNRESET) return size_t{0};
    if (errno == EINTR) continue;
    if (!IsTransient(errno)) return Status(StatusCode::kIo, "cannot read from " + peer_ + ": " + ErrorText(errno));
    QKV_RETURN_IF_ERROR(Wait(POLLIN));
  }
}

Result<bool> Wire::HasMore() {
  pollfd poll_fd{fd_.get(), POLLIN, 0};
  if (poll(&poll_fd, 1, 0) <= 0 || (poll_fd.revents & POLLIN) == 0) return false;
  uint8_t byte = 0;
  QKV_ASSIGN_OR_RETURN(const size_t n, ReadSome({&byte, 1}, nullptr));
  return n > 0;
}

void Wire::Hurry() { options_.idle_us = kHurryUs; }

Result<size_t> Wire::Read(std::span<uint8_t> out, Descriptor* passed) {
  size_t done = 0;
  while (done < out.size()) {
    if (options_.cancel != nullptr && options_.cancel->load()) return Status(StatusCode::kCancelled, "cancelled");
    QKV_ASSIGN_OR_RETURN(const size_t n, ReadSome(out.subspan(done), passed));
    if (n == 0) break;
    done += n;
  }
  return done;
}

}  // namespace qkvshare
