#include "eval/hop_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/stopwatch.h"
#include "card/card.h"
#include "eval/hop_segments.h"
#include "eval/policy_seed.h"
#include "policy/attention_window.h"
#include "runtime/inject.h"
#include "runtime/probe_queries.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

constexpr uint32_t kRandomSeed = 0xFFFFFFFFu;

// One chain of a group, in its sequence.
struct Chain {
  const HopChain* chain = nullptr;
  size_t index = 0;  // of all chains
  int sequence = 0;
  std::vector<CardPart> cards;    // what it has so far, where hops are packed
  std::vector<std::string> said;  // answers so far, where they are handed on as text
  std::string open_turn;          // text of the assistant's turn that the next user's turn ends
  bool full = false;              // a turn did not fit
  std::vector<int32_t> prompt;    // of this hop
  std::vector<Segment> segments;
  AttentionWindow probe;  // of the next hop's prompt
  HopRecord record;       // of this hop

  std::span<const int32_t> last() const { return std::span(prompt).last(1); }
};

// A token may end within a character: what is not UTF-8 is replaced, as in a file.
std::string AsUtf8(const std::string& text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

class HopGroup {
 public:
  HopGroup(Session* session, const HopRequest& request)
      : session_(*session), model_(session->model()), request_(request) {}

  Result<std::vector<HopRecord>> Run(size_t first);

 private:
  Status RunHop(size_t hop, std::vector<Chain>* chains);
  Result<std::vector<int32_t>> PromptOf(size_t hop, const Chain& chain) const;
  size_t Taken(const Chain& chain) const;
  Status Begin(size_t hop, Chain* chain);
  Status Answer(size_t hop, std::span<Chain* const> going);
  Status Probe(size_t hop, std::span<Chain* const> going);
  Status End(size_t hop, Chain* chain);
  Result<std::shared_ptr<const Card>> Hand(size_t hop, const PackedCard& packed, Chain* chain) const;
  GenerateOptions OptionsOf(size_t hop, const Chain& chain) const;

  Session& session_;
  const Model& model_;
  const HopRequest& request_;
};

Result<std::vector<HopRecord>> HopGroup::Run(size_t first) {
  std::vector<Chain> chains(request_.GroupSize(first));
  for (int sequence = 0; sequence < session_.sequences(); ++sequence) {
    if (!session_.tokens(sequence).empty()) session_.Clear(sequence);
  }
  for (size_t i = 0; i < chains.size(); ++i) {
    chains[i].index = first + i;
    chains[i].chain = &request_.chains[first + i];
    chains[i].sequence = static_cast<int>(i);
  }
  std::vector<std::vector<HopRecord>> by_chain(chains.size());
  for (size_t hop = 0; hop < request_.hops; ++hop) {
    if (request_.on_hop) request_.on_hop(first, hop);
    QKV_RETURN_IF_ERROR(RunHop(hop, &chains));
    for (size_t i = 0; i < chains.size(); ++i) by_chain[i].push_back(std::move(chains[i].record));
  }
  std::vector<HopRecord> records;
  for (const std::vector<HopRecord>& of_chain : by_chain)
    records.insert(records.end(), of_chain.begin(), of_chain.end());
  return records;
}

Status HopGroup::RunHop(size_t hop, std::vector<Chain>* chains) {
  std::vector<Chain*> going;
  for (Chain& chain : *chains) {
    chain.record = {};
    chain.record.chain = chain.chain->id;
    chain.record.hop = hop;
    if (!chain.full) QKV_RETURN_IF_ERROR(Begin(hop, &chain));
    if (chain.full) {
      chain.record.stop = StopReasonName(StopReason::kContext);
    } else {
      going.push_back(&chain);
    }
  }
  if (going.empty()) return {};
  QKV_RETURN_IF_ERROR(Answer(hop, going));
  if (!Packs(request_.hand_over) || hop + 1 == request_.hops) return {};  // after the last one nobody takes a card
  if (request_.probe) QKV_RETURN_IF_ERROR(Probe(hop, going));
  for (Chain* chain : going) QKV_RETURN_IF_ERROR(End(hop, chain));
  return {};
}

// A turn is tokenized by itself: the tokens before it stay as they are. As text, everything is tokenized as one.
Result<std::vector<int32_t>> HopGroup::PromptOf(size_t hop, const Chain& chain) const {
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
size_t HopGroup::Taken(const Chain& chain) const {
  if (Packs(request_.hand_over)) return chain.cards.empty() ? 0 : chain.cards.back().end();
  return request_.hand_over == HandOver::kSequence ? session_.tokens(chain.sequence).size() : 0;
}

// Takes what the chain has, and reads this hop's prompt but for its last token.
Status HopGroup::Begin(size_t hop, Chain* chain) {
  HopRecord& record = chain->record;
  QKV_ASSIGN_OR_RETURN(chain->prompt, PromptOf(hop, *chain));
  if (chain->prompt.empty()) {
    return {StatusCode::kInvalidArgument, fmt::format("chain {}: the prompt of hop {} is empty", record.chain, hop)};
  }
  const size_t taken = Taken(*chain);
  record.taken_tokens = static_cast<uint32_t>(taken);
  chain->full = taken + chain->prompt.size() > request_.context;
  if (chain->full) return {};
  record.read_tokens = static_cast<uint32_t>(chain->prompt.size());
  chain->segments = SegmentsOfPrompt(hop, request_.hops, *chain->chain, chain->prompt, model_);
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

// The rest of all prompts, then all answers, in lock step.
Status HopGroup::Answer(size_t hop, std::span<Chain* const> going) {
  Stopwatch watch;
  std::vector<SequenceTokens> last;
  std::vector<SequenceOptions> wanted;
  for (const Chain* chain : going) last.push_back({chain->sequence, chain->last()});
  QKV_RETURN_IF_ERROR(session_.DecodeTogether(last));
  const int64_t last_us = watch.LapUs();
  for (const Chain* chain : going) wanted.push_back({chain->sequence, OptionsOf(hop, *chain)});
  QKV_ASSIGN_OR_RETURN(const std::vector<Generation> answers, GenerateMany(&session_, wanted));
  const int64_t generate_us = watch.LapUs();
  std::vector<SequenceTokens> rest;
  for (size_t i = 0; i < going.size(); ++i) {
    if (answers[i].stop == StopReason::kCancelled) return {StatusCode::kCancelled, "cancelled"};
    if (!answers[i].rest().empty()) rest.push_back({going[i]->sequence, answers[i].rest()});
  }
  if (!rest.empty()) QKV_RETURN_IF_ERROR(session_.DecodeTogether(rest));
  const int64_t rest_us = watch.LapUs();
  for (size_t i = 0; i < going.size(); ++i) {
    const Generation& answer = answers[i];
    HopRecord& record = going[i]->record;
    const bool cut = answer.stop == StopReason::kLength && answer.tokens.size() < request_.generate.predict;
    record.stop = StopReasonName(cut ? StopReason::kContext : answer.stop);
    record.tokens = answer.tokens;
    record.end_token = answer.end_token;
    record.text = answer.text;
    for (const auto& [name, us] : {std::pair{"last_token", last_us}, std::pair{"first_token", answer.first_token_us},
                                   std::pair{"generate", generate_us}, std::pair{"rest", rest_us}}) {
      record.stages.emplace_back(name, us);
    }
    if (request_.hand_over == HandOver::kText) going[i]->said.push_back(AsUtf8(answer.text));
    std::vector<int32_t> turn = going[i]->prompt;
    turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
    if (answer.end_token >= 0) turn.push_back(answer.end_token);
    going[i]->open_turn = model_.Detokenize(turn);
  }
  return {};
}

// What the next hop's prompt will look at. Queries that the session keeps and those of one prefill exclude each other:
// the former are put aside meanwhile.
Status HopGroup::Probe(size_t hop, std::span<Chain* const> going) {
  std::vector<AttentionWindow> kept;
  for (const Chain* chain : going) kept.push_back(session_.window(chain->sequence));
  QKV_RETURN_IF_ERROR(session_.KeepQueries(0, 1));
  for (Chain* chain : going) {
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

// Packs what this hop added, or all that there is, and leaves the sequence empty.
Status HopGroup::End(size_t hop, Chain* chain) {
  const bool whole = request_.hand_over == HandOver::kRepacked;
  PackOptions options = request_.PackOf(hop);
  options.sender = fmt::format("hop {}", hop);
  options.hop = static_cast<uint32_t>(hop);
  options.policy_seed = PolicySeedFor(options.policy_seed, std::array{chain->chain->id, std::to_string(hop)});
  options.probe = std::move(chain->probe);
  const size_t own = session_.tokens(chain->sequence).size() - session_.attached(chain->sequence);
  const size_t read = chain->record.read_tokens;
  if (!whole || hop == 0) {
    options.segments = chain->segments;
    if (own > read) {
      options.segments.push_back({"generated", options.sender, "", static_cast<uint32_t>(read),
                                  static_cast<uint32_t>(own - read), HopReaders(hop, request_.hops, /*for_all=*/true)});
    }
  }
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
Result<std::shared_ptr<const Card>> HopGroup::Hand(size_t hop, const PackedCard& packed, Chain* chain) const {
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

// An answer ends where the chain's context does: all that is sampled can be decoded.
GenerateOptions HopGroup::OptionsOf(size_t hop, const Chain& chain) const {
  GenerateOptions options = request_.generate;
  options.on_text = nullptr;
  options.predict = std::min<size_t>(options.predict, request_.context - session_.tokens(chain.sequence).size());
  options.sampling.seed += static_cast<uint32_t>(chain.index * request_.hops + hop);
  if (options.sampling.seed == kRandomSeed) options.sampling.seed = 0;
  return options;
}

}  // namespace

Result<std::vector<HopRecord>> RunHopGroup(size_t first, const HopRequest& request, Session* session) {
  return HopGroup(session, request).Run(first);
}

}  // namespace qkvshare
