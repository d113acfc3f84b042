// A file of results that grows group by group, and from which an interrupted run goes on. Lines of JSON: one that says
// what run it is of, then one for each result; before the first, and where another program goes on, one that says what
// wrote those that follow.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

// What a whole file of one run has.
struct ResultPlan {
  // All that the results follow from. Its first member names the kind of file, and its version.
  nlohmann::ordered_json header;
  // Members that each line has, in the order of the lines: what the result is of.
  std::vector<nlohmann::ordered_json> keys;
  // Lines of each group, one group after the other.
  std::vector<size_t> group_lines;
  // Whether a line is one of a file like this. May be empty.
  std::function<Status(const nlohmann::ordered_json&)> check;
};

class ResultFile {
 public:
  // Opens it, or makes it. What is there of a group that is not whole is cut off, half a line too. kInvalidArgument:
  // something else, a run with another header (what differs), or a run that is writing there now; kCorrupt: a line that
  // does not follow from the ones before (its number); kIo, kNotFound.
  static Result<ResultFile> Open(const std::string& path, const ResultPlan& plan);
  ~ResultFile();
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&& other) = delete;
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // Results of the groups that were there already.
  const std::vector<nlohmann::ordered_json>& lines() const { return lines_; }
  // Writes one more group, and waits until the disk has it. Text that is not UTF-8 is replaced.
  Status Append(std::span<const nlohmann::ordered_json> group);

 private:
  ResultFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status ReadBack(const std::string& content, const ResultPlan& plan);
  Status CheckHeader(const std::string& line, const nlohmann::ordered_json& header) const;
  Status Write(const std::string& text);

  std::string path_;
  int fd_ = -1;
  std::vector<nlohmann::ordered_json> lines_;
  std::string producer_;  // line of the program that wrote the last group; empty: none yet
};

// A file of results as it stands, whole groups or not.
struct Results {
  nlohmann::ordered_json header;
  std::vector<nlohmann::ordered_json> producers;  // programs that have written to it
  std::vector<nlohmann::ordered_json> lines;      // a last line that is not whole is left out
};
// kind: the first member of its header. kInvalidArgument where it is something else; kCorrupt names the line.
Result<Results> ReadResults(const std::string& path, const std::string& kind);

}  // namespace qkvshare
