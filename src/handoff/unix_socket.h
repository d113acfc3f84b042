// Connections between processes of one machine, by the name of a socket in the file system.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "handoff/descriptor.h"
#include "handoff/wire.h"
#include "qkvshare/status.h"

namespace qkvshare {

// A connection, and whether a process of this user is at its other end.
struct UnixConnection {
  Descriptor fd;
  bool own = false;
};

class UnixListener {
 public:
  // Listens at `path`, mode 0600. A socket that a dead process left there is replaced; anything else that is there, or
  // a live listener, is refused (kInvalidArgument). kOutOfRange: the path is too long for the system; kNotFound, kIo.
  static Result<UnixListener> Bind(const std::string& path);
  ~UnixListener();  // takes the socket away, if it is still this one
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&&) = delete;
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // The next process that connects. Another user's is turned away, unless any_user. Errors as WaitFor.
  Result<UnixConnection> Accept(bool any_user, const WireOptions& options);

 private:
  UnixListener(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;  // empty: moved from
  Descriptor fd_;
  std::pair<uint64_t, uint64_t> inode_{};  // of the socket at path_
};

// Waits until somebody listens there. Another user's process is refused (kInvalidArgument), unless any_user. kNotFound:
// nobody did; else as Bind and WaitFor.
Result<UnixConnection> ConnectUnix(const std::string& path, bool any_user, const WireOptions& options);

}  // namespace qkvshare
