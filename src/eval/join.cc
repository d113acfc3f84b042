#include "eval/join.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <utility>

#include "card/card.h"
#include "runtime/generate.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr size_t kNoisePiece = 16;
constexpr double kExactBits = 16;

using Cards = std::vector<CardPart>;

LogitRows Slice(const LogitRows& rows, size_t first, size_t end) {
  const auto at = [&](size_t row) { return rows.values.begin() + static_cast<ptrdiff_t>(row * rows.vocab); };
  return {rows.vocab, {at(first), at(end)}};
}

class JoinMeasurement {
 public:
  JoinMeasurement(Session* session, const JoinRequest& request) : session_(*session), request_(request) {}

  Result<JoinReport> Run() {
    QKV_RETURN_IF_ERROR(Check());
    JoinReport report;
    for (const std::vector<int32_t>& document : request_.documents) {
      report.card_tokens.push_back(document.size());
      all_.insert(all_.end(), document.begin(), document.end());
    }
    Step("joint prefill");
    QKV_ASSIGN_OR_RETURN(const Cards one, PackAlone({all_}, request_.code_bits));
    QKV_RETURN_IF_ERROR(MakeReference(&report));
    QKV_ASSIGN_OR_RETURN(const Cards exact, PackAlone(request_.documents, kExactBits));
    QKV_ASSIGN_OR_RETURN(const Cards joined, PackAlone(request_.documents, request_.code_bits));
    for (const CardPart& part : joined) report.card_bytes.push_back(part.card->file_bytes());
    for (const auto& [name, cards] :
         {std::pair{"one card", &one}, std::pair{"joined exact", &exact}, std::pair{"joined", &joined}}) {
      for (const InjectMode mode : Modes()) QKV_RETURN_IF_ERROR(AddWay(name, *cards, mode, &report));
    }
    QKV_RETURN_IF_ERROR(AddNothing(&report));
    return report;
  }

 private:
  Status Check() const {
    const auto invalid = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
    if (request_.documents.empty()) return invalid("there are no documents to join");
    size_t tokens = request_.question.size() + request_.predict;
    for (const std::vector<int32_t>& document : request_.documents) {
      if (document.empty()) return invalid("a document has no tokens");
      tokens += document.size();
    }
    if (request_.question.empty()) return invalid("there is no question");
    if (request_.inject == InjectMode::kFused && !session_.fused().ok()) return session_.fused();
    return session_.CheckRoomFor(tokens, 0);
  }

  std::vector<InjectMode> Modes() const {
    std::vector<InjectMode> modes;
    if (request_.inject != InjectMode::kRestore && session_.fused().ok()) modes.push_back(InjectMode::kFused);
    if (request_.inject != InjectMode::kFused) modes.push_back(InjectMode::kRestore);
    return modes;
  }

  void Step(const std::string& name) const {
    if (request_.on_step) request_.on_step(name);
  }

  // A card of each, prefilled from position 0 as `pack` does it; placed one after the other as `run --card` does.
  Result<Cards> PackAlone(const std::vector<std::vector<int32_t>>& documents, double bits) {
    std::vector<std::shared_ptr<const Card>> cards;
    for (const std::vector<int32_t>& document : documents) {
      Step(fmt::format("document {} of {}", cards.size() + 1, documents.size()));
      session_.Clear();
      QKV_RETURN_IF_ERROR(session_.Prefill(document, {}));
      PackOptions options;
      options.code_bits = bits;
      PackTimes times;
      QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session_, options, &times));
      QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
      cards.push_back(std::make_shared<const Card>(std::move(card)));
    }
    return PlaceCards(cards);
  }

  Result<Generation> AnswerNow() {
    QKV_RETURN_IF_ERROR(session_.Prefill(request_.question, {}));
    GenerateOptions options;
    options.sampling.temp = 0;
    options.predict = request_.predict;
    return Generate(&session_, options);
  }

  // The joint prefill's answer and distributions, and how far other pieces are from them.
  Status MakeReference(JoinReport* report) {
    const size_t end = all_.size();
    session_.Clear();
    QKV_RETURN_IF_ERROR(session_.Prefill(all_, {}));
    QKV_ASSIGN_OR_RETURN(const Generation answer, AnswerNow());
    report->answer = answer.text;
    report->question_tokens = request_.question.size();
    report->answer_tokens = answer.tokens.size();
    scored_ = request_.question;
    scored_.insert(scored_.end(), answer.tokens.begin(), answer.tokens.end());
    QKV_RETURN_IF_ERROR(session_.Truncate(end));
    QKV_ASSIGN_OR_RETURN(reference_, ScoreTokens(&session_, scored_, 0));
    QKV_RETURN_IF_ERROR(session_.Truncate(end));
    QKV_ASSIGN_OR_RETURN(const LogitRows in_pieces, ScoreTokens(&session_, scored_, kNoisePiece));
    report->ways.push_back(Compare("noise floor", reference_, in_pieces));
    return {};
  }

  JoinWay Compare(std::string name, const LogitRows& reference, const LogitRows& other) const {
    const size_t asked = request_.question.size() - 1;  // rows that predict tokens of the question
    const size_t answered = scored_.size() - 1;
    JoinWay way;
    way.name = std::move(name);
    FidelityMeter question, answer;
    question.Add(Slice(reference, 0, asked), Slice(other, 0, asked));
    answer.Add(Slice(reference, asked, answered), Slice(other, asked, answered));
    way.question = question.Result();
    way.answer = answer.Result();
    return way;
  }

  Status AddWay(const std::string& cards_name, const Cards& cards, InjectMode mode, JoinReport* report) {
    const std::string name = fmt::format("{}, {}", cards_name, InjectModeName(mode));
    Step(name);
    session_.Clear();
    QKV_RETURN_IF_ERROR(InjectCards(cards, mode, &session_).status());
    QKV_ASSIGN_OR_RETURN(LogitRows rows, ScoreTokens(&session_, scored_, 0));
    JoinWay way = Compare(name, reference_, rows);
    QKV_RETURN_IF_ERROR(session_.Truncate(all_.size()));
    QKV_ASSIGN_OR_RETURN(const Generation answer, AnswerNow());
    way.text = answer.text;
    report->ways.push_back(std::move(way));
    // The last two are of the cards that were asked for.
    if (mode == InjectMode::kRestore && fused_.vocab > 0) report->between = Compare("fused, restore", rows, fused_);
    if (mode == InjectMode::kFused) fused_ = std::move(rows);
    return {};
  }

  Status AddNothing(JoinReport* report) {
    Step("without the documents");
    session_.Clear();
    QKV_ASSIGN_OR_RETURN(const LogitRows rows, ScoreTokens(&session_, scored_, 0));
    JoinWay way = Compare("nothing", reference_, rows);
    session_.Clear();
    QKV_ASSIGN_OR_RETURN(const Generation answer, AnswerNow());
    way.text = answer.text;
    report->ways.push_back(std::move(way));
    return {};
  }

  Session& session_;
  const JoinRequest& request_;
  std::vector<int32_t> all_;     // of all documents
  std::vector<int32_t> scored_;  // question, and the joint prefill's answer
  LogitRows reference_, fused_;
};

}  // namespace

Result<JoinReport> MeasureJoin(Session* session, const JoinRequest& request) {
  return JoinMeasurement(session, request).Run();
}

}  // namespace qkvshare
