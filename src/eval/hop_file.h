// A file of results that grows group by group, and from which an interrupted run goes on: a line of JSON that says what
// run it is of, then a line for each chain and hop.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/hop_record.h"
#include "qkvshare/status.h"

namespace qkvshare {

class HopFile {
 public:
  // Opens it, or makes it. header: all that the results follow from. expected: chain and hop of each line that the
  // whole run has, in order; group_lines: of a group, each after the other. What is there of a group that is not whole
  // is cut off, half a line too. kInvalidArgument: something else, a run with another header (what differs), or a run
  // that is writing there now; kCorrupt: a line that does not follow from the ones before (its number); kIo, kNotFound.
  static Result<HopFile> Open(const std::string& path, const nlohmann::ordered_json& header,
                              std::span<const HopRecord> expected, std::span<const size_t> group_lines);
  ~HopFile();
  HopFile(HopFile&& other) noexcept;
  HopFile& operator=(HopFile&& other) = delete;
  HopFile(const HopFile&) = delete;
  HopFile& operator=(const HopFile&) = delete;

  // Of the groups that were there already.
  const std::vector<HopRecord>& records() const { return records_; }
  // Writes one more group, and waits until the disk has it.
  Status Append(std::span<const HopRecord> group);

 private:
  HopFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status ReadBack(const std::string& content, const std::string& header, std::span<const HopRecord> expected,
                  std::span<const size_t> group_lines);
  Status CheckHeader(const std::string& line, const std::string& header) const;
  Status Write(const std::string& text);

  std::string path_;
  int fd_ = -1;
  std::vector<HopRecord> records_;
};

}  // namespace qkvshare
