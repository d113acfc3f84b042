#include "handoff/unix_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/stopwatch.h"

namespace qkvshare {
namespace {

constexpr int kBacklog = 64;
constexpr std::chrono::milliseconds kRetry(20);

std::string ErrorText(int error) { return std::system_category().message(error); }

Status Failed(const std::string& path, const std::string& what, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIo;
  return {code, fmt::format("{}: cannot {}: {}", path, what, ErrorText(error))};
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.find('\0') != std::string::npos)
    return Status(StatusCode::kInvalidArgument, "a socket needs a path");
  if (path.size() >= sizeof address.sun_path) {
    return Status(StatusCode::kOutOfRange, fmt::format("{}: the path of a socket has at most {} bytes, this one has {}",
                                                       path, sizeof address.sun_path - 1, path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor NewSocket() {
#ifdef SOCK_CLOEXEC
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
#else
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM, 0));
  if (fd.valid()) fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  return fd;
#endif
}

const sockaddr* Plain(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

// errno of trying to connect; 0: somebody listens.
int TryConnect(int fd, const sockaddr_un& address) {
  while (connect(fd, Plain(address), sizeof address) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Makes way for a new socket where a dead one is.
Status ClearDeadSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return {StatusCode::kInvalidArgument, path + " is there and is no socket; remove it or choose another name"};
  }
  const Descriptor probe = NewSocket();
  const int error = TryConnect(probe.get(), address);
  if (error == ECONNREFUSED) {
    unlink(path.c_str());
    return {};
  }
  if (error == 0 || error == EAGAIN)
    return {StatusCode::kInvalidArgument, path + ": somebody listens there already; choose another name"};
  return Failed(path, "look at the socket there", error);
}

Result<bool> IsOwnPeer(int fd) {
#ifdef SO_PEERCRED
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return Status(StatusCode::kIo, "cannot tell who is at the other end of a socket: " + ErrorText(errno));
  return peer.uid == geteuid();
#else
  uid_t user = 0;
  gid_t group = 0;
  if (getpeereid(fd, &user, &group) != 0)
    return Status(StatusCode::kIo, "cannot tell who is at the other end of a socket: " + ErrorText(errno));
  return user == geteuid();
#endif
}

std::pair<uint64_t, uint64_t> InodeAt(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

}  // namespace

Result<UnixListener> UnixListener::Bind(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  QKV_RETURN_IF_ERROR(ClearDeadSocket(path, address));
  Descriptor fd = NewSocket();
  if (!fd.valid()) return Failed(path, "make a socket", errno);
  // Nobody may connect before its mode is set, and nobody can before it listens.
  if (bind(fd.get(), Plain(address), sizeof address) != 0) return Failed(path, "listen there", errno);
  UnixListener listener(path, std::move(fd));
  listener.inode_ = InodeAt(path);
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) return Failed(path, "set its mode", errno);
  if (listen(listener.fd_.get(), kBacklog) != 0) return Failed(path, "listen there", errno);
  return listener;
}

UnixListener::~UnixListener() {
  if (!path_.empty() && InodeAt(path_) == inode_) unlink(path_.c_str());
}

UnixListener::UnixListener(UnixListener&& other) noexcept
    : path_(std::exchange(other.path_, {})), fd_(std::move(other.fd_)), inode_(std::exchange(other.inode_, {})) {}

Result<UnixConnection> UnixListener::Accept(bool any_user, const WireOptions& options) {
  for (;;) {
    QKV_RETURN_IF_ERROR(WaitFor(fd_.get(), POLLIN, options, "who was to connect to " + path_));
    UnixConnection connection;
    connection.fd = Descriptor(accept(fd_.get(), nullptr, nullptr));
    if (!connection.fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN) continue;
      return Failed(path_, "accept a connection", errno);
    }
    fcntl(connection.fd.get(), F_SETFD, FD_CLOEXEC);
    QKV_ASSIGN_OR_RETURN(connection.own, IsOwnPeer(connection.fd.get()));
    if (connection.own || any_user) return connection;
  }
}

Result<UnixConnection> ConnectUnix(const std::string& path, bool any_user, const WireOptions& options) {
  QKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  Stopwatch watch;
  for (int64_t waited_us = 0;; waited_us += watch.LapUs()) {
    if (options.cancel != nullptr && options.cancel->load()) return Status(StatusCode::kCancelled, "cancelled");
    UnixConnection connection;
    connection.fd = NewSocket();
    if (!connection.fd.valid()) return Failed(path, "make a socket", errno);
    const int error = TryConnect(connection.fd.get(), address);
    if (error == 0) {
      QKV_ASSIGN_OR_RETURN(connection.own, IsOwnPeer(connection.fd.get()));
      if (connection.own || any_user) return connection;
      return Status(StatusCode::kInvalidArgument, path + ": a process of another user listens there");
    }
    if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN) return Failed(path, "connect to it", error);
    if (options.idle_us > 0 && waited_us >= options.idle_us)
      return Status(StatusCode::kNotFound, path + ": nobody listens there");
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace qkvshare
