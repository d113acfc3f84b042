// Reads arbitrary text as a card's info; what is read must survive being written and read again. Then writes an info
// whose texts are the input, valid UTF-8 or not: it must be readable.
#include "card/card_info.h"

#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireRoundTrip(const CardInfo& info) {
  const Result<CardInfo> again = CardInfoFromJson(CardInfoToJson(info));
  Require(again && *again == info);
}

// CheckContextCards, told otherwise.
void RequireContext(const std::vector<ContextCard>& context) {
  if (context.empty()) return;
  uint64_t sum = 0;
  bool all = true;
  for (const ContextCard& entry : context) {
    sum += entry.tokens;
    all = all && entry.tokens > 0;
  }
  const bool fits = all && sum <= INT32_MAX;
  const auto first = static_cast<uint32_t>(sum);
  const auto position = static_cast<int32_t>(first);
  Require(CheckContextCards(context, context.back().card, first, position).ok() == fits);
  Require(!CheckContextCards(context, context.back().card, first + 1, static_cast<int32_t>(first + 1)).ok());
  Require(!CheckContextCards(context, context.back().card, first, position ^ 1).ok());
}

// CheckSegments, told otherwise: in 64 bits, where no sum wraps.
bool CoverAll(const std::vector<Segment>& segments, uint32_t tokens) {
  uint64_t next = 0;
  for (const Segment& segment : segments) {
    if (segment.tokens == 0 || segment.first_token != next) return false;
    next += segment.tokens;
  }
  return next == tokens;
}

void ReadText(const std::string& text) {
  const Result<CardInfo> info = CardInfoFromJson(text);
  if (!info) {
    Require(info.status().code() == StatusCode::kCorrupt && !info.status().message().empty());
    return;
  }
  Require(text.find('\0') == std::string::npos);
  RequireRoundTrip(*info);
  RequireContext(info->context);
  uint32_t tokens = 0;
  for (const Segment& segment : info->segments) tokens += segment.tokens;
  for (const uint32_t n : {tokens, tokens + 1, 0U, UINT32_MAX}) {
    Require(CheckSegments(info->segments, n).ok() == CoverAll(info->segments, n));
  }
}

void WriteText(const std::string& text) {
  const std::string a = text.substr(0, text.size() / 2);
  const std::string b = text.substr(a.size());
  const uint32_t n = static_cast<uint32_t>(text.size()) * 0x9e3779b1U;
  CardInfo info{a, b, text, b, a, text, {{a, b, text, n, ~n, {{a, 1}, {b, n | 1}}}}, {text, a}, b};
  if (n % 2 == 0)
    info.context = {{Blake2b({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), n}, {Digest{}, 1}};
  const Result<CardInfo> read = CardInfoFromJson(CardInfoToJson(info));
  Require(read && read->context == info.context);
  Require(read && CardInfoToJson(*read) == CardInfoToJson(info));
  Require(read->segments.size() == 1);
  Require(read->segments[0].first_token == n && read->segments[0].tokens == ~n);
  RequireRoundTrip(*read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  ReadText(text);
  WriteText(text);
  return 0;
}
