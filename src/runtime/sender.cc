#include "runtime/sender.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/stopwatch.h"
#include "policy/allocator.h"
#include "qkvshare/version.h"

namespace qkvshare {
namespace {

CardContent ContentOf(const Session& session, const KvState& state, const PackOptions& options, int sequence) {
  CardContent content;
  content.token_ids = session.tokens(sequence);
  content.positions = state.positions();
  content.identity = session.identity();
  content.hop = options.hop;
  content.windows = session.windows();
  CardInfo& info = content.info;
  info.model_name = session.model().name();
  info.architecture = session.model().architecture();
  info.sender = options.sender;
  info.policy = PolicyName(options.policy);
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  info.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  info.writer = fmt::format("qkvshare {}", kVersionText);
  const std::string key_type = CacheTypeName(session.cache_type_k());
  const std::string value_type = CacheTypeName(session.cache_type_v());
  info.cache_type = key_type == value_type ? key_type : key_type + "/" + value_type;
  info.segments = options.segments;
  if (info.segments.empty()) {
    info.segments.push_back({"prompt", options.sender, "", 0, static_cast<uint32_t>(content.token_ids.size())});
  }
  return content;
}

// Bytes of codes and scales that the plan may take.
Result<size_t> Budget(const KvView& kv, const CardContent& content, const PackOptions& options) {
  if (options.max_bytes == 0) {
    return BudgetForBits(options.code_bits, kv.tokens, kSinkTokens, ShapesOf(kv));
  }
  const size_t overhead = CardOverheadBytes(kv, content);
  const size_t least = overhead + BudgetForBits(kLevels.front().key_bits, kv.tokens, kSinkTokens, ShapesOf(kv));
  if (options.max_bytes < least) {
    return Status(StatusCode::kOutOfRange,
                  fmt::format("a card of {} tokens needs up to {} bytes at 4 bits, but {} are available", kv.tokens,
                              least, options.max_bytes));
  }
  return options.max_bytes - overhead;
}

// Whether all tokens but the exact first ones have the narrowest level, or all are exact: then no policy had a choice.
bool LeavesNoChoice(const BitPlan& plan) {
  if (plan.tokens() <= kSinkTokens) return false;
  const Level last = plan.level(plan.tokens() - 1);
  if (last != kLevels.front() && last != kExactLevel) return false;
  const auto first = plan.level_of_token.begin() + kSinkTokens;
  return std::all_of(first, plan.level_of_token.end(), [&](uint8_t level) { return level == *first; });
}

Status NoChoice(Policy policy) {
  return {StatusCode::kInvalidArgument,
          fmt::format("at this size every token gets the same bits, so policy {} changes nothing; give more than 4 and "
                      "less than 16 bits, or use uniform",
                      PolicyName(policy))};
}

}  // namespace

Status CheckPackOptions(const PackOptions& options) {
  if (options.max_bytes > 0) return {};
  const bool in_range = options.code_bits >= kLevels.front().key_bits && options.code_bits <= 16;  // no NaN
  if (!in_range) return {StatusCode::kInvalidArgument, fmt::format("{} bits: choose from 4 to 16", options.code_bits)};
  const bool has_choice = options.code_bits > kLevels.front().key_bits && options.code_bits < 16;
  return options.policy == Policy::kUniform || has_choice ? Status() : NoChoice(options.policy);
}

Result<PackedCard> PackSession(const Session& session, const PackOptions& options, PackTimes* times, int sequence) {
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const KvState state, session.TakeKv(sequence));
  times->take_us = watch.LapUs();
  const KvView kv = state.view();
  const CardContent content = ContentOf(session, state, options, sequence);
  const KeyProfiles profiles = MeasureKeyProfiles(kv, kSinkTokens, session.threads());
  PlanRequest request;
  request.policy = options.policy;
  request.threads = session.threads();
  QKV_ASSIGN_OR_RETURN(request.budget_bytes, Budget(kv, content, options));
  QKV_ASSIGN_OR_RETURN(const BitPlan plan, MakePlan(kv, profiles, session.window(sequence), request));
  if (options.policy != Policy::kUniform && LeavesNoChoice(plan)) return NoChoice(options.policy);
  times->plan_us = watch.LapUs();
  QKV_ASSIGN_OR_RETURN(PackedCard card, PackCard(kv, plan, profiles, content, session.threads()));
  times->quantize_us = watch.LapUs();
  return card;
}

std::vector<Segment> SegmentsOf(const Model& model, const std::vector<ChatMessage>& messages,
                                const std::vector<int32_t>& tokens, const std::string& owner) {
  std::vector<Segment> segments;
  uint32_t done = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    size_t end = tokens.size();
    if (i + 1 < messages.size()) {
      const auto count = static_cast<ptrdiff_t>(i + 1);
      const Result<std::string> text = model.ApplyChatTemplate({messages.begin(), messages.begin() + count}, false);
      if (!text) return {};
      const std::vector<int32_t> head = model.Tokenize(*text, /*add_special=*/true);
      end = static_cast<size_t>(std::mismatch(head.begin(), head.end(), tokens.begin(), tokens.end()).first -
                                head.begin());
    }
    if (end <= done) return {};
    segments.push_back({messages[i].role, owner, "", done, static_cast<uint32_t>(end) - done});
    done = static_cast<uint32_t>(end);
  }
  return segments;
}

}  // namespace qkvshare
