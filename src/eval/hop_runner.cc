#include "eval/hop_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/stopwatch.h"
#include "card/card.h"
#include "eval/hop_header.h"
#include "eval/result_file.h"
#include "runtime/inject.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

constexpr uint32_t kRandomSeed = 0xFFFFFFFFu;

// One chain of a group, in its sequence.
struct Chain {
  const HopChain* chain = nullptr;
  size_t index = 0;  // of all chains
  int sequence = 0;
  std::vector<CardPart> cards;  // what it has so far, but for the f16 arm
  std::string open_turn;        // text of the assistant's turn that the next user's turn ends
  bool full = false;            // a turn did not fit
  std::vector<int32_t> prompt;  // of this hop
  std::vector<Segment> segments;
  HopRecord record;  // of this hop

  std::span<const int32_t> last() const { return std::span(prompt).last(1); }
};

class HopRunner {
 public:
  HopRunner(Session* session, const HopRequest& request)
      : session_(*session), model_(session->model()), request_(request) {}

  Result<std::vector<HopRecord>> Run() {
    QKV_RETURN_IF_ERROR(Check());
    std::vector<HopRecord> records;
    std::optional<ResultFile> file;
    if (!request_.results.empty()) {
      QKV_ASSIGN_OR_RETURN(const ResultPlan plan, PlanOfResults());
      QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, plan));
      file.emplace(std::move(opened));
      for (const nlohmann::ordered_json& line : file->lines()) {
        QKV_ASSIGN_OR_RETURN(records.emplace_back(), ParseHop(line));
      }
    }
    if (!request_.card_folder.empty()) {
      for (const HopRecord& record : records) QKV_RETURN_IF_ERROR(CheckKept(record));
      QKV_RETURN_IF_ERROR(MakeFolders(request_.card_folder));
    }
    const bool looks = std::any_of(request_.packs.begin(), request_.packs.end(),
                                   [](const PackOptions& pack) { return pack.policy != Policy::kUniform; });
    QKV_RETURN_IF_ERROR(session_.KeepQueries(request_.cards && looks ? kWindowTokens : 0, kWindowStride));
    for (size_t done = records.size() / request_.hops; done < request_.chains.size();) {
      QKV_ASSIGN_OR_RETURN(const std::vector<HopRecord> group, RunGroup(done));
      if (file) QKV_RETURN_IF_ERROR(Write(group, &*file));
      records.insert(records.end(), group.begin(), group.end());
      done += GroupSize(done);
    }
    return records;
  }

 private:
  size_t GroupSize(size_t first) const {
    return std::min(static_cast<size_t>(request_.parallel), request_.chains.size() - first);
  }
  Result<ResultPlan> PlanOfResults() const {
    ResultPlan plan;
    QKV_ASSIGN_OR_RETURN(plan.header, HopHeader(session_, request_));
    for (const HopChain& chain : request_.chains) {
      for (size_t hop = 0; hop < request_.hops; ++hop) plan.keys.push_back({{"chain", chain.id}, {"hop", hop}});
    }
    for (size_t first = 0; first < request_.chains.size(); first += GroupSize(first))
      plan.group_lines.push_back(GroupSize(first) * request_.hops);
    plan.check = [](const nlohmann::ordered_json& line) { return ParseHop(line).status(); };
    return plan;
  }
  static Status Write(const std::vector<HopRecord>& group, ResultFile* file) {
    std::vector<nlohmann::ordered_json> lines;
    for (const HopRecord& record : group) lines.push_back(HopJson(record));
    return file->Append(lines);
  }

  static Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }
  Status Check() const;
  Status CheckChain(const HopChain& chain) const;
  Status CheckKept(const HopRecord& record) const;

  Result<std::vector<HopRecord>> RunGroup(size_t first);
  Status RunHop(size_t hop, std::vector<Chain>* chains);
  Result<std::vector<int32_t>> PromptOf(size_t hop, const Chain& chain) const;
  Status Begin(size_t hop, Chain* chain);
  Status Answer(size_t hop, std::span<Chain* const> going);
  Status End(size_t hop, Chain* chain);
  std::string CardPath(const std::string& chain, size_t hop) const {
    return fmt::format("{}/{}.{}.card", request_.card_folder, chain, hop);
  }
  Result<std::shared_ptr<const Card>> Hand(size_t hop, const PackedCard& packed, Chain* chain) const;
  GenerateOptions OptionsOf(size_t hop, const Chain& chain) const;
  std::vector<Segment> SegmentsOfHop(size_t hop, const Chain& chain) const;

  Session& session_;
  const Model& model_;
  const HopRequest& request_;
};

Status HopRunner::CheckChain(const HopChain& chain) const {
  const auto fits_a_file = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  if (chain.id.empty() || chain.id.size() > 200 || !std::all_of(chain.id.begin(), chain.id.end(), fits_a_file)) {
    return Invalid(fmt::format("chain id '{}': give 1 to 200 letters, digits, '-', '_' and '.'", chain.id));
  }
  if (chain.messages.empty() == chain.tokens.empty())
    return Invalid(fmt::format("chain {}: give messages or tokens for its first prompt", chain.id));
  if (chain.turns.size() + 1 >= request_.hops) return {};
  return Invalid(fmt::format("chain {} has {} turns after its first prompt, but {} hops need {}", chain.id,
                             chain.turns.size(), request_.hops, request_.hops - 1));
}

Status HopRunner::Check() const {
  if (request_.hops < 1) return Invalid("give at least one hop");
  if (request_.parallel < 1 || request_.parallel > session_.sequences()) {
    return Invalid(
        fmt::format("{} chains at once, but the session has {} sequences", request_.parallel, session_.sequences()));
  }
  if (size_t{request_.context} * static_cast<size_t>(request_.parallel) > session_.context()) {
    return Invalid(fmt::format("{} chains of {} tokens do not fit a context of {}", request_.parallel, request_.context,
                               session_.context()));
  }
  if (request_.cards && !session_.fused().ok()) return session_.fused();
  const SamplingOptions& sampling = request_.generate.sampling;
  if (sampling.temp > 0 && sampling.seed == kRandomSeed) return Invalid("a random seed: give a number as the seed");
  if (request_.cards && request_.packs.size() != 1 && request_.packs.size() + 1 != request_.hops) {
    return Invalid(fmt::format("{} pack options: give one, or one for each of {} hops but the last",
                               request_.packs.size(), request_.hops));
  }
  for (const PackOptions& pack : request_.packs) {
    QKV_RETURN_IF_ERROR(CheckPackOptions(pack));
    if (!pack.predictions.empty() || !pack.anchors.empty() || !pack.probe.empty())
      return Invalid("pack options of all chains cannot have predictions, anchors or probe queries");
  }
  std::set<std::string> ids;
  for (const HopChain& chain : request_.chains) {
    QKV_RETURN_IF_ERROR(CheckChain(chain));
    if (!ids.insert(chain.id).second) return Invalid(fmt::format("two chains have the id {}", chain.id));
  }
  return {};
}

// Results do not follow from the folder, but a run that goes on with one must not lack the cards of what is done: they
// may have been dropped then, kept elsewhere, or be another run's.
Status HopRunner::CheckKept(const HopRecord& record) const {
  if (record.card_bytes == 0) return {};
  std::vector<int32_t> sampled = record.tokens;
  if (record.end_token >= 0) sampled.push_back(record.end_token);
  const std::string path = CardPath(record.chain, record.hop);
  const Result<Card> card = Card::Open(path);
  if (card && card->file_bytes() == record.card_bytes && card->first_token() == record.taken_tokens &&
      std::ranges::equal(card->token_ids().subspan(std::min<size_t>(record.read_tokens, card->tokens())), sampled)) {
    return {};
  }
  return Invalid(
      fmt::format("hop {} of chain {} is done by {}, but its card is not in the folder of cards ({}); go on "
                  "with the folder that has it or with none, or choose another file for the results",
                  record.hop, record.chain, request_.results, card ? path + " is another" : card.status().message()));
}

Result<std::vector<HopRecord>> HopRunner::RunGroup(size_t first) {
  std::vector<Chain> chains(GroupSize(first));
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

Status HopRunner::RunHop(size_t hop, std::vector<Chain>* chains) {
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
  if (!request_.cards || hop + 1 == request_.hops) return {};  // after the last one nobody takes a card
  for (Chain* chain : going) QKV_RETURN_IF_ERROR(End(hop, chain));
  return {};
}

// A turn is tokenized by itself: the tokens before it stay as they are.
Result<std::vector<int32_t>> HopRunner::PromptOf(size_t hop, const Chain& chain) const {
  const HopChain& input = *chain.chain;
  if (hop > 0) {
    QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(model_, input.turns[hop - 1], chain.open_turn));
    return model_.Tokenize(turn, /*add_special=*/false);
  }
  if (input.messages.empty()) return input.tokens;
  QKV_ASSIGN_OR_RETURN(const std::string text,
                       model_.ApplyChatTemplate(input.messages, /*add_generation_prompt=*/true));
  return model_.Tokenize(text, /*add_special=*/true);
}

// Takes what the chain has, and reads this hop's prompt but for its last token.
Status HopRunner::Begin(size_t hop, Chain* chain) {
  HopRecord& record = chain->record;
  QKV_ASSIGN_OR_RETURN(chain->prompt, PromptOf(hop, *chain));
  if (chain->prompt.empty()) return Invalid(fmt::format("chain {}: the prompt of hop {} is empty", record.chain, hop));
  const size_t taken =
      request_.cards ? (chain->cards.empty() ? 0 : chain->cards.back().end()) : session_.tokens(chain->sequence).size();
  record.taken_tokens = static_cast<uint32_t>(taken);
  chain->full = taken + chain->prompt.size() > request_.context;
  if (chain->full) return {};
  record.read_tokens = static_cast<uint32_t>(chain->prompt.size());
  chain->segments = SegmentsOfHop(hop, *chain);
  Stopwatch watch;
  if (!chain->cards.empty()) {
    QKV_RETURN_IF_ERROR(InjectCards(chain->cards, InjectMode::kFused, &session_, chain->sequence).status());
    record.stages.emplace_back("attach", watch.LapUs());
  }
  const auto before_last = std::span(chain->prompt).first(chain->prompt.size() - 1);
  if (!before_last.empty()) QKV_RETURN_IF_ERROR(session_.Prefill(before_last, {}, chain->sequence));
  record.stages.emplace_back("prefill", watch.LapUs());
  return {};
}

// The rest of all prompts, then all answers, in lock step.
Status HopRunner::Answer(size_t hop, std::span<Chain* const> going) {
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
    std::vector<int32_t> turn = going[i]->prompt;
    turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
    if (answer.end_token >= 0) turn.push_back(answer.end_token);
    going[i]->open_turn = model_.Detokenize(turn);
  }
  return {};
}

// Packs what this hop added, and leaves the sequence empty.
Status HopRunner::End(size_t hop, Chain* chain) {
  PackOptions options = request_.packs.size() == 1 ? request_.packs.front() : request_.packs[hop];
  options.sender = fmt::format("hop {}", hop);
  options.hop = static_cast<uint32_t>(hop);
  options.segments = chain->segments;
  const size_t own = session_.tokens(chain->sequence).size() - session_.attached(chain->sequence);
  if (const size_t read = chain->record.read_tokens; own > read) {
    options.segments.push_back({"generated", options.sender, "", static_cast<uint32_t>(read),
                                static_cast<uint32_t>(own - read), options.segments.back().readers});
  }
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session_, options, &times, chain->sequence));
  chain->record.stages.emplace_back("take", times.take_us);
  chain->record.stages.emplace_back("plan", times.plan_us);
  chain->record.stages.emplace_back("quantize", times.quantize_us);
  QKV_ASSIGN_OR_RETURN(std::shared_ptr<const Card> card, Hand(hop, packed, chain));
  chain->record.card_bytes = card->file_bytes();
  chain->record.code_bits = card->average_code_bits();
  session_.Clear(chain->sequence);
  return AppendCard(std::move(card), &chain->cards);
}

// The card as the next hop gets it: by pointer, or from the file where it is kept.
Result<std::shared_ptr<const Card>> HopRunner::Hand(size_t hop, const PackedCard& packed, Chain* chain) const {
  Stopwatch watch;
  if (request_.card_folder.empty()) {
    QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
    chain->record.stages.emplace_back("open", watch.LapUs());
    return std::make_shared<const Card>(std::move(card));
  }
  const std::string path = CardPath(chain->chain->id, hop);
  QKV_RETURN_IF_ERROR(packed.Write(path));
  chain->record.stages.emplace_back("write", watch.LapUs());
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
  chain->record.stages.emplace_back("open", watch.LapUs());
  return std::make_shared<const Card>(std::move(card));
}

// An answer ends where the chain's context does: all that is sampled can be decoded.
GenerateOptions HopRunner::OptionsOf(size_t hop, const Chain& chain) const {
  GenerateOptions options = request_.generate;
  options.on_text = nullptr;
  options.predict = std::min<size_t>(options.predict, request_.context - session_.tokens(chain.sequence).size());
  options.sampling.seed += static_cast<uint32_t>(chain.index * request_.hops + hop);
  if (options.sampling.seed == kRandomSeed) options.sampling.seed = 0;
  return options;
}

// Of the prompt; its readers are the hops that follow.
std::vector<Segment> HopRunner::SegmentsOfHop(size_t hop, const Chain& chain) const {
  const std::string owner = fmt::format("hop {}", hop);
  const auto tokens = static_cast<uint32_t>(chain.prompt.size());
  std::vector<Segment> segments;
  if (hop == 0) segments = SegmentsOf(model_, chain.chain->messages, chain.prompt, owner);
  if (segments.empty()) segments.push_back({hop == 0 ? "prompt" : "user", owner, "", 0, tokens});
  for (Segment& segment : segments) {
    for (size_t reader = hop + 1; reader < request_.hops; ++reader)
      segment.readers.push_back({fmt::format("hop {}", reader), static_cast<uint32_t>(reader - hop)});
  }
  return segments;
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
  options.fused = request.cards;
  options.card_tokens = 0;
  QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(model, options));
  if (request.cards && !session->fused().ok()) return session->fused();
  return session;
}

Result<std::vector<HopRecord>> RunHops(Session* session, const HopRequest& request) {
  return HopRunner(session, request).Run();
}

}  // namespace qkvshare
