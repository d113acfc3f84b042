// One end of a byte stream: whole reads and writes that wait for a slow peer, but not for one that stands still.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/stopwatch.h"
#include "handoff/descriptor.h"
#include "qkvshare/status.h"

namespace qkvshare {

struct WireOptions {
  int64_t idle_us = 30'000'000;               // without any progress; 0: for ever
  const std::atomic<bool>* cancel = nullptr;  // while it is true everything stops. Null: none
};

// Waits until poll(2) reports one of `events` for the descriptor, or an error of it. kIo: `idle_us` are over (what:
// what is waited for, "the sender"); kCancelled.
Status WaitFor(int fd, short events, const WireOptions& options, const std::string& what);

// Not thread-safe. Writing to a peer that is gone is an error, and raises no signal.
class Wire {
 public:
  static constexpr size_t kPipeBytes = size_t{1} << 20;  // that a pipe holds at most

  // Of a pipe or a stream socket. It does not block from here on; its flags are as before when it is closed, since
  // others may have the same end open. peer: "the sender", for messages.
  static Result<Wire> Take(Descriptor fd, std::string peer, const WireOptions& options);
  ~Wire();
  Wire(Wire&& other) noexcept;
  Wire& operator=(Wire&&) = delete;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  bool is_socket() const { return is_socket_; }
  int get() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  // All of them. pass: a descriptor that goes with the first byte, -1 for none (sockets only).
  Status Write(ByteSpan bytes, int pass = -1);
  // The same without a copy where the system can: up to kPipeBytes of what was lent last must stay as they are until
  // WaitUntilRead is through.
  Status Lend(ByteSpan bytes);
  // Of a pipe: until its other end has read everything. kIo: it is gone before.
  Status WaitUntilRead();
  // As many as `out` has, fewer where the stream ends. passed: gets the descriptor that came with them, if there was
  // one (more than one: kCorrupt, and they are closed); null: descriptors are closed.
  Result<size_t> Read(std::span<uint8_t> out, Descriptor* passed = nullptr);
  // Whether there is more to read just now.
  Result<bool> HasMore();
  // From here on it waits for nobody for long: what is left to be said is said where there is room for it.
  void Hurry();

 private:
  Wire(Descriptor fd, std::string peer, const WireOptions& options)
      : fd_(std::move(fd)), peer_(std::move(peer)), options_(options) {}
  Result<size_t> ReadSome(std::span<uint8_t> out, Descriptor* passed);
  Status WriteAll(ByteSpan bytes, int pass, bool lend);
  Status Wait(short events);

  Descriptor fd_;
  std::string peer_;
  WireOptions options_;
  bool is_socket_ = false;
  int flags_ = -1;          // as they were; -1: unchanged
  int64_t waiting_us_ = 0;  // since the last byte, without sleeping
  Stopwatch watch_;
};

}  // namespace qkvshare
