#include "agents/run_records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "agents/job_json.h"
#include "agents/run_json.h"
#include "agents/shallow_json.h"
#include "base/file.h"
#include "card/card.h"
#include "runtime/restore.h"

namespace qkvshare {
namespace {

constexpr const char* kLockName = "qkvshare.run";
constexpr size_t kMaxRecordBytes = size_t{64} << 20;

std::string RecordFile(const std::string& folder, const std::string& turn) {
  return (std::filesystem::path(folder) / (turn + ".json")).string();
}

// But for the lock.
bool IsEmpty(const std::string& folder, std::error_code* error) {
  const std::filesystem::directory_iterator entries(folder, *error);
  return std::all_of(begin(entries), end(entries),
                     [](const auto& entry) { return entry.path().filename() == kLockName; });
}

Status IoError(const std::string& path, int error) {
  return {StatusCode::kIo, fmt::format("{}: {}", path, std::generic_category().message(error))};
}

// Opens and locks the file. Who had it before may have taken it away: then it is made again.
Result<int> Lock(const std::string& folder, const std::string& path) {
  for (;;) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return IoError(path, errno);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(fd);
      if (error != EWOULDBLOCK) return IoError(path, error);
      return Status(StatusCode::kIo, folder + ": another run is at work here; wait for it, or give another --dir");
    }
    struct stat ours{}, there{};
    if (fstat(fd, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev) {
      return fd;
    }
    close(fd);
  }
}

std::string DigestOf(const nlohmann::json& turn) {
  const std::string text = turn.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return ToHex(Blake2b({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
}

// A record, and what it was made for.
struct KeyedRecord {
  std::string key;
  TurnRecord record;
};

Result<KeyedRecord> ReadKeyed(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kMaxRecordBytes));
  const nlohmann::json object = ParseShallow(text);
  const auto is_text = [&](const char* key) { return object.contains(key) && object[key].is_string(); };
  const bool good = object.is_object() && object.contains("turn") && is_text("key") && is_text("digest") &&
                    object["digest"] == DigestOf(object["turn"]);
  if (!good) return Status(StatusCode::kCorrupt, path + " is no record of a turn, or was changed");
  KeyedRecord keyed{object["key"], {}};
  Result<TurnRecord> record = TurnRecordFromJson(object["turn"].dump());
  if (!record) return Status(record.status().code(), path + ": " + record.status().message());
  keyed.record = std::move(*record);
  return keyed;
}

// Opens a card that a record names.
Result<Card> OpenHanded(const HandedCard& handed, const std::string& folder, const Model& model, bool whole) {
  const std::string path = (std::filesystem::path(folder) / handed.path).string();
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
  const auto named = [&](const Status& status) {
    return status.ok() ? status : Status(status.code(), path + ": " + status.message());
  };
  QKV_RETURN_IF_ERROR(named(card.VerifyDigests()));
  QKV_RETURN_IF_ERROR(named(CheckCardModel(card, model)));
  const bool fits = whole ? handed.tokens == card.tokens() : handed.tokens > 0 && handed.tokens <= card.tokens();
  if (ToHex(card.content_id()) == handed.id && fits) return card;
  return Status(StatusCode::kCorrupt, path + " is not the card that the turn's record names");
}

// Its own card comes after all that it took over.
Status CheckOwnCard(const TurnRecord& record, const TurnJob& job, const Model& model) {
  QKV_ASSIGN_OR_RETURN(const Card card, OpenHanded(record.card, job.folder, model, /*whole=*/true));
  const uint32_t own = record.read_tokens + record.generated_tokens;
  const std::string parent = card.has_parent() ? ToHex(card.parent()) : "";
  const bool follows = parent == (job.taken.empty() ? "" : job.taken.back().id);
  if (follows && card.first_token() == record.taken_tokens && card.tokens() == own) return {};
  return {StatusCode::kCorrupt, record.card.path + " does not continue what the turn took over"};
}

}  // namespace

HandedCard StartOf(const TurnRecord& turn) {
  HandedCard start = turn.taken.empty() ? turn.card : turn.taken.front();
  start.tokens = std::min(start.tokens, static_cast<uint32_t>(kSinkTokens));
  return start;
}

Digest TurnKey(const TurnJob& job, const Model& model) {
  Blake2bHasher hasher;
  hasher.UpdateString("qkvshare turn 1");
  hasher.Update(model.fingerprint());
  hasher.UpdateString(JobKeyText(job));
  return hasher.Finish();
}

Status CheckTurnCards(const TurnRecord& record, const TurnJob& job, const Model& model) {
  const auto is_own = [&](const HandedCard& card) {
    return card.path == CardFile(job.turn) || card.path.starts_with(job.turn + ".part");
  };
  if (record.turn != job.turn || record.agent != job.agent.name || record.taken != job.taken ||
      record.card.path != CardFile(job.turn) || record.gives.empty() != job.readers.empty()) {
    return {StatusCode::kCorrupt, "the record is of another turn"};
  }
  QKV_RETURN_IF_ERROR(CheckOwnCard(record, job, model));
  for (const HandedCard& given : record.gives) {
    if (given == record.card) continue;
    const bool is_start = given == StartOf(record);  // of the context, which others may have written
    if (!is_own(given) && !is_start) return {StatusCode::kCorrupt, given.path + " is no card of this turn"};
    if (given.path.find('/') != std::string::npos) return {StatusCode::kCorrupt, given.path + " is not in the folder"};
    QKV_RETURN_IF_ERROR(OpenHanded(given, job.folder, model, /*whole=*/!is_start).status());
  }
  return {};
}

Result<std::unique_ptr<RunRecords>> RunRecords::Open(const std::string& path, bool resume) {
  std::unique_ptr<RunRecords> records(new RunRecords(path));
  const std::string lock = (std::filesystem::path(path) / kLockName).string();
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  const bool empty = !there || IsEmpty(path, &error);
  if (error) return IoError(path, error.value());
  if (!empty && !std::filesystem::exists(lock, error)) {
    return Status(StatusCode::kInvalidArgument, path + " holds other files; give --dir a folder that is new or empty");
  }
  if (!empty && !resume) {
    return Status(StatusCode::kInvalidArgument,
                  path + " holds a run; go on with it by --resume, or give --dir another folder");
  }
  QKV_RETURN_IF_ERROR(MakeFolders(path));
  records->made_ = !there;
  QKV_ASSIGN_OR_RETURN(records->lock_, Lock(path, lock));
  return records;
}

RunRecords::~RunRecords() {
  if (lock_ < 0) return;
  std::error_code error;
  if (IsEmpty(path_, &error) && !error) {
    std::filesystem::remove(std::filesystem::path(path_) / kLockName, error);
    if (made_) std::filesystem::remove(path_, error);  // if it is empty now
  }
  close(lock_);
}

std::optional<TurnRecord> RunRecords::Find(const TurnJob& job, const Model& model, std::string* why) const {
  why->clear();
  Result<KeyedRecord> keyed = ReadKeyed(RecordFile(path_, job.turn));
  if (!keyed) {
    if (keyed.status().code() != StatusCode::kNotFound) *why = keyed.status().message();
    return std::nullopt;
  }
  if (keyed->key != ToHex(TurnKey(job, model))) {
    *why = "it was done for another instruction, other cards or other settings";
    return std::nullopt;
  }
  if (const Status status = CheckTurnCards(keyed->record, job, model); !status.ok()) {
    *why = status.message();
    return std::nullopt;
  }
  keyed->record.resumed = true;
  return std::move(keyed->record);
}

Status RunRecords::Keep(const TurnRecord& record, const TurnJob& job, const Model& model) const {
  const nlohmann::json turn = nlohmann::json::parse(TurnRecordToJson(record));
  const std::string text = fmt::format("{{\"key\": \"{}\",\n\"digest\": \"{}\",\n\"turn\": {}}}\n",
                                       ToHex(TurnKey(job, model)), DigestOf(turn), turn.dump());
  return WriteFileAtomic(RecordFile(path_, job.turn), {{reinterpret_cast<const uint8_t*>(text.data()), text.size()}});
}

Result<TurnRecord> ReadRecord(const std::string& folder, const std::string& turn) {
  QKV_ASSIGN_OR_RETURN(KeyedRecord keyed, ReadKeyed(RecordFile(folder, turn)));
  return std::move(keyed.record);
}

}  // namespace qkvshare
