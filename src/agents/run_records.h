// The folder of a run: a card and a record of each turn that is done, so that a run that was cut short can go on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agents/run_record.h"
#include "agents/turn.h"
#include "base/hash.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// What a turn's result follows from: its job, and the model.
Digest TurnKey(const TurnJob& job, const Model& model);

// The first tokens of a turn's context, which receive much attention whatever they say (attention sinks): who is given
// parts of it only gets these too.
HandedCard StartOf(const TurnRecord& turn);

// Whether a turn's cards are what its record says and what its job asked for, as for cards from outside: all digests,
// the model, and what they continue. kCorrupt, kMismatch, kNotFound, kIo; names the file.
Status CheckTurnCards(const TurnRecord& record, const TurnJob& job, const Model& model);

// One run has it at a time.
class RunRecords {
 public:
  // Makes the folder, with its parents. kInvalidArgument where there is something in it and resume is not set, or where
  // what is there is no folder of a run; kIo, also where another run is at work in it. A folder that it made is gone
  // with it, if nothing came of it.
  static Result<std::unique_ptr<RunRecords>> Open(const std::string& path, bool resume);
  ~RunRecords();
  RunRecords(const RunRecords&) = delete;
  RunRecords& operator=(const RunRecords&) = delete;

  // The record of a turn that was done for the same job, and whose cards are still good; none otherwise. why: what is
  // wrong with a record that is there, else empty.
  std::optional<TurnRecord> Find(const TurnJob& job, const Model& model, std::string* why) const;
  Status Keep(const TurnRecord& record, const TurnJob& job, const Model& model) const;

  const std::string& path() const { return path_; }

 private:
  explicit RunRecords(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  bool made_ = false;  // the folder
  int lock_ = -1;
};

// The record of a turn of an earlier run, whatever it was done for. kNotFound, kIo, kCorrupt.
Result<TurnRecord> ReadRecord(const std::string& folder, const std::string& turn);

}  // namespace qkvshare
