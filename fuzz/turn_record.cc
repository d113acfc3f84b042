// Reads arbitrary text as the record of a turn; what is read must survive being written and read again. Then writes a
// record whose texts are the input, valid UTF-8 or not: it must be readable.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "agents/run_json.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireRoundTrip(const TurnRecord& record) {
  const Result<TurnRecord> again = TurnRecordFromJson(TurnRecordToJson(record));
  Require(again && *again == record);
}

void WriteText(const std::string& text) {
  TurnRecord record;
  record.turn = record.prompt = record.text = record.policy = text;
  record.card = {text, text, static_cast<uint32_t>(text.size())};
  record.taken = {record.card, record.card};
  record.features = {text};
  record.stages = {{text, static_cast<int64_t>(text.size())}};
  const Result<TurnRecord> read = TurnRecordFromJson(TurnRecordToJson(record));
  Require(read && TurnRecordToJson(*read) == TurnRecordToJson(record));
  RequireRoundTrip(*read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const Result<TurnRecord> record = TurnRecordFromJson(text);
  if (record) {
    RequireRoundTrip(*record);
  } else {
    Require(record.status().code() == StatusCode::kCorrupt && !record.status().message().empty());
  }
  WriteText(text);
  return 0;
}
