// Status and Result<T>: how every fallible function of QKVShare reports failure. No exception leaves the library.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace qkvshare {

// Stable numeric codes: bindings and exit codes rely on them, so they are never renumbered.
enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's input is wrong
  kNotFound = 2,         // a file or an entry does not exist
  kIo = 3,               // reading or writing failed: disk full, permission, network
  kCorrupt = 4,          // a checksum, digest or format rule does not hold
  kMismatch = 5,         // a valid card that does not fit this model or session
  kUnsupported = 6,      // valid, but this version or this model cannot do it
  kOutOfRange = 7,       // too long, too large: the message gives needed and available
  kCancelled = 8,        // the caller asked to stop
  kNonFinite = 9,        // NaN or Inf where a number is needed
  kInternal = 10,        // a bug here or in a library below
};

// "corrupt" and so on, for logs and JSON.
inline const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kIo: return "io";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfRange: return "out_of_range";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kNonFinite: return "non_finite";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One line that says what is wrong and what to do; empty when ok.
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that says why there is none. The interface mirrors std::expected (C++23).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok());
  }

  bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    assert(has_value());
    return *value_;
  }
  const T& value() const& {
    assert(has_value());
    return *value_;
  }
  T&& value() && {
    assert(has_value());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace qkvshare

// Returns from the enclosing function if `expr` (a Status) is an error.
#define QKV_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                  \
    if (::qkvshare::Status qkv_status_ = (expr); !qkv_status_.ok()) return qkv_status_; \
  } while (false)

#define QKV_CONCAT_INNER(a, b) a##b
#define QKV_CONCAT(a, b) QKV_CONCAT_INNER(a, b)

// QKV_ASSIGN_OR_RETURN(auto x, F()): x = the value of the Result, or returns its Status.
#define QKV_ASSIGN_OR_RETURN(lhs, expr) QKV_ASSIGN_OR_RETURN_INNER(QKV_CONCAT(qkv_result_, __LINE__), lhs, expr)
#define QKV_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.has_value()) return result.status();    \
  lhs = std::move(result).value()
