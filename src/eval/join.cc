#include "eval/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "card/card.h"
#include "runtime/generate.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr double kExactBits = 16;

using Cards = std::vector<CardPart>;

LogitRows Slice(const LogitRows& rows, size_t first, size_t end) {
  const auto at = [&](size_t row) { return rows.values.begin() + static_cast<ptrdiff_t>(row * rows.vocab); };
  return {rows.vocab, {at(first), at(end)}};
}

// A way, while questions are added.
struct Meters {
  std::string name;
  FidelityMeter questions, answers;
  std::vector<std::string> texts;

  JoinWay Result() const { return {name, questions.Result(), answers.Result(), texts}; }
};

// One question, and what the joint prefill makes of it.
struct Question {
  const std::vector<int32_t>& tokens;
  std::vector<int32_t> scored;  // these, and its answer
  LogitRows reference;          // of `scored`
};

class JoinMeasurement {
 public:
  JoinMeasurement(Session* session, const JoinRequest& request) : session_(*session), request_(request) {}

  Result<JoinReport> Run() {
    QKV_RETURN_IF_ERROR(Check());
    for (const std::vector<int32_t>& document : request_.documents) {
      report_.card_tokens.push_back(document.size());
      all_.insert(all_.end(), document.begin(), document.end());
    }
    QKV_ASSIGN_OR_RETURN(one_, PackAlone({all_}, request_.code_bits));
    QKV_ASSIGN_OR_RETURN(joint_, session_.SaveState());
    QKV_ASSIGN_OR_RETURN(exact_, PackAlone(request_.documents, kExactBits));
    QKV_ASSIGN_OR_RETURN(joined_, PackAlone(request_.documents, request_.code_bits));
    for (const CardPart& part : joined_) report_.card_bytes.push_back(part.card->file_bytes());
    for (const std::vector<int32_t>& question : request_.questions) QKV_RETURN_IF_ERROR(AddQuestion(question));
    for (const Meters& meters : ways_) report_.ways.push_back(meters.Result());
    report_.between = between_.Result();
    return std::move(report_);
  }

 private:
  Status Check() const {
    const auto invalid = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
    if (request_.documents.empty()) return invalid("there are no documents to join");
    if (request_.questions.empty()) return invalid("there is no question");
    size_t tokens = request_.predict, longest = 0;
    for (const std::vector<int32_t>& document : request_.documents) {
      if (document.empty()) return invalid("a document has no tokens");
      tokens += document.size();
    }
    for (const std::vector<int32_t>& question : request_.questions) {
      if (question.empty()) return invalid("a question has no tokens");
      longest = std::max(longest, question.size());
    }
    if (request_.inject == InjectMode::kFused && !session_.fused().ok()) return session_.fused();
    return session_.CheckRoomFor(tokens + longest, 0);
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
      PrefillOptions prefill;
      KeepForPacking(session_, &prefill);
      QKV_RETURN_IF_ERROR(session_.Prefill(document, prefill));
      PackOptions options;
      options.code_bits = bits;
      PackTimes times;
      QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session_, options, &times));
      QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
      cards.push_back(std::make_shared<const Card>(std::move(card)));
    }
    return PlaceCards(cards);
  }

  Result<Generation> Answer(const Question& question) {
    QKV_RETURN_IF_ERROR(session_.Prefill(question.tokens, {}));
    GenerateOptions options;
    options.sampling.temp = 0;
    options.predict = request_.predict;
    return Generate(&session_, options);
  }

  Status AddQuestion(const std::vector<int32_t>& tokens) {
    Step(fmt::format("question {} of {}", report_.answers.size() + 1, request_.questions.size()));
    Question question{tokens, tokens, {}};
    QKV_RETURN_IF_ERROR(session_.RestoreState(joint_, all_));
    QKV_ASSIGN_OR_RETURN(const Generation answer, Answer(question));
    report_.answers.push_back(answer.text);
    question.scored.insert(question.scored.end(), answer.tokens.begin(), answer.tokens.end());
    QKV_RETURN_IF_ERROR(session_.Truncate(all_.size()));
    QKV_ASSIGN_OR_RETURN(question.reference, ScoreTokens(&session_, question.scored, 0));
    QKV_RETURN_IF_ERROR(session_.Truncate(all_.size()));
    QKV_ASSIGN_OR_RETURN(const LogitRows one_by_one, ScoreTokens(&session_, question.scored, 1));
    Add(question, question.reference, one_by_one, &WayOf("noise floor"));
    QKV_RETURN_IF_ERROR(AddCards("one card", one_, question).status());
    QKV_RETURN_IF_ERROR(AddCards("joined exact", exact_, question).status());
    QKV_ASSIGN_OR_RETURN(const std::vector<LogitRows> both, AddCards("joined", joined_, question));
    if (both.size() == 2) {
      between_.name = "fused, restore";
      Add(question, both[1], both[0], &between_);
    }
    return AddNothing(question);
  }

  Meters& WayOf(const std::string& name) {
    const auto way = std::find_if(ways_.begin(), ways_.end(), [&](const Meters& m) { return m.name == name; });
    return way != ways_.end() ? *way : ways_.emplace_back(Meters{name, {}, {}, {}});
  }

  static void Add(const Question& question, const LogitRows& reference, const LogitRows& other, Meters* meters) {
    const size_t asked = question.tokens.size() - 1;  // rows that predict tokens of the question
    const size_t answered = question.scored.size() - 1;
    meters->questions.Add(Slice(reference, 0, asked), Slice(other, 0, asked));
    meters->answers.Add(Slice(reference, asked, answered), Slice(other, asked, answered));
  }

  // Rows of each way to inject, in the order of Modes.
  Result<std::vector<LogitRows>> AddCards(const std::string& name, const Cards& cards, const Question& question) {
    std::vector<LogitRows> all;
    for (const InjectMode mode : Modes()) {
      Meters& way = WayOf(fmt::format("{}, {}", name, InjectModeName(mode)));
      session_.Clear();
      QKV_RETURN_IF_ERROR(InjectCards(cards, mode, &session_).status());
      QKV_ASSIGN_OR_RETURN(LogitRows rows, ScoreTokens(&session_, question.scored, 0));
      Add(question, question.reference, rows, &way);
      all.push_back(std::move(rows));
      QKV_RETURN_IF_ERROR(session_.Truncate(all_.size()));
      QKV_ASSIGN_OR_RETURN(const Generation answer, Answer(question));
      way.texts.push_back(answer.text);
    }
    return all;
  }

  Status AddNothing(const Question& question) {
    session_.Clear();
    QKV_ASSIGN_OR_RETURN(const LogitRows rows, ScoreTokens(&session_, question.scored, 0));
    Add(question, question.reference, rows, &WayOf("nothing"));
    session_.Clear();
    QKV_ASSIGN_OR_RETURN(const Generation answer, Answer(question));
    WayOf("nothing").texts.push_back(answer.text);
    return {};
  }

  Session& session_;
  const JoinRequest& request_;
  std::vector<int32_t> all_;    // of all documents
  std::vector<uint8_t> joint_;  // state of their joint prefill
  Cards one_, exact_, joined_;
  std::vector<Meters> ways_;
  Meters between_;
  JoinReport report_;
};

}  // namespace

Result<JoinReport> MeasureJoin(Session* session, const JoinRequest& request) {
  return JoinMeasurement(session, request).Run();
}

}  // namespace qkvshare
