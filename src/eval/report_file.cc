#include "eval/report_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "eval/header_difference.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "card_format";

// Of a file of results: the first member of its first line. Empty where it is none.
Result<std::string> KindOf(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto* const begin = reinterpret_cast<const char*>(file.bytes().data());
  const auto* const end = begin + file.bytes().size();
  const Json header = Json::parse(begin, std::find(begin, end, '\n'), nullptr, /*allow_exceptions=*/false);
  return header.is_object() && !header.empty() ? header.begin().key() : std::string();
}

Status Differ(const ReportFile& a, const ReportFile& b, const std::string& member) {
  const auto value = [&](const ReportFile& file) { return file.results.header.value(member, Json()); };
  return {StatusCode::kInvalidArgument, fmt::format("{} and {} do not go together: their {}; make a report of each",
                                                    a.path, b.path, DifferenceText(member, value(a), value(b)))};
}

// The first member that one has otherwise than the other; empty: none.
std::string Difference(const Json& a, const Json& b, std::span<const std::string> may_differ) {
  for (const auto& [key, value] : a.items()) {
    if (std::find(may_differ.begin(), may_differ.end(), key) != may_differ.end()) continue;
    if (!b.contains(key) || b[key] != value) return key;
  }
  return "";
}

}  // namespace

Result<std::vector<ReportFile>> ReadReportFiles(std::span<const std::string> paths,
                                                std::span<const std::string> kinds) {
  std::vector<ReportFile> files;
  if (paths.empty()) return Status(StatusCode::kInvalidArgument, "a report needs files of results");
  for (const std::string& path : paths) {
    if (std::any_of(files.begin(), files.end(), [&](const ReportFile& file) { return file.path == path; }))
      return Status(StatusCode::kInvalidArgument, path + ": give each file once");
    QKV_ASSIGN_OR_RETURN(std::string kind, KindOf(path));
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: is no file of results of eval fidelity, chain, hops, ttft or memory", path));
    }
    QKV_ASSIGN_OR_RETURN(Results results, ReadResults(path, kind));
    files.push_back({path, std::move(kind), std::move(results)});
    const ReportFile &first = files.front(), &last = files.back();
    if (HeaderText(first.results.header, kFormat) != HeaderText(last.results.header, kFormat))
      return Differ(first, last, kFormat);
  }
  return files;
}

Result<std::vector<FileGroup>> GroupFiles(std::span<const ReportFile> files, const std::string& kind,
                                          const std::function<std::string(const Json& header)>& title,
                                          std::span<const std::string> may_differ) {
  std::vector<FileGroup> groups;
  for (const ReportFile& file : files) {
    if (file.kind != kind) continue;
    const std::string name = title(file.results.header);
    if (name.empty()) return Status(StatusCode::kCorrupt, file.path + ": its first line does not say what it is of");
    auto group = std::find_if(groups.begin(), groups.end(), [&](const FileGroup& g) { return g.title == name; });
    if (group == groups.end()) {
      groups.push_back({name, {&file}});
      continue;
    }
    const ReportFile& first = *group->files.front();
    for (const auto& [a, b] : {std::pair(&first, &file), std::pair(&file, &first)}) {
      const std::string member = Difference(a->results.header, b->results.header, may_differ);
      if (!member.empty()) return Differ(first, file, member);
    }
    group->files.push_back(&file);
  }
  return groups;
}

std::string HeaderText(const Json& header, const std::string& member) {
  const auto found = header.find(member);
  if (found == header.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace qkvshare
