// Files of results that a report is made of, and which of them belong together.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "eval/result_file.h"
#include "qkvshare/status.h"

namespace qkvshare {

struct ReportFile {
  std::string path;
  std::string kind;  // the first member of the header
  Results results;
};

// Reads each. kInvalidArgument: no file, one twice, one that is of no kind in `kinds` (what there is), or cards of two
// formats (both files); else as ReadResults.
Result<std::vector<ReportFile>> ReadReportFiles(std::span<const std::string> paths, std::span<const std::string> kinds);

// Files that go into one table, in the order of the first of each.
struct FileGroup {
  std::string title;
  std::vector<const ReportFile*> files;
};

// Those of one kind, by their titles. What a table has comes from runs that are the same but for members that are named
// in `may_differ`. kInvalidArgument names both files and the member that differs; kCorrupt where a header has no title.
Result<std::vector<FileGroup>> GroupFiles(std::span<const ReportFile> files, const std::string& kind,
                                          const std::function<std::string(const nlohmann::ordered_json& header)>& title,
                                          std::span<const std::string> may_differ);

// The results of a file by `parse`. Errors as that, with the file and which result.
template <typename Line>
Result<std::vector<Line>> ParseLines(const ReportFile& file, Result<Line> (*parse)(const nlohmann::ordered_json&)) {
  std::vector<Line> lines;
  for (size_t i = 0; i < file.results.lines.size(); ++i) {
    Result<Line> line = parse(file.results.lines[i]);
    if (!line) {
      return Status(line.status().code(), fmt::format("{}: result {}: {}", file.path, i + 1, line.status().message()));
    }
    lines.push_back(std::move(*line));
  }
  return lines;
}

// A text of a header, or what JSON has in its place; empty where there is none.
std::string HeaderText(const nlohmann::ordered_json& header, const std::string& member);

}  // namespace qkvshare
