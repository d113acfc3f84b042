#include "api/api_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "qkvshare/version.h"
#include "runtime/prompt.h"

namespace qkvshare::api {
namespace {

// Bytes of the message that fit, without cutting a character.
size_t FittingBytes(const std::string& message, size_t limit) {
  if (message.size() <= limit) return message.size();
  const auto continues = [&](size_t at) { return (static_cast<uint8_t>(message[at]) & 0xC0) == 0x80; };
  size_t bytes = limit;
  while (bytes > 0 && continues(bytes)) --bytes;
  return bytes;
}

}  // namespace

qkv_status Report(const Status& status, qkv_error* error) noexcept {
  const auto code = static_cast<qkv_status>(status.code());
  if (error == nullptr) return code;
  error->status = code;
  const size_t bytes = FittingBytes(status.message(), sizeof error->message - 1);
  std::memcpy(error->message, status.message().data(), bytes);
  error->message[bytes] = '\0';
  return code;
}

Status CheckNotNull(std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.is_null) return {StatusCode::kInvalidArgument, fmt::format("{} is NULL", argument.name)};
  }
  return {};
}

Result<std::string> Utf8(const char* text, size_t bytes) {
  std::string copy(text, bytes);
  QKV_RETURN_IF_ERROR(CheckUtf8(copy));
  return copy;
}

template <typename T>
T* Owned<T>::Allocate(size_t count) {
  auto* data = static_cast<T*>(std::malloc(count * sizeof(T)));
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
template class Owned<char>;
template class Owned<uint8_t>;
template class Owned<int32_t>;

Status CheckMessages(const qkv_message* messages, size_t count) {
  if (messages == nullptr || count == 0) return {StatusCode::kInvalidArgument, "there are no messages"};
  for (const qkv_message& message : std::span(messages, count)) {
    QKV_RETURN_IF_ERROR(CheckNotNull({{"the role of a message", message.role}, {"its content", message.content}}));
    QKV_RETURN_IF_ERROR(CheckUtf8(message.role));
    QKV_RETURN_IF_ERROR(CheckUtf8(message.content));
  }
  return {};
}

Result<InjectMode> InjectModeOf(qkv_inject mode) {
  switch (mode) {
    case QKV_INJECT_AUTO: return InjectMode::kAuto;
    case QKV_INJECT_FUSED: return InjectMode::kFused;
    case QKV_INJECT_RESTORE: return InjectMode::kRestore;
    default: return Status(StatusCode::kInvalidArgument, "mode: give one of qkv_inject");
  }
}

void GiveInjection(const Injection& done, size_t tokens, std::string* reason, qkv_injection* injection, size_t size) {
  *reason = done.reason;
  if (injection == nullptr) return;
  const qkv_inject mode = done.mode == InjectMode::kFused ? QKV_INJECT_FUSED : QKV_INJECT_RESTORE;
  CopyOut(qkv_injection{mode, tokens, reason->c_str()}, injection, size);
}

std::vector<ChatMessage> Messages(const qkv_message* messages, size_t count) {
  std::vector<ChatMessage> copies;
  copies.reserve(count);
  for (const qkv_message& message : std::span(messages, count)) copies.push_back({message.role, message.content});
  return copies;
}

}  // namespace qkvshare::api

const char* qkv_version() { return qkvshare::kVersionText; }

const char* qkv_status_name(qkv_status status) {
  const bool is_code = status >= 0 && status <= QKV_INTERNAL;
  return is_code ? qkvshare::StatusCodeName(static_cast<qkvshare::StatusCode>(status)) : "unknown";
}

void qkv_free(void* pointer) { std::free(pointer); }
