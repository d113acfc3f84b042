#include "agents/earlier_anchors.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "agents/run_records.h"
#include "card/card.h"

namespace qkvshare {
namespace {

// Records of all turns, in the order of their names.
Result<std::vector<TurnRecord>> ReadRecords(const std::string& folder) {
  std::vector<std::string> turns;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") turns.push_back(entry.path().stem().string());
  }
  if (error) return Status(StatusCode::kNotFound, folder + ": " + error.message());
  if (turns.empty()) return Status(StatusCode::kInvalidArgument, folder + " is no folder of a run: it has no records");
  std::sort(turns.begin(), turns.end());
  std::vector<TurnRecord> records;
  for (const std::string& turn : turns) {
    QKV_ASSIGN_OR_RETURN(TurnRecord record, ReadRecord(folder, turn));
    records.push_back(std::move(record));
  }
  return records;
}

// Of the card with this id: the tokens before it in a turn's context; -1 where it is not there.
int64_t PlaceOf(const std::string& id, const TurnRecord& turn) {
  int64_t before = 0;
  for (const HandedCard& card : turn.taken) {
    if (card.id == id) return before;
    before += card.tokens;
  }
  return -1;
}

}  // namespace

Status CheckEarlierRun(const std::string& folder) { return ReadRecords(folder).status(); }

Result<std::vector<Anchor>> EarlierAnchors(const std::string& folder, const std::string& turn,
                                           std::span<const int32_t> own_tokens) {
  QKV_ASSIGN_OR_RETURN(const std::vector<TurnRecord> records, ReadRecords(folder));
  std::vector<Anchor> anchors;
  const auto own =
      std::find_if(records.begin(), records.end(), [&](const TurnRecord& record) { return record.turn == turn; });
  if (own == records.end()) return anchors;
  const auto open = [&](const HandedCard& card) {
    return Card::Open((std::filesystem::path(folder) / card.path).string());
  };
  QKV_ASSIGN_OR_RETURN(const Card before, open(own->card));
  const auto [differ, end] =
      std::mismatch(own_tokens.begin(), own_tokens.end(), before.token_ids().begin(), before.token_ids().end());
  const int64_t alike = differ - own_tokens.begin();
  for (const TurnRecord& record : records) {
    const int64_t place = PlaceOf(own->card.id, record);
    if (place < 0) continue;
    QKV_ASSIGN_OR_RETURN(const Card card, open(record.card));
    for (const Anchor& anchor : card.anchors()) {
      const int64_t token = int64_t{anchor.token} - place;
      if (token >= 0 && token < alike) anchors.push_back({static_cast<uint32_t>(token), anchor.weight});
    }
  }
  return anchors;
}

}  // namespace qkvshare
