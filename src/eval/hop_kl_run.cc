#include "eval/hop_kl_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "eval/hop_header.h"
#include "eval/hop_kl_chain.h"
#include "eval/hop_record.h"
#include "eval/hop_runner.h"
#include "eval/report_file.h"
#include "eval/result_file.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;
constexpr uint32_t kFloorPiece = 16;

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Digest DigestOfAnswers(std::span<const HopRecord> said) {
  Blake2bHasher hasher;
  for (const HopRecord& record : said) {
    const std::vector<int32_t> tokens = AnswerTokens(record);
    hasher.UpdateValue(tokens.size());
    for (const int32_t token : tokens) hasher.UpdateValue(token);
  }
  return hasher.Finish();
}

class HopKlRunner {
 public:
  HopKlRunner(const Model& model, const HopKlRequest& request) : model_(model), request_(request) {}

  Status CheckArms() { return MakeSessions(); }

  Result<std::vector<FidelityLine>> Run() {
    QKV_RETURN_IF_ERROR(CheckSaid());
    QKV_RETURN_IF_ERROR(MakeSessions());
    std::vector<FidelityLine> lines;
    std::optional<ResultFile> file;
    if (!request_.results.empty()) {
      QKV_ASSIGN_OR_RETURN(const ResultPlan plan, PlanOfResults());
      QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, plan));
      file.emplace(std::move(opened));
      for (const Json& line : file->lines()) {
        QKV_ASSIGN_OR_RETURN(lines.emplace_back(), ParseFidelityLine(line));
      }
    }
    size_t first = 0;
    for (size_t there = 0; there < lines.size(); ++first) there += LinesOf(first);
    QKV_RETURN_IF_ERROR(Measure(first, file ? &*file : nullptr, &lines));
    return lines;
  }

 private:
  size_t hops() const { return request_.conversation.hops; }
  size_t chains() const { return request_.said.size() / hops(); }
  std::span<const HopRecord> SaidIn(size_t chain) const {
    return std::span(request_.said).subspan(chain * hops(), hops());
  }
  // Hops that were reached and have an answer.
  std::vector<size_t> AnsweredHops(size_t chain) const {
    std::vector<size_t> answered;
    for (const HopRecord& record : SaidIn(chain)) {
      if (record.read_tokens == 0) break;
      if (!AnswerTokens(record).empty()) answered.push_back(record.hop);
    }
    return answered;
  }
  size_t LinesOf(size_t chain) const { return AnsweredHops(chain).size() * request_.arms.size(); }
  size_t TokensOf(size_t chain) const {
    size_t tokens = 0;
    for (const HopRecord& record : SaidIn(chain)) tokens += record.read_tokens + AnswerTokens(record).size();
    return tokens * (1 + request_.arms.size());
  }

  Status CheckSaid() const {
    if (request_.arms.empty()) return Invalid("there are no arms to compare");
    if (request_.said.empty()) return Invalid("there is no conversation to measure");
    if (request_.said.size() % hops() != 0 || chains() > request_.conversation.chains.size())
      return Invalid("the conversations are not whole, or more than there are chains");
    for (size_t chain = 0; chain < chains(); ++chain) {
      if (AnsweredHops(chain).empty())
        return Invalid(fmt::format("the conversation {} has no answer", request_.said[chain * hops()].chain));
    }
    for (size_t i = 0; i < request_.said.size(); ++i) {
      const HopRecord& record = request_.said[i];
      if (record.chain == request_.conversation.chains[i / hops()].id && record.hop == i % hops()) continue;
      return Invalid(
          fmt::format("the conversations do not go by the chains: {}, hop {}", record.chain, record.hop + 1));
    }
    return {};
  }

  HopRequest RequestOf(HandOver hand_over) const {
    HopRequest request = request_.conversation;
    request.hand_over = hand_over;
    request.parallel = 1;
    request.probe = false;
    request.packs = {PackOptions()};
    request.session.cancel = request_.cancel;
    request.session.cache_type_k = request.session.cache_type_v = CacheType::kF16;
    request.results.clear();
    request.card_folder.clear();
    return request;
  }

  Result<Session*> AddSession(const HopRequest& request) {
    QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, MakeHopSession(model_, request));
    sessions_.push_back(std::move(session));
    return sessions_.back().get();
  }

  Status MakeSessions() {
    setup_.request = RequestOf(HandOver::kSequence);
    QKV_ASSIGN_OR_RETURN(setup_.reference, AddSession(setup_.request));
    for (const HopKlArm& arm : request_.arms) QKV_RETURN_IF_ERROR(AddArm(arm));
    // Cards of `once` are packed from it, as others are.
    if (!setup_.reference->flash_attention()) return {};
    return setup_.reference->KeepQueries(kWindowTokens, kWindowStride);
  }

  // Cards leave nothing in a session from one hop to the next, so that all such arms share one.
  Result<Session*> SessionFor(const HopRequest& request) {
    if (!Packs(request.hand_over)) return AddSession(request);
    Session*& shared = request.hand_over == HandOver::kCards ? attached_ : restored_;
    if (shared == nullptr) {
      QKV_ASSIGN_OR_RETURN(shared, AddSession(request));
    }
    return shared;
  }

  Status AddArm(const HopKlArm& arm) {
    HopKlSetup::Arm& added = setup_.arms.emplace_back();
    added.way = arm.way;
    added.name = arm.arm.name;
    added.request = RequestOf(arm.arm.hand_over);
    ApplyChainArm(arm.arm, &added.request);
    if (arm.way == HopKlWay::kFloor) added.request.session.batch = std::min(added.request.session.batch, kFloorPiece);
    QKV_ASSIGN_OR_RETURN(added.session, SessionFor(added.request));
    QKV_RETURN_IF_ERROR(FitChainArm(*added.session, arm.arm, &added.request));
    return CheckHopRequest(*added.session, added.request);
  }

  Result<ResultPlan> PlanOfResults() const {
    ResultPlan plan;
    Json arms = Json::array();
    for (size_t i = 0; i < request_.arms.size(); ++i)
      arms.push_back(HopKlArmJson(request_.arms[i], setup_.arms[i].request));
    QKV_ASSIGN_OR_RETURN(const Json asked, HopHeader(*setup_.reference, setup_.request));
    plan.header = {{kHopKlKind, kVersion},
                   {"input", asked.at("input")},
                   {"answers", ToHex(DigestOfAnswers(request_.said))},
                   {"prompts", chains()},
                   {"hops", hops()},
                   {"arms", arms},
                   {"batch", setup_.request.session.batch}};
    plan.header.update(ModelFacts(model_));
    plan.header.update(SessionFacts(*setup_.reference));
    QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
    plan.header.update(software);
    for (size_t chain = 0; chain < chains(); ++chain) {
      plan.group_lines.push_back(LinesOf(chain));
      for (const size_t hop : AnsweredHops(chain)) {
        for (const HopKlArm& arm : request_.arms) {
          plan.keys.push_back({{"prompt", request_.conversation.chains[chain].id},
                               {"continuation", HopName(hop)},
                               {"arm", arm.arm.name}});
        }
      }
    }
    plan.check = [](const Json& line) { return ParseFidelityLine(line).status(); };
    return plan;
  }

  Status Measure(size_t first, ResultFile* file, std::vector<FidelityLine>* lines) {
    HopKlProgress progress;
    progress.chains = chains();
    for (size_t chain = first; chain < chains(); ++chain) progress.total += TokensOf(chain);
    setup_.on_decoded = [&](const std::string& what, size_t tokens) {
      if (request_.on_step) {
        progress.what = what;
        request_.on_step(progress);
      }
      progress.done = std::min(progress.done + tokens, progress.total);
    };
    for (progress.chain = first; progress.chain < chains(); ++progress.chain) {
      QKV_ASSIGN_OR_RETURN(const std::vector<HopKlResult> results,
                           MeasureHopKl(setup_, progress.chain, SaidIn(progress.chain)));
      std::vector<Json> group;
      for (const HopKlResult& result : results) {
        group.push_back(FidelityLineJson(result.line));
        group.back()["tokens"] = result.tokens;
        lines->push_back(result.line);
      }
      if (file != nullptr) QKV_RETURN_IF_ERROR(file->Append(group));
    }
    return {};
  }

  const Model& model_;
  const HopKlRequest& request_;
  std::vector<std::unique_ptr<Session>> sessions_;
  Session *attached_ = nullptr, *restored_ = nullptr;
  HopKlSetup setup_;
};

}  // namespace

Result<std::vector<HopRecord>> ReadConversations(const std::string& path, size_t chains) {
  QKV_ASSIGN_OR_RETURN(const Results file, ReadResults(path, kHopKind));
  const auto hops_there = file.header.find("hops");
  if (HeaderText(file.header, "arm") != "f16" || hops_there == file.header.end() || !hops_there->is_number_unsigned())
    return Invalid(path + ": is no file of eval chain of arm f16");
  const auto hops = hops_there->get<size_t>();
  std::vector<HopRecord> said;
  for (const Json& line : file.lines) {
    if (chains > 0 && said.size() == chains * hops) break;
    Result<HopRecord> record = ParseHop(line);
    if (!record) {
      return Status(record.status().code(),
                    fmt::format("{}: result {}: {}", path, said.size() + 1, record.status().message()));
    }
    said.push_back(std::move(*record));
  }
  if (hops == 0 || said.empty() || said.size() % hops != 0 || said.size() < chains * hops) {
    return Invalid(fmt::format("{} has {} whole conversations, but {} are wanted", path,
                               hops == 0 ? 0 : said.size() / hops, std::max<size_t>(chains, 1)));
  }
  return said;
}

Status CheckHopKlArms(const Model& model, const HopKlRequest& request) {
  return HopKlRunner(model, request).CheckArms();
}

Result<std::vector<FidelityLine>> RunHopKl(const Model& model, const HopKlRequest& request) {
  return HopKlRunner(model, request).Run();
}

}  // namespace qkvshare
