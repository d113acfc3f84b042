// A report of files of results: one HTML page that needs nothing else, and the same as Markdown.
#pragma once

#include <string>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

struct ReportRequest {
  std::vector<std::string> files;  // of eval fidelity, chain, hops, ttft, memory; in any order
  std::vector<std::string>
      against;  // arms that the others are compared with; empty: the first of each table; f16 of chains
  std::string title = "QKVShare: results";
};

struct Report {
  std::string html, markdown;
};

// Files whose runs differ in what a table's values depend on (model, input, format, software, threads) are not put into
// one table: kInvalidArgument names two of them and the difference. kInvalidArgument as well: no results, an arm of
// `against` that no file has; else as ReadReportFiles and the sections (report_*.h).
Result<Report> MakeReport(const ReportRequest& request);

}  // namespace qkvshare
