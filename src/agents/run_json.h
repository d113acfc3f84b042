// Records of turns and runs as JSON, on one line.
#pragma once

#include <string>

#include "agents/run_record.h"
#include "qkvshare/status.h"

namespace qkvshare {

// JSON holds text, and a token may end within a character: what is not valid UTF-8 becomes U+FFFD, once and for all.
// All else comes back as it was.
std::string TurnRecordToJson(const TurnRecord& record);
// kCorrupt names the field. Other fields than the record's are passed over. Names, paths and ids may be anything.
Result<TurnRecord> TurnRecordFromJson(const std::string& text);

// The text with U+FFFD for what is not valid UTF-8.
std::string AsUtf8(const std::string& text);

// For people's programs, and not read back: the turns also have `reprefill_us`, and there are `totals`.
std::string RunRecordToJson(const RunRecord& record);

}  // namespace qkvshare
