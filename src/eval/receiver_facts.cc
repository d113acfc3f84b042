#include "eval/receiver_facts.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "eval/policy_seed.h"
#include "policy/anchors.h"
#include "policy/attention_window.h"
#include "policy/token_costs.h"
#include "runtime/pack_text.h"

namespace qkvshare {
namespace {

constexpr uint32_t kBesideDistance = 2;  // of segments that a receiver is not there for: half of what the others count

// What was there before counts as the card that a receiver has taken.
Result<std::vector<Anchor>> FindAnchors(const Session& session, size_t before) {
  QKV_ASSIGN_OR_RETURN(const KvState rows, session.TakeKv());
  QKV_ASSIGN_OR_RETURN(const AttentionStats stats,
                       MeasureAttention(rows.view(), RecentQueries(session.window(), kCostTokens, kCostQueries),
                                        session.threads(), nullptr, kAnchorLayerStep));
  std::vector<Anchor> anchors = MakeAnchors(stats);
  std::erase_if(anchors, [before](const Anchor& anchor) { return anchor.token >= before; });
  return anchors;
}

}  // namespace

Result<PackOptions> PackOptionsFor(const CardArm& arm, const EvalPrompt& prompt, const Continuation& continuation,
                                   const std::string& sender, const ReceiverFacts& facts) {
  PackOptions options = arm.pack;
  options.segments = prompt.segments;
  options.policy_seed = PolicySeedFor(options.policy_seed, std::array{prompt.id, continuation.id});
  if (arm.oracle) {
    const OracleQueries& queries = arm.oracle_of_turn ? facts.oracle_of_turn : facts.oracle;
    options.probe = queries.window;
    options.probe_rows = queries.rows;
  }
  if (arm.Uses(Feature::kPrior)) {
    QKV_RETURN_IF_ERROR(
        AddReader({continuation.id, 1}, continuation.roles, sender, prompt.context.size(), &options.segments));
    // It is given the other segments too and may look at them, as one who comes later does at what it is not there for.
    for (Segment& segment : options.segments) {
      if (segment.readers.empty()) segment.readers.push_back({continuation.id, kBesideDistance});
    }
  }
  if (arm.Uses(Feature::kAnchors)) options.anchors = facts.anchors;
  if (arm.Uses(Feature::kProbe)) options.probe = facts.probe;
  return options;
}

Result<OracleQueries> FindOracleQueries(Session* session, std::span<const int32_t> tokens, size_t first) {
  if (first + 1 >= tokens.size()) return Status(StatusCode::kInvalidArgument, "oracle: no prediction is scored");
  const size_t before = session->tokens().size();
  PrefillOptions prefill;
  prefill.window = static_cast<uint32_t>(tokens.size() - 1 - first);
  QKV_RETURN_IF_ERROR(session->Prefill(tokens.first(tokens.size() - 1), prefill));
  OracleQueries queries{session->window(), nullptr};
  QKV_ASSIGN_OR_RETURN(KvState rows, session->TakeKv());
  queries.rows = std::make_shared<const KvState>(std::move(rows));
  QKV_RETURN_IF_ERROR(session->Truncate(before));
  return queries;
}

Result<ScoredWithAnchors> ScoreWithAnchors(Session* session, std::span<const int32_t> tokens, size_t own) {
  const size_t before = session->tokens().size();
  QKV_RETURN_IF_ERROR(session->KeepQueries(static_cast<uint32_t>(std::min<size_t>(own, kCostTokens)), 1));
  Result<LogitRows> rows = ScoreTokens(session, tokens, 0);
  Result<std::vector<Anchor>> anchors =
      rows ? FindAnchors(*session, before) : Result<std::vector<Anchor>>(rows.status());
  QKV_RETURN_IF_ERROR(session->KeepQueries(0, 1));
  if (!anchors) return anchors.status();
  return ScoredWithAnchors{std::move(*rows), std::move(*anchors)};
}

}  // namespace qkvshare
