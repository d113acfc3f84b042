#include "eval/hop_runner.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "eval/hop_group.h"
#include "eval/hop_header.h"
#include "eval/result_file.h"

namespace qkvshare {
namespace {

Result<ResultPlan> PlanOfResults(const Session& session, const HopRequest& request) {
  ResultPlan plan;
  QKV_ASSIGN_OR_RETURN(plan.header, HopHeader(session, request));
  if (request.add_to_header) request.add_to_header(&plan.header);
  for (const HopChain& chain : request.chains) {
    for (size_t hop = 0; hop < request.hops; ++hop) plan.keys.push_back({{"chain", chain.id}, {"hop", hop}});
  }
  for (size_t first = 0; first < request.chains.size(); first += request.GroupSize(first))
    plan.group_lines.push_back(request.GroupSize(first) * request.hops);
  plan.check = [](const nlohmann::ordered_json& line) { return ParseHop(line).status(); };
  return plan;
}

Status Write(const std::vector<HopRecord>& group, const HopRequest& request, ResultFile* file) {
  std::vector<nlohmann::ordered_json> lines;
  for (const HopRecord& record : group) {
    lines.push_back(HopJson(record));
    if (request.add_to_line) request.add_to_line(record, &lines.back());
  }
  return file->Append(lines);
}

}  // namespace

Result<std::unique_ptr<Session>> MakeHopSession(const Model& model, const HopRequest& request) {
  if (request.parallel > 1 && model.rope_depends_on_context()) {
    return Status(StatusCode::kUnsupported,
                  "this model's RoPE depends on the size of the context, which several chains "
                  "share: run one at a time");
  }
  SessionOptions options = request.session;
  options.sequences = request.parallel;
  options.context = request.context * static_cast<uint32_t>(std::max(request.parallel, 1));
  options.fused = request.hand_over == HandOver::kCards;
  options.card_tokens = 0;
  QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(model, options));
  if (options.fused && !session->fused().ok()) return session->fused();
  return session;
}

Result<std::vector<HopRecord>> RunHops(Session* session, const HopRequest& request) {
  QKV_RETURN_IF_ERROR(CheckHopRequest(*session, request));
  std::vector<HopRecord> records;
  std::optional<ResultFile> file;
  if (!request.results.empty()) {
    QKV_ASSIGN_OR_RETURN(const ResultPlan plan, PlanOfResults(*session, request));
    QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request.results, plan));
    file.emplace(std::move(opened));
    for (const nlohmann::ordered_json& line : file->lines()) {
      QKV_ASSIGN_OR_RETURN(records.emplace_back(), ParseHop(line));
    }
  }
  if (!request.card_folder.empty()) {
    for (const HopRecord& record : records) QKV_RETURN_IF_ERROR(CheckKeptCard(record, request));
    QKV_RETURN_IF_ERROR(MakeFolders(request.card_folder));
  }
  QKV_RETURN_IF_ERROR(session->KeepQueries(KeepsQueries(request) ? kWindowTokens : 0, kWindowStride));
  for (size_t done = records.size() / request.hops; done < request.chains.size();) {
    QKV_ASSIGN_OR_RETURN(const std::vector<HopRecord> group, RunHopGroup(done, request, session));
    if (file) QKV_RETURN_IF_ERROR(Write(group, request, &*file));
    records.insert(records.end(), group.begin(), group.end());
    done += request.GroupSize(done);
  }
  return records;
}

}  // namespace qkvshare
