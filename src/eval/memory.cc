#include "eval/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "eval/kept_context.h"
#include "eval/memory_files.h"
#include "eval/result_file.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Status CheckNumbers(const std::vector<size_t>& numbers, const char* what, size_t most) {
  if (std::set<size_t>(numbers.begin(), numbers.end()).size() < numbers.size())
    return Invalid(fmt::format("a number of {} is there twice: give each once", what));
  const bool in_range = std::all_of(numbers.begin(), numbers.end(), [&](size_t n) { return n >= 1 && n <= most; });
  return in_range ? Status() : Invalid(fmt::format("numbers of {}: choose from 1 to {}", what, most));
}

size_t BytesOfFiles(const std::vector<std::string>& paths) {
  size_t bytes = 0;
  std::error_code error;
  for (const std::string& path : paths) bytes += std::filesystem::file_size(path, error);
  return bytes;
}

// Of rows of `tokens` tokens in FP16.
size_t RowBytes(const std::vector<LayerShape>& shapes, size_t tokens) {
  size_t values = 0;
  for (const LayerShape& shape : shapes) values += shape.row_values(Side::kKeys) + shape.row_values(Side::kValues);
  return values * sizeof(Half) * tokens;
}

// Of all processes.
void AddUse(const std::vector<MemoryCaseResult>& results, MemoryLine* line) {
  for (const MemoryCaseResult& result : results) {
    line->private_bytes += result.held.private_bytes;
    line->peak_private_bytes += result.peak_private_bytes;
    line->model_private_bytes += result.model_private_bytes;
    line->shared_bytes = std::max(line->shared_bytes, result.held.shared_bytes);
    line->proportional_bytes += result.held.proportional_bytes;
  }
}

class AgentMemory {
 public:
  explicit AgentMemory(const MemoryRequest& request) : request_(request) {}

  Result<MemoryReport> Run(std::unique_ptr<Model> model) {
    QKV_RETURN_IF_ERROR(Check());
    QKV_RETURN_IF_ERROR(Prepare(*model));
    QKV_RETURN_IF_ERROR(OpenResults());
    const size_t lines = request_.agents.size() * AgentLines() + request_.hops.size() * contents_.size();
    if (report_.lines.size() == lines) return std::move(report_);
    QKV_ASSIGN_OR_RETURN(files_, MemoryFiles::Write(*model, request_, std::move(tokens_)));
    model.reset();
    for (const size_t agents : request_.agents) QKV_RETURN_IF_ERROR(RunAgents(agents));
    for (const MemoryContent content : contents_) QKV_RETURN_IF_ERROR(RunHops(content));
    return std::move(report_);
  }

 private:
  static constexpr const char* kShapes[] = {kContextsShape, kSequencesShape, kProcessesShape};

  Status Check() const {
    QKV_RETURN_IF_ERROR(ReadMemoryUse().status());
    QKV_RETURN_IF_ERROR(CheckNumbers(request_.agents, "agents", kMaxSequences));
    QKV_RETURN_IF_ERROR(CheckNumbers(request_.hops, "hops", kMaxHops));
    if (request_.agents.empty() && request_.hops.empty()) return Invalid("give numbers of agents, or of hops");
    if (request_.depth < 1 || request_.suffix < 1 || request_.hop_tokens < 1)
      return Invalid("give a context, a suffix and hops of a token or more");
    if (request_.suffix + kMaxHops * request_.hop_tokens > size_t{1} << 20)
      return Invalid("so many tokens of a hop do not fit any context: give fewer");
    return {};
  }

  // Finds out what there is to measure, and what the results follow from.
  Status Prepare(const Model& model) {
    const size_t hops = request_.hops.empty() ? 0 : *std::max_element(request_.hops.begin(), request_.hops.end());
    const size_t tokens = request_.depth + request_.suffix + hops * request_.hop_tokens;
    QKV_RETURN_IF_ERROR(CheckTrained(model, request_.session, tokens, "--depth, --suffix, --hops or --hop-tokens"));
    QKV_ASSIGN_OR_RETURN(tokens_, RepeatTokens(model, request_.text, tokens));
    SessionOptions options = request_.session;
    options.context = static_cast<uint32_t>(request_.depth + request_.suffix);
    options.card_tokens = static_cast<uint32_t>(request_.depth);
    options.fused = true;
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
    contents_ = {MemoryContent::kF16};
    Json left_out = Json::object();
    if (session->fused().ok()) {
      contents_.push_back(MemoryContent::kCards);
    } else {
      left_out[MemoryContentName(MemoryContent::kCards)] = session->fused().message();
    }
    report_.context_bytes = RowBytes(session->state_layout().shapes, request_.depth);
    return MakeHeader(*session, std::move(left_out));
  }

  Status MakeHeader(const Session& session, Json left_out) {
    Json& header = report_.header;
    header = {{kMemoryKind, 1},
              {"input", TextDigest(session.model(), request_.text)},
              {"depth", request_.depth},
              {"agents", request_.agents},
              {"hops", request_.hops},
              {"suffix", request_.suffix},
              {"hop_tokens", request_.hop_tokens},
              {"bits", request_.bits},
              {"context_bytes", report_.context_bytes},
              {"batch", request_.session.batch},
              {"left_out", std::move(left_out)}};
    header.update(ModelFacts(session.model()));
    header.update(SessionFacts(session));
    QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
    header.update(software);
    return {};
  }

  // Of one number of agents.
  size_t AgentLines() const { return std::size(kShapes) * (1 + contents_.size()); }

  Status OpenResults() {
    if (request_.results.empty()) return {};
    ResultPlan plan;
    plan.header = report_.header;
    for (const size_t agents : request_.agents) {
      for (const char* shape : kShapes) {
        for (const MemoryContent content : AgentContents())
          plan.keys.push_back({{"shape", shape}, {"content", MemoryContentName(content)}, {"agents", agents}});
      }
      plan.group_lines.push_back(AgentLines());
    }
    for (const MemoryContent content : contents_) {
      if (request_.hops.empty()) break;
      for (const size_t hop : SortedHops())
        plan.keys.push_back({{"shape", kHopShape}, {"content", MemoryContentName(content)}, {"hop", hop}});
      plan.group_lines.push_back(request_.hops.size());
    }
    plan.check = [](const Json& line) { return ParseMemory(line).status(); };
    QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, plan));
    file_.emplace(std::move(opened));
    for (const Json& line : file_->lines()) {
      QKV_ASSIGN_OR_RETURN(report_.lines.emplace_back(), ParseMemory(line));
    }
    return {};
  }

  std::vector<MemoryContent> AgentContents() const {
    std::vector<MemoryContent> contents = {MemoryContent::kEmpty};
    contents.insert(contents.end(), contents_.begin(), contents_.end());
    return contents;
  }
  std::vector<size_t> SortedHops() const {
    std::vector<size_t> hops = request_.hops;
    std::sort(hops.begin(), hops.end());
    return hops;
  }

  void Step(const std::string& name) const {
    if (request_.on_step) request_.on_step(name);
  }

  // A group that is done already is there as a whole.
  bool Done(const std::string& shape, MemoryContent content, size_t number) const {
    return report_.Find(shape, MemoryContentName(content), number) != nullptr;
  }

  Status Append(const std::vector<MemoryLine>& group) {
    std::vector<Json> lines;
    for (const MemoryLine& line : group) lines.push_back(MemoryJson(line));
    report_.lines.insert(report_.lines.end(), group.begin(), group.end());
    return file_ ? file_->Append(lines) : Status();
  }

  MemoryCase CaseOf(MemoryContent content) const {
    MemoryCase memory_case;
    memory_case.model = request_.model;
    memory_case.content = content;
    memory_case.depth = request_.depth;
    if (content == MemoryContent::kF16) memory_case.state = files_->state();
    if (content == MemoryContent::kCards) memory_case.cards = {files_->card()};
    memory_case.tokens = files_->After(0, request_.suffix);
    memory_case.code_bits = request_.bits;
    memory_case.session = request_.session;
    return memory_case;
  }

  static MemoryLine LineOf(const MemoryCase& memory_case, const char* shape, size_t number) {
    MemoryLine line;
    line.shape = shape;
    line.content = MemoryContentName(memory_case.content);
    line.number = number;
    line.tokens = memory_case.content == MemoryContent::kEmpty ? 0 : memory_case.depth;
    std::vector<std::string> files = memory_case.cards;
    if (!memory_case.state.empty()) files.push_back(memory_case.state);
    line.taken_bytes = BytesOfFiles(files);
    return line;
  }

  Status RunAgents(size_t agents) {
    if (Done(kContextsShape, MemoryContent::kEmpty, agents)) return {};
    std::vector<MemoryLine> group;
    for (const std::string shape : kShapes) {
      for (const MemoryContent content : AgentContents()) {
        Step(fmt::format("{} agents, {}: {}", agents, shape, MemoryContentName(content)));
        MemoryCase memory_case = CaseOf(content);
        const size_t processes = shape == kProcessesShape ? agents : 1;
        memory_case.agents = agents / processes;
        memory_case.one_context = shape == kSequencesShape;
        QKV_ASSIGN_OR_RETURN(const std::vector<MemoryCaseResult> results, request_.run(memory_case, processes));
        AddUse(results, &group.emplace_back(LineOf(memory_case, shape.c_str(), agents)));
      }
    }
    return Append(group);
  }

  // Each hop takes what those before have handed on, reads, and hands on: a card of what it has read, or all of it as a
  // state.
  Status RunHops(MemoryContent content) {
    const std::vector<size_t> wanted = SortedHops();
    if (wanted.empty() || Done(kHopShape, content, wanted.front())) return {};
    std::vector<MemoryLine> group;
    MemoryCase memory_case = CaseOf(content);
    for (size_t hop = 1; hop <= wanted.back(); ++hop) {
      Step(fmt::format("hop {}: {}", hop, MemoryContentName(content)));
      memory_case.depth = request_.depth + (hop - 1) * request_.hop_tokens;
      memory_case.tokens = files_->After((hop - 1) * request_.hop_tokens, request_.hop_tokens);
      memory_case.output = files_->Path(fmt::format("hop{}.{}", hop, MemoryContentName(content)));
      QKV_ASSIGN_OR_RETURN(const std::vector<MemoryCaseResult> results, request_.run(memory_case, 1));
      MemoryLine line = LineOf(memory_case, kHopShape, hop);
      AddUse(results, &line);
      line.handed_bytes = results.front().output_bytes;
      if (std::binary_search(wanted.begin(), wanted.end(), hop)) group.push_back(line);
      if (content == MemoryContent::kCards) {
        memory_case.cards.push_back(memory_case.output);
      } else {
        std::error_code ignored;  // nobody needs it any more, and it is large
        if (hop > 1) std::filesystem::remove(memory_case.state, ignored);
        memory_case.state = memory_case.output;
      }
    }
    return Append(group);
  }

  static constexpr size_t kMaxHops = 64;

  const MemoryRequest& request_;
  std::vector<int32_t> tokens_;
  std::vector<MemoryContent> contents_;  // but kEmpty
  std::optional<ResultFile> file_;
  std::unique_ptr<MemoryFiles> files_;
  MemoryReport report_;
};

}  // namespace

Result<MemoryReport> MeasureAgentMemory(std::unique_ptr<Model> model, const MemoryRequest& request) {
  return AgentMemory(request).Run(std::move(model));
}

}  // namespace qkvshare
