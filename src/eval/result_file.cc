#include "eval/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "eval/header_difference.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{1} << 32;
constexpr const char* kProducer = "produced_by";

Status IoError(const std::string& path, const char* what) {
  return {StatusCode::kIo, fmt::format("{}: cannot {}: {}", path, what, std::system_category().message(errno))};
}

std::string LineOf(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string KindOf(const Json& header) { return header.begin().key(); }

bool Has(const Json& line, const Json& members) {
  return std::all_of(members.items().begin(), members.items().end(), [&](const auto& member) {
    const auto found = line.find(member.key());
    return found != line.end() && *found == member.value();
  });
}

// The lines of a text, without one that has no end.
class Lines {
 public:
  explicit Lines(const std::string& text) : text_(text) {}
  bool Next(std::string* line) {
    const size_t end = text_.find('\n', at_);
    if (end == std::string::npos) return false;
    *line = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++number_;
    return true;
  }
  size_t at() const { return at_; }          // bytes up to the end of the last line
  size_t number() const { return number_; }  // of the last line, from 1

 private:
  const std::string& text_;
  size_t at_ = 0, number_ = 0;
};

Json Parse(const std::string& line) { return Json::parse(line, nullptr, /*allow_exceptions=*/false); }

Status Corrupt(const std::string& path, size_t line, const std::string& what) {
  return {StatusCode::kCorrupt,
          fmt::format("{}: line {} is {}; remove it and what follows, or the file", path, line, what)};
}

}  // namespace

Result<ResultFile> ResultFile::Open(const std::string& path, const ResultPlan& plan) {
  QKV_RETURN_IF_ERROR(CheckReplaceable(path));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) {
    if (errno == ENOENT) return Status(StatusCode::kNotFound, path + ": there is no such folder");
    return IoError(path, "open it");
  }
  ResultFile file(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return Status(StatusCode::kInvalidArgument, path + ": another run is writing to it; choose another file");
  }
  QKV_ASSIGN_OR_RETURN(const std::string content, ReadText(path, kMaxBytes));
  QKV_RETURN_IF_ERROR(file.ReadBack(content, plan));
  return file;
}

ResultFile::~ResultFile() {
  if (fd_ >= 0) close(fd_);
}

ResultFile::ResultFile(ResultFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      lines_(std::move(other.lines_)),
      producer_(std::move(other.producer_)) {}

Status ResultFile::CheckHeader(const std::string& line, const Json& header) const {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}; choose another file, or remove it", path_, why));
  };
  const Json theirs = Parse(line);
  if (!theirs.is_object() || !theirs.contains(KindOf(header)))
    return refuse(fmt::format("is no file of results with \"{}\"", KindOf(header)));
  const Json ours = Parse(LineOf(header));  // as it reads when written
  for (const auto& [key, value] : ours.items()) {
    if (theirs.contains(key) && theirs[key] == value) continue;
    const Json missing;
    const std::string difference =
        DifferenceText(key, theirs.contains(key) ? theirs[key] : missing, value, {"there", "now"});
    return refuse(fmt::format("is of another run, whose {}", difference));
  }
  return theirs.size() == ours.size() ? Status() : refuse("says more of its run than this version knows");
}

Status ResultFile::ReadBack(const std::string& content, const ResultPlan& plan) {
  // A run that was stopped at its first write has left less than a line; anything else may be somebody's.
  const std::string first = LineOf(plan.header);
  if (content.size() < first.size() && first.starts_with(content)) {
    if (ftruncate(fd_, 0) != 0) return IoError(path_, "shorten it");
    return Write(first);
  }
  Lines lines(content);
  std::string line;
  QKV_RETURN_IF_ERROR(CheckHeader(lines.Next(&line) ? line : content, plan.header));
  size_t whole = lines.at();  // bytes up to the end of the last whole group
  size_t group = 0;
  std::vector<Json> read;
  for (std::string producer; lines.Next(&line);) {
    Json json = Parse(line);
    if (json.is_object() && json.contains(kProducer)) {
      producer = line + "\n";
      continue;
    }
    if (!json.is_object() || (plan.check && !plan.check(json).ok())) return Corrupt(path_, lines.number(), "damaged");
    const size_t index = lines_.size() + read.size();
    if (index >= plan.keys.size() || !Has(json, plan.keys[index]))
      return Corrupt(path_, lines.number(), "not the one that comes next");
    read.push_back(std::move(json));
    if (read.size() < plan.group_lines[group]) continue;
    std::move(read.begin(), read.end(), std::back_inserter(lines_));
    read.clear();
    ++group;
    whole = lines.at();
    producer_ = producer;
  }
  if (whole == content.size()) return {};
  return ftruncate(fd_, static_cast<off_t>(whole)) == 0 ? Status() : IoError(path_, "shorten it");
}

Status ResultFile::Append(std::span<const Json> group) {
  const std::string producer = LineOf({{kProducer, ProducerFacts()}});
  std::string text = producer == producer_ ? "" : producer;
  for (const Json& line : group) text += LineOf(line);
  QKV_RETURN_IF_ERROR(Write(text));
  producer_ = producer;
  return {};
}

Status ResultFile::Write(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return IoError(path_, "write to it");
    done += static_cast<size_t>(n);
  }
  return fsync(fd_) == 0 ? Status() : IoError(path_, "write to it");
}

Result<Results> ReadResults(const std::string& path, const std::string& kind) {
  QKV_ASSIGN_OR_RETURN(const std::string content, ReadText(path, kMaxBytes));
  Lines lines(content);
  std::string line;
  Results results;
  if (lines.Next(&line)) results.header = Parse(line);
  if (!results.header.is_object() || !results.header.contains(kind)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: is no file of results with \"{}\"", path, kind));
  }
  while (lines.Next(&line)) {
    Json json = Parse(line);
    if (!json.is_object()) return Corrupt(path, lines.number(), "damaged");
    if (json.contains(kProducer)) {
      results.producers.push_back(json[kProducer]);
    } else {
      results.lines.push_back(std::move(json));
    }
  }
  return results;
}

}  // namespace qkvshare
