#include "runtime/sender.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/file.h"
#include "base/stopwatch.h"
#include "card/format.h"
#include "policy/allocator.h"
#include "policy/key_metrics.h"
#include "qkvshare/version.h"
#include "runtime/card_rows.h"
#include "runtime/pack_rows.h"

namespace qkvshare {
namespace {

CardContent ContentOf(const RowsToPack& rows, const PackOptions& options) {
  CardContent content;
  const CardContext& context = rows.context;
  content.token_ids.assign(rows.tokens.begin(), rows.tokens.end());
  content.positions.assign(rows.positions.begin(), rows.positions.end());
  content.identity = context.identity();
  content.hop = options.hop;
  if (!rows.before.empty()) {
    const CardPart& parent = rows.before.back();
    content.parent = parent.card->content_id();
    content.first_token = parent.end();
    for (const CardPart& part : rows.before) content.hop = std::max(content.hop, part.card->hop() + 1);
  }
  content.exact_tokens = static_cast<uint32_t>(SinksOf(content.first_token, content.token_ids.size()));
  content.windows = context.facts().windows();
  content.protected_tokens = static_cast<uint32_t>(std::min(options.protected_tokens, content.token_ids.size()));
  CardInfo& info = content.info;
  info.model_name = context.model().name();
  info.architecture = context.model().architecture();
  info.sender = options.sender;
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  info.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  info.writer = fmt::format("qkvshare {}", kVersionText);
  const std::string key_type = CacheTypeName(context.facts().key_type);
  const std::string value_type = CacheTypeName(context.facts().value_type);
  info.cache_type = key_type == value_type ? key_type : key_type + "/" + value_type;
  info.segments = options.segments;
  if (info.segments.empty()) {
    info.segments.push_back({"prompt", options.sender, "", 0, static_cast<uint32_t>(content.token_ids.size())});
  }
  return content;
}

std::vector<Level> Ladder(const PackOptions& options) {
  return options.levels.empty() ? std::vector<Level>(kLevels.begin(), kLevels.end()) : options.levels;
}

double LevelBits(Level level) { return (level.key_bits + level.value_bits) / 2.0; }

// Bytes of codes and scales that the plan may take. content: all but the plan, since what it takes is left to the plan.
Result<size_t> Budget(const KvView& kv, const CardContent& content, const PackOptions& options,
                      const AllocationLimits& limits) {
  const std::vector<LayerShape> shapes = ShapesOf(kv);
  if (options.max_bytes == 0) return BudgetForBits(options.code_bits, kv.tokens, limits.fixed, shapes);
  const size_t overhead = CardOverheadBytes(kv, content);
  const size_t exact = limits.fixed.count(kv.tokens);
  const Level narrowest = Ladder(options).front();
  const size_t least = overhead + exact * TokenBytes(shapes, kExactLevel) +
                       (kv.tokens - exact) * TokenBytes(shapes, narrowest, limits.layers);
  if (options.max_bytes < least) {
    return Status(
        StatusCode::kOutOfRange,
        fmt::format("a card of {} tokens needs up to {} bytes at {}, its narrowest level, but {} are available",
                    kv.tokens, least, LevelName(narrowest), options.max_bytes));
  }
  return options.max_bytes - overhead;
}

// The card whose profile and widths of layers these tokens get, so that the codes of a chain are all of one kind: the
// one that they continue. Null where they start a context, or after so few tokens that these do not tell what keys are
// like.
const Card* ProfiledParent(const RowsToPack& rows) {
  if (rows.before.empty()) return nullptr;
  const Card& parent = *rows.before.back().card;
  const ProfileKind kind = parent.profile().kind;
  const bool few = kind == ProfileKind::kMeasured && parent.tokens() < parent.exact_tokens() + kProfileTokens;
  return kind == ProfileKind::kNone || few ? nullptr : &parent;
}

// parent: as ProfiledParent.
std::vector<LayerAdjustment> LayersOf(const PackOptions& options, const Card* parent) {
  if (!options.layers.empty() || (parent == nullptr && options.profile == nullptr)) return options.layers;
  const std::vector<LayerAdjustment>& layers = parent != nullptr ? parent->plan().layers : options.profile->layers;
  const bool adjusts =
      std::any_of(layers.begin(), layers.end(), [](LayerAdjustment a) { return a != LayerAdjustment(); });
  return adjusts ? layers : std::vector<LayerAdjustment>();
}

// Means and scales to pack with. Says in the content where they are from.
Result<KeyProfiles> ProfilesOf(const RowsToPack& rows, const PackOptions& options, CardContent* content) {
  const CardContext& context = rows.context;
  const KvView& kv = rows.kv;
  if (options.profile != nullptr) {
    QKV_RETURN_IF_ERROR(CheckProfileFits(*options.profile, context.identity(), ShapesOf(kv)));
  }
  if (const Card* parent = ProfiledParent(rows); parent != nullptr) {
    KeyProfiles profiles = parent->key_profiles();
    if (options.profile != nullptr && options.profile->keys != profiles) {
      return Status(StatusCode::kInvalidArgument,
                    "the profile is another one than that of the card that these tokens continue, with which they are "
                    "packed: leave it out");
    }
    content->profile.kind = ProfileKind::kInherited;
    return profiles;
  }
  if (options.profile == nullptr) return MeasureKeyProfiles(kv, content->exact_tokens, context.threads());
  content->profile = {ProfileKind::kStatic, options.profile->id};
  return options.profile->keys;
}

// Whether keys may get less than 8 bits, which alone are rounded in a metric.
bool MayNarrowKeys(const PackOptions& options, const std::vector<LayerAdjustment>& layers) {
  return options.policy != Policy::kUniform || options.max_bytes > 0 || options.code_bits < 8 ||
         !options.levels.empty() || !layers.empty();
}

// In which keys are rounded; none where they are rounded to the nearest level.
Result<KeyMetrics> MetricsOf(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                             const PackOptions& options, const PlanRequest& request) {
  if (options.rounding == KeyRounding::kNearest) return KeyMetrics();
  if (options.rounding == KeyRounding::kQueries && window.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "rounding by queries needs the queries of a prefill, which were not kept; use rounding nearest");
  }
  if (!MayNarrowKeys(options, request.limits.layers)) return KeyMetrics();
  return MeasureKeyMetrics(kv, profiles, window, request.threads);
}

PlanRequest RequestOf(const PackOptions& options, int threads) {
  PlanRequest request;
  request.policy = options.policy;
  request.control_of = options.control_of;
  request.seed = options.policy_seed;
  request.alpha = options.alpha;
  request.features = options.features;
  request.controller = options.controller;
  request.limits.fixed.last = options.protected_tokens;
  request.limits.levels = options.levels;
  request.limits.layers = LayersOf(options, nullptr);
  request.threads = threads;
  return request;
}

// All but the budget.
Result<PlanRequest> RequestFor(const RowsToPack& rows, const CardContent& content, const PackOptions& options) {
  PlanRequest request = RequestOf(options, rows.context.threads());
  request.limits.fixed.first = content.exact_tokens;
  request.limits.layers = LayersOf(options, ProfiledParent(rows));
  const size_t layers = request.limits.layers.size(), there = rows.kv.layers.size();
  if (layers == 0 || layers == there) return request;
  return Status(StatusCode::kInvalidArgument, fmt::format("widths of {} layers, but the model has {}", layers, there));
}

Transferability TransferabilityOf(const CardContent& content, const PackOptions& options) {
  Transferability transfer;
  for (const Segment& segment : content.info.segments) {
    SegmentPrior& prior = transfer.segments.emplace_back(SegmentPrior{segment.first_token, segment.tokens});
    for (const SegmentReader& reader : segment.readers) prior.distances.push_back(reader.distance);
    prior.unread = options.all_readers && segment.readers.empty();
  }
  for (const Anchor& anchor : options.anchors) {
    if (anchor.token >= content.first_token)
      transfer.anchors.push_back({anchor.token - content.first_token, anchor.weight});
  }
  transfer.probe = options.probe;
  if (options.probe_rows != nullptr) transfer.probe_rows = options.probe_rows->view();
  return transfer;
}

// Before there are tokens. Where scales count, the range is a little narrower: ChoiceOf.
Status NoChoice(const PackOptions& options) {
  const std::vector<Level> ladder = Ladder(options);
  if (ladder.size() == 1) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} is the only level, so policy {} changes nothing; give more levels, or use uniform",
                        LevelName(ladder.front()), PolicyName(options.policy))};
  }
  return {
      StatusCode::kInvalidArgument,
      fmt::format("at this size every token gets the same bits, so policy {} changes nothing; give more than {} and "
                  "less than {} bits, or use uniform",
                  PolicyName(options.policy), LevelBits(ladder.front()), LevelBits(ladder.back()))};
}

// The sizes at which a policy has a choice, in the words in which the size was given.
std::string ChoiceOf(const KvView& kv, const PackOptions& options, const AllocationLimits& limits) {
  const std::vector<LayerShape> shapes = ShapesOf(kv);
  const ChoiceRange range = BudgetsWithChoice(kv.tokens, shapes, limits);
  if (range.least >= range.enough) return "";
  if (options.max_bytes > 0) {
    const size_t overhead = options.max_bytes - limits.budget_bytes;
    return fmt::format("give {} to {} bytes, or ", overhead + range.least, overhead + range.enough - 1);
  }
  const auto thousandths = [&](size_t budget) { return BitsForBudget(budget, kv.tokens, limits.fixed, shapes) * 1000; };
  // Within what CheckPackOptions takes, whatever the layers are adjusted by.
  const std::vector<Level> ladder = Ladder(options);
  const double least = std::max(std::ceil(thousandths(range.least) + 1e-6), LevelBits(ladder.front()) * 1000 + 1);
  const double limit = std::min(std::floor(thousandths(range.enough)), LevelBits(ladder.back()) * 1000);
  return fmt::format("give at least {} and less than {} bits, or ", least / 1000, limit / 1000);
}

// A policy's plan must be one that it had a choice in: not all tokens at the narrowest level or all at the widest.
Status CheckChoice(const BitPlan& plan, const KvView& kv, const PackOptions& options, const AllocationLimits& limits) {
  const size_t tokens = plan.tokens();
  const FixedTokens fixed = limits.fixed;
  if (fixed.count(tokens) + 1 >= tokens) {
    return {StatusCode::kInvalidArgument,
            fmt::format("of {} tokens, {} stay exact whatever the policy, so policy {} changes nothing; use uniform",
                        tokens, fixed.count(tokens), PolicyName(options.policy))};
  }
  const std::vector<Level> ladder = Ladder(options);
  const Level level = plan.level(fixed.first);
  if (level != ladder.front() && level != ladder.back()) return {};
  for (size_t t = fixed.first; !fixed.contains(t, tokens); ++t) {
    if (plan.level(t) != level) return {};
  }
  return {StatusCode::kInvalidArgument,
          fmt::format("at this size every token gets the same bits, so policy {} changes nothing; {}use uniform",
                      PolicyName(options.policy), ChoiceOf(kv, options, limits))};
}

constexpr std::array<const char*, 3> kRoundingNames = {"auto", "queries", "nearest"};

}  // namespace

const char* KeyRoundingName(KeyRounding rounding) { return kRoundingNames[static_cast<size_t>(rounding)]; }

Result<KeyRounding> KeyRoundingFromName(const std::string& name) {
  const auto found = std::find(kRoundingNames.begin(), kRoundingNames.end(), name);
  if (found != kRoundingNames.end()) return static_cast<KeyRounding>(found - kRoundingNames.begin());
  return Status(StatusCode::kInvalidArgument,
                fmt::format("unknown rounding '{}'; choose auto, queries or nearest", name));
}

PredictionMeter::PredictionMeter(const Model& model, std::vector<int32_t> tokens)
    : tokens_(std::move(tokens)), vocab_(static_cast<size_t>(model.vocab_size())), predictions_(tokens_.size()) {}

void PredictionMeter::Add(size_t token, const float* logits) {
  Stopwatch watch;
  const bool last = token + 1 == tokens_.size();
  const RowPrediction row = PredictionOf({logits, vocab_}, last ? -1 : tokens_[token + 1], &scratch_);
  predictions_[token].next_entropy = row.entropy;
  if (!last) predictions_[token + 1].log_probability = row.next_log_probability;
  us_ += watch.LapUs();
}

void KeepForPacking(const Session& session, PrefillOptions* options) {
  if (!session.flash_attention()) return;
  options->window = kWindowTokens;
  options->window_stride = kWindowStride;
}

Status CheckPackOptions(const PackOptions& options) {
  QKV_RETURN_IF_ERROR(CheckPlanRequest(RequestOf(options, 1)));
  if (options.max_bytes > 0) return {};
  const bool in_range = options.code_bits >= kLevels.front().key_bits && options.code_bits <= 16;  // no NaN
  if (!in_range) return {StatusCode::kInvalidArgument, fmt::format("{} bits: choose from 2 to 16", options.code_bits)};
  const std::vector<Level> ladder = Ladder(options);
  if (options.code_bits > LevelBits(ladder.back())) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} bits are more than {} takes, the widest of the levels to choose from", options.code_bits,
                        LevelName(ladder.back()))};
  }
  const bool has_choice = options.code_bits > LevelBits(ladder.front()) && options.code_bits < LevelBits(ladder.back());
  return options.policy == Policy::kUniform || has_choice ? Status() : NoChoice(options);
}

Status CheckReplaceableCard(const std::string& path) {
  QKV_RETURN_IF_ERROR(CheckReplaceable(path));
  return CheckKind(path, {card_format::kMagic.data(), card_format::kMagic.size()}, "a card");
}

Result<PackedCard> PackTokens(const PackSource& source, const PackOptions& options, PackTimes* times) {
  const CardContext& context = source.context;
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  RowsToPack rows{context, source.tokens, {}, {}, PartsOf(context.cards(source.sequence)), source.window};
  QKV_RETURN_IF_ERROR(ContextOf(rows.before).status());  // before rows are taken
  Stopwatch watch;
  const size_t first = context.end(source.sequence);
  QKV_ASSIGN_OR_RETURN(const KvState state, context.TakeKv(source.sequence, first, first + source.tokens.size()));
  const int64_t take_us = watch.LapUs();
  rows.kv = state.view();
  rows.positions = state.positions();
  Result<PackedCard> card = PackRows(rows, options, times);
  times->take_us = take_us;
  return card;
}

Result<PackedCard> PackRows(const RowsToPack& rows, const PackOptions& options, PackTimes* times) {
  static const AttentionWindow kNoWindow;
  const CardContext& context = rows.context;
  const KvView& kv = rows.kv;
  const AttentionWindow& window = rows.window != nullptr ? *rows.window : kNoWindow;
  const bool uniform = options.policy == Policy::kUniform;
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  *times = {};
  Stopwatch watch;
  CardContent content = ContentOf(rows, options);
  QKV_ASSIGN_OR_RETURN(content.info.context, ContextOf(rows.before));
  QKV_ASSIGN_OR_RETURN(const KeyProfiles profiles, ProfilesOf(rows, options, &content));
  QKV_ASSIGN_OR_RETURN(PlanRequest request, RequestFor(rows, content, options));
  QKV_ASSIGN_OR_RETURN(const EarlierRows earlier, RowsOfCards(rows.before, context));
  const Transferability transfer = TransferabilityOf(content, options);
  QKV_ASSIGN_OR_RETURN(const KeyMetrics metrics, MetricsOf(kv, profiles, window, options, request));
  content.info.rounding = KeyRoundingName(metrics.empty() ? KeyRounding::kNearest : KeyRounding::kQueries);
  const AttentionWindow recent = RecentQueries(window, kCostTokens, kCostQueries);
  const PlanInput input{kv, profiles, recent, content.token_ids, options.predictions, transfer, &metrics, &earlier};
  times->plan_us = watch.LapUs();
  QKV_ASSIGN_OR_RETURN(PlanCosts measured, MeasurePlanCosts(input, request));
  (uniform && !window.empty() ? times->anchors_us : times->plan_us) += watch.LapUs();
  content.info.features = std::move(measured.features);
  content.anchors = std::move(measured.anchors);
  QKV_ASSIGN_OR_RETURN(request.limits.budget_bytes, Budget(kv, content, options, request.limits));
  QKV_ASSIGN_OR_RETURN(const BitPlan plan, MakePlan(measured, ShapesOf(kv), request));
  if (!uniform && !options.may_lack_choice) QKV_RETURN_IF_ERROR(CheckChoice(plan, kv, options, request.limits));
  times->allocate_us = watch.LapUs();
  times->plan_us += times->allocate_us;
  QKV_ASSIGN_OR_RETURN(PackedCard card, PackCard(kv, plan, profiles, content, context.threads(), metrics));
  times->quantize_us = watch.LapUs();
  return card;
}

Result<PackedCard> PackSession(const Session& session, const PackOptions& options, PackTimes* times, int sequence) {
  QKV_RETURN_IF_ERROR(session.CheckSequence(sequence));
  const std::span tokens(session.tokens(sequence));
  const PackSource source{session.card_context(), tokens.subspan(session.attached(sequence)), &session.window(sequence),
                          sequence};
  return PackTokens(source, options, times);
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

std::vector<Segment> SegmentsFrom(std::vector<Segment> segments, size_t first) {
  const auto start = static_cast<uint32_t>(first);
  std::erase_if(segments, [start](const Segment& segment) { return segment.first_token + segment.tokens <= start; });
  for (Segment& segment : segments) {
    const uint32_t end = segment.first_token + segment.tokens;
    segment.first_token = std::max(segment.first_token, start) - start;
    segment.tokens = end - start - segment.first_token;
  }
  return segments;
}

}  // namespace qkvshare
