#include "agents/earlier_anchors.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "agents/run_records.h"
#include "base/hash.h"
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

// Where a turn's own tokens are in its cards: index of each card's first token among them, by content id.
Result<std::map<std::string, uint32_t>> PlacesOf(const TurnRecord& turn, const std::string& folder, const Card& own) {
  std::map<std::string, uint32_t> places = {{turn.card.id, 0}};
  for (const HandedCard& part : turn.gives) {
    if (!part.path.starts_with(turn.turn + ".part")) continue;
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open((std::filesystem::path(folder) / part.path).string()));
    places[part.id] = static_cast<uint32_t>(card.position_offset() - own.position_offset());
  }
  return places;
}

}  // namespace

Result<std::string> EarlierRunId(const std::string& folder) {
  QKV_ASSIGN_OR_RETURN(const std::vector<TurnRecord> records, ReadRecords(folder));
  Blake2bHasher hasher;
  for (const TurnRecord& record : records) {
    hasher.UpdateString(record.turn);
    hasher.UpdateString(record.card.id);
  }
  return ToHex(hasher.Finish());
}

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
  const auto alike = static_cast<size_t>(differ - own_tokens.begin());
  QKV_ASSIGN_OR_RETURN(const auto places, PlacesOf(*own, folder, before));
  for (const TurnRecord& record : records) {
    uint32_t first = 0;  // of the card, in this receiver's context
    for (const HandedCard& taken : record.taken) {
      if (const auto place = places.find(taken.id); place != places.end()) {
        QKV_ASSIGN_OR_RETURN(const Card card, open(record.card));
        for (const Anchor& anchor : card.anchors()) {
          if (anchor.token < first || anchor.token >= first + taken.tokens) continue;
          const uint32_t token = anchor.token - first + place->second;
          if (token < alike) anchors.push_back({token, anchor.weight});
        }
      }
      first += taken.tokens;
    }
  }
  return anchors;
}

}  // namespace qkvshare
