#include "eval/ttft.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/stopwatch.h"
#include "eval/kept_context.h"
#include "eval/machine_facts.h"
#include "eval/result_file.h"
#include "eval/run_facts.h"
#include "eval/ttft_depth.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLeastRuns = 3;  // of a way that takes long

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Status Check(const TtftRequest& request) {
  if (request.depths.empty()) return Invalid("give at least one depth");
  if (std::set<size_t>(request.depths.begin(), request.depths.end()).size() < request.depths.size())
    return Invalid("a depth is there twice: give each once");
  if (request.suffix < 1 || request.repeats < 1)
    return Invalid("give a suffix of a token or more, and one run or more");
  if (!request.session.flash_attention) return Invalid("the ways are compared with flash attention: leave out -fa off");
  return CheckPackOptions(request.pack);
}

bool Prefills(const std::string& way) { return way == kSenderWay || way == kReprefillWay; }

// The runs of one way.
struct Runs {
  std::vector<int> turns;  // in which they were
  std::vector<Stages> stages;
  std::vector<int64_t> total_us;
  int32_t first_token = -1;
};

// All ways at one depth, in turn.
class DepthTurns {
 public:
  DepthTurns(const TtftRequest& request, TtftDepth* depth, std::vector<std::string> ways)
      : request_(request), depth_(*depth), ways_(std::move(ways)) {}

  Result<std::vector<TtftLine>> Run() {
    QKV_RETURN_IF_ERROR(Count(kSenderWay, 1));
    QKV_RETURN_IF_ERROR(depth_.WriteStates());
    for (const std::string& way : ways_) {
      if (!Prefills(way)) QKV_RETURN_IF_ERROR(depth_.Receive(way).status());
    }
    for (int turn = 1; turn <= request_.repeats; ++turn) QKV_RETURN_IF_ERROR(Turn(turn));
    std::vector<TtftLine> lines;
    for (const std::string& way : ways_) lines.push_back(LineOf(way));
    return lines;
  }

 private:
  // What comes first may find another machine than what comes next.
  Status Turn(int turn) {
    for (size_t i = 0; i < ways_.size(); ++i) {
      const std::string& way = ways_[turn % 2 == 1 ? i : ways_.size() - 1 - i];
      if (Wanted(way)) QKV_RETURN_IF_ERROR(Count(way, turn));
    }
    return {};
  }

  bool Wanted(const std::string& way) {
    const Runs& runs = runs_[way];
    int64_t spent_us = 0;
    for (const int64_t us : runs.total_us) spent_us += us;
    const size_t done = runs.turns.size();
    const bool is_long = Prefills(way) && done >= kLeastRuns && spent_us >= request_.prefill_us;
    return done < static_cast<size_t>(request_.repeats) && !is_long;
  }

  Status Count(const std::string& way, int turn) {
    QKV_ASSIGN_OR_RETURN(TtftRun run, way == kSenderWay ? depth_.Send() : depth_.Receive(way));
    Runs& runs = runs_[way];
    runs.turns.push_back(turn);
    runs.total_us.push_back(TotalUs(run.stages));
    runs.stages.push_back(std::move(run.stages));
    runs.first_token = run.first_token;
    return {};
  }

  double Speedup(const std::string& way) const {
    const Runs &reprefill = runs_.at(kReprefillWay), &runs = runs_.at(way);
    std::vector<double> ratios;
    for (size_t i = 0; i < runs.turns.size(); ++i) {
      const auto same = std::find(reprefill.turns.begin(), reprefill.turns.end(), runs.turns[i]);
      if (same == reprefill.turns.end()) continue;
      const int64_t reprefill_us = reprefill.total_us[static_cast<size_t>(same - reprefill.turns.begin())];
      ratios.push_back(static_cast<double>(reprefill_us) / static_cast<double>(std::max<int64_t>(runs.total_us[i], 1)));
    }
    return Median(std::move(ratios));
  }

  TtftLine LineOf(const std::string& way) const {
    const Runs& runs = runs_.at(way);
    TtftLine line;
    line.depth = depth_.depth();
    line.way = way;
    line.runs = static_cast<int>(runs.turns.size());
    line.bytes = depth_.BytesOf(way);
    line.total = SpreadOf(runs.total_us);
    line.stages = SpreadsOf(runs.stages);
    line.first_token = runs.first_token;
    if (way != kSenderWay) line.speedup = Speedup(way);
    if (std::vector<int64_t> us = depth_.WriteTimes(way); !us.empty()) line.write = SpreadOf(std::move(us));
    if (way == kSenderWay || way == kCardRestoredWay || way == kCardAttachedWay) {
      line.code_bits = depth_.card()->average_code_bits();
      line.total_bits = depth_.card()->average_total_bits();
    }
    return line;
  }

  const TtftRequest& request_;
  TtftDepth& depth_;
  std::vector<std::string> ways_;
  std::map<std::string, Runs> runs_;
};

class TtftMeasurement {
 public:
  TtftMeasurement(const Model& model, const TtftRequest& request) : model_(model), request_(request) {}

  Result<TtftReport> Run() {
    QKV_RETURN_IF_ERROR(Check(request_));
    const size_t longest = *std::max_element(request_.depths.begin(), request_.depths.end());
    QKV_RETURN_IF_ERROR(CheckTrained(model_, request_.session, longest + request_.suffix + 1, "--depth or --suffix"));
    QKV_ASSIGN_OR_RETURN(tokens_, RepeatTokens(model_, request_.text, longest + request_.suffix));
    QKV_RETURN_IF_ERROR(Prepare(longest));
    std::optional<ResultFile> file;
    if (!request_.results.empty()) {
      QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, Plan()));
      file.emplace(std::move(opened));
      for (const Json& line : file->lines()) {
        QKV_ASSIGN_OR_RETURN(report_.lines.emplace_back(), ParseTtft(line));
      }
    }
    for (size_t i = report_.lines.size() / ways_.size(); i < request_.depths.size(); ++i) {
      QKV_ASSIGN_OR_RETURN(const std::vector<TtftLine> lines, Measure(request_.depths[i]));
      std::vector<Json> group;
      for (const TtftLine& line : lines) group.push_back(TtftJson(line));
      if (file) QKV_RETURN_IF_ERROR(file->Append(group));
      report_.lines.insert(report_.lines.end(), lines.begin(), lines.end());
      if (request_.on_depth) request_.on_depth(lines);
    }
    return std::move(report_);
  }

 private:
  // Finds out what ways there are and what the results follow from; and the weights are in memory afterwards.
  Status Prepare(size_t longest) {
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Create(model_, TtftFusedOptions(request_, longest)));
    report_.first_context_us = watch.LapUs();
    QKV_RETURN_IF_ERROR(session->Prefill(std::span(tokens_).first(request_.suffix), {}));
    ways_ = {kSenderWay, kReprefillWay};
    Json left_out = Json::object();
    for (const CacheType type : kStateTypes) {
      const Status status = CheckCacheTypes(model_, TtftOptions(request_, type, longest));
      if (status.ok()) {
        ways_.push_back(StateWayOf(type));
      } else {
        left_out[StateWayOf(type)] = status.message();
      }
    }
    ways_.emplace_back(kCardRestoredWay);
    if (session->fused().ok()) {
      ways_.emplace_back(kCardAttachedWay);
    } else {
      left_out[kCardAttachedWay] = session->fused().message();
    }
    return MakeHeader(*session, std::move(left_out));
  }

  Status MakeHeader(const Session& session, Json left_out) {
    Json& header = report_.header;
    header = {{kTtftKind, 1},
              {"input", TextDigest(model_, request_.text)},
              {"depths", request_.depths},
              {"suffix", request_.suffix},
              {"repeats", request_.repeats},
              {"pack", PackFacts(request_.pack)},
              {"batch", request_.session.batch},
              {"files", "in the page cache"},
              {"left_out", std::move(left_out)}};
    header.update(ModelFacts(model_));
    header.update(SessionFacts(session));
    QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
    header.update(software);
    header["llama_cpp_system"] = LlamaSystemInfo();  // times go by it
    header["machine"] = MachineFacts();
    if (request_.complete_facts.is_object()) header.update(request_.complete_facts);
    return {};
  }

  ResultPlan Plan() const {
    ResultPlan plan;
    plan.header = report_.header;
    for (const size_t depth : request_.depths) {
      for (const std::string& way : ways_) plan.keys.push_back({{"depth", depth}, {"way", way}});
      plan.group_lines.push_back(ways_.size());
    }
    plan.check = [](const Json& line) { return ParseTtft(line).status(); };
    return plan;
  }

  Result<std::vector<TtftLine>> Measure(size_t depth) const {
    const auto end = tokens_.begin() + static_cast<ptrdiff_t>(depth + request_.suffix);
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<TtftDepth> made,
                         TtftDepth::Make(model_, request_, {tokens_.begin(), end}, depth));
    return DepthTurns(request_, made.get(), ways_).Run();
  }

  const Model& model_;
  const TtftRequest& request_;
  std::vector<int32_t> tokens_;  // of the longest context, and a suffix
  std::vector<std::string> ways_;
  TtftReport report_;
};

}  // namespace

std::string StateWayOf(CacheType type) {
  switch (type) {
    case CacheType::kQ8_0: return "Q8_0 state";
    case CacheType::kQ4_0: return "Q4_0 state";
    default: return "F16 state";
  }
}

Result<TtftReport> MeasureTtft(const Model& model, const TtftRequest& request) {
  return TtftMeasurement(model, request).Run();
}

}  // namespace qkvshare
