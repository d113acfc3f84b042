#include "eval/hop_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/stopwatch.h"
#include "card/card.h"
#include "eval/hop_segments.h"
#include "eval/policy_seed.h"
#include "runtime/inject.h"
#include "runtime/probe_queries.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

// A token may end within a character: what is not UTF-8 is replaced, as in a file.
std::string AsUtf8(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace

// A turn is tokenized by itself: the tokens before it stay as they are. As text, everything is tokenized as one.
Result<std::vector<int32_t>> HopSteps::PromptOf(size_t hop, const ChainState& chain) const {
  const HopChain& input = *chain.chain;
  if (hop > 0 && request_.hand_over != HandOver::kText) {
    QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(model_, input.turns[hop - 1], chain.open_turn));
    return model_.Tokenize(turn, /*add_special=*/false);
  }
  if (input.messages.empty()) return input.tokens;
  std::vector<ChatMessage> messages = input.messages;
  for (size_t i = 0; i < hop; ++i) {
    messages.push_back({"assistant", chain.said[i]});
    messages.push_back({"user", input.turns[i]});
  }
  QKV_ASSIGN_OR_RETURN(const std::string text, model_.ApplyChatTemplate(messages, /*add_generation_prompt=*/true));
  return model_.Tokenize(text, /*add_special=*/true);
}

// Tokens that are there before a hop reads its prompt.
size_t HopSteps::Taken(const ChainState& chain) const {
  if (Packs(request_.hand_over)) return chain.cards.empty() ? 0 : chain.cards.back().end();
  return request_.hand_over == HandOver::kSequence ? session_.tokens(chain.sequence).size() : 0;
}

Status HopSteps::Begin(size_t hop, ChainState* chain) {
  HopRecord& record = chain->record;
  record = {};
  record.chain = chain->chain->id;
  record.hop = hop;
  if (chain->full) return {};
  QKV_ASSIGN_OR_RETURN(chain->prompt, PromptOf(hop, *chain));
  if (chain->prompt.empty()) {
    return {StatusCode::kInvalidArgument, fmt::format("chain {}: the prompt of hop {} is empty", record.chain, hop)};
  }
  const size_t taken = Taken(*chain);
  record.taken_tokens = static_cast<uint32_t>(taken);
  chain->full = taken + chain->prompt.size() > request_.context;
  if (chain->full) return {};
  record.read_tokens = static_cast<uint32_t>(chain->prompt.size());
  QKV_ASSIGN_OR_RETURN(chain->segments, SegmentsOfPrompt(hop, request_.hops, *chain->chain, chain->prompt, model_));
  Stopwatch watch;
  if (request_.hand_over == HandOver::kText && hop > 0) session_.Clear(chain->sequence);
  if (!chain->cards.empty()) {
    const bool attach = request_.hand_over == HandOver::kCards;
    const InjectMode mode = attach ? InjectMode::kFused : InjectMode::kRestore;
    QKV_RETURN_IF_ERROR(InjectCards(chain->cards, mode, &session_, chain->sequence).status());
    record.stages.emplace_back(attach ? "attach" : "restore", watch.LapUs());
  }
  const auto before_last = std::span(chain->prompt).first(chain->prompt.size() - 1);
  if (!before_last.empty()) QKV_RETURN_IF_ERROR(session_.Prefill(before_last, {}, chain->sequence));
  record.stages.emplace_back("prefill", watch.LapUs());
  return {};
}

void HopSteps::EndAnswer(ChainState* chain) const {
  const HopRecord& record = chain->record;
  if (request_.hand_over == HandOver::kText) chain->said.push_back(AsUtf8(record.text));
  std::vector<int32_t> turn = chain->prompt;
  turn.insert(turn.end(), record.tokens.begin(), record.tokens.end());
  if (record.end_token >= 0) turn.push_back(record.end_token);
  chain->open_turn = model_.Detokenize(turn);
}

// Queries that the session keeps and those of one prefill exclude each other: the former are put aside meanwhile.
Status HopSteps::Probe(size_t hop, std::span<ChainState* const> going) {
  std::vector<AttentionWindow> kept;
  for (const ChainState* chain : going) kept.push_back(session_.window(chain->sequence));
  QKV_RETURN_IF_ERROR(session_.KeepQueries(0, 1));
  for (ChainState* chain : going) {
    chain->probe = {};
    QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> next, PromptOf(hop + 1, *chain));
    const size_t tokens = session_.tokens(chain->sequence).size();
    if (next.empty() || tokens + next.size() > request_.context) continue;  // the next hop will not read it either
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(chain->probe, ProbeWindow(&session_, {&next, 1}, chain->sequence));
    chain->record.stages.emplace_back("probe", watch.LapUs());
  }
  QKV_RETURN_IF_ERROR(session_.KeepQueries(kWindowTokens, kWindowStride));
  for (size_t i = 0; i < going.size(); ++i) session_.SetWindow(std::move(kept[i]), going[i]->sequence);
  return {};
}

PackOptions HopPackOptions(const HopRequest& request, size_t hop, const std::string& chain) {
  PackOptions options = request.PackOf(hop);
  options.sender = HopOwner(hop);
  options.hop = static_cast<uint32_t>(hop);
  options.policy_seed = PolicySeedFor(options.policy_seed, std::array{chain, std::to_string(hop)});
  return options;
}

Status HopSteps::End(size_t hop, ChainState* chain) {
  const bool whole = request_.hand_over == HandOver::kRepacked;
  PackOptions options = HopPackOptions(request_, hop, chain->chain->id);
  options.probe = std::move(chain->probe);
  const size_t own = session_.tokens(chain->sequence).size() - session_.attached(chain->sequence);
  const size_t read = chain->record.read_tokens;
  if (!whole || hop == 0) {
    options.segments = chain->segments;
    if (own > read) {
      options.segments.push_back(SegmentOfAnswer(hop, request_.hops, *chain->chain, static_cast<uint32_t>(read),
                                                 static_cast<uint32_t>(own - read)));
    }
  }
  options.all_readers = !options.segments.empty();
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session_, options, &times, chain->sequence));
  chain->record.stages.emplace_back("take", times.take_us);
  chain->record.stages.emplace_back("plan", times.plan_us);
  chain->record.stages.emplace_back("quantize", times.quantize_us);
  QKV_ASSIGN_OR_RETURN(std::shared_ptr<const Card> card, Hand(hop, packed, chain));
  chain->record.card_tokens = card->tokens();
  chain->record.card_bytes = card->file_bytes();
  chain->record.code_bits = card->average_code_bits();
  chain->record.total_bits = card->average_total_bits();
  session_.Clear(chain->sequence);
  if (whole) chain->cards.clear();
  return AppendCard(std::move(card), &chain->cards);
}

// The card as the next hop gets it: by pointer, or from the file where it is kept.
Result<std::shared_ptr<const Card>> HopSteps::Hand(size_t hop, const PackedCard& packed, ChainState* chain) const {
  Stopwatch watch;
  if (request_.card_folder.empty()) {
    QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
    chain->record.stages.emplace_back("open", watch.LapUs());
    return std::make_shared<const Card>(std::move(card));
  }
  const std::string path = request_.CardPath(chain->chain->id, hop);
  QKV_RETURN_IF_ERROR(packed.Write(path));
  chain->record.stages.emplace_back("write", watch.LapUs());
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
  chain->record.stages.emplace_back("open", watch.LapUs());
  return std::make_shared<const Card>(std::move(card));
}

}  // namespace qkvshare
