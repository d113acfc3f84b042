#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "eval/report.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  qkvshare report fidelity.jsonl ttft.jsonl chains/*.jsonl -o report.html --markdown report.md\n"
    "Files are those of eval fidelity, chain, hops, ttft and memory. One table has results of one model, "
    "input and format.";

struct ReportFlags {
  ReportRequest request;
  std::string html, markdown;
};

Status WriteText(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  return WriteFileAtomic(path, {ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())});
}

// Checked before the work: both can be written, over no file of results and not over each other.
Status CheckTargets(const ReportFlags& flags) {
  if (flags.html.empty() && flags.markdown.empty())
    return {StatusCode::kInvalidArgument, "where to: give -o report.html, --markdown report.md, or both"};
  if (flags.html == flags.markdown)
    return {StatusCode::kInvalidArgument, flags.html + " cannot be both the page and the Markdown; give two names"};
  for (const std::string& path : {flags.html, flags.markdown}) {
    if (!path.empty()) QKV_RETURN_IF_ERROR(CheckTarget(path, flags.request.files));
  }
  return {};
}

Status RunReport(const ReportFlags& flags) {
  QKV_RETURN_IF_ERROR(CheckTargets(flags));
  Report report;
  {
    ProgressLine line("report: ");
    line.Note("reading and comparing");
    QKV_ASSIGN_OR_RETURN(report, MakeReport(flags.request));
  }
  QKV_RETURN_IF_ERROR(WriteText(flags.html, report.html));
  return WriteText(flags.markdown, report.markdown);
}

}  // namespace

Command AddReport(CLI::App* app) {
  auto flags = std::make_shared<ReportFlags>();
  app->footer(kExample);
  app->add_option("FILE", flags->request.files, "Files of results")->required()->check(NotEmpty());
  app->add_option("-o,--output", flags->html, "The page: tables and plots in one HTML file")->check(NotEmpty());
  app->add_option("--markdown", flags->markdown, "The tables as Markdown")->check(NotEmpty());
  app->add_option(
         "--against", flags->request.against,
         "An arm that the others are compared with; repeated (default: the first of each table; of chains f16)")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--title", flags->request.title, "Heading of the report")->check(NotEmpty())->capture_default_str();
  return [flags] {
    const Status status = RunReport(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
