#include "eval/memory_case.h"

#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "card/card.h"
#include "runtime/card_list.h"
#include "runtime/inject.h"
#include "runtime/plain_context.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr size_t kSpareTokens = 32;  // that an agent has room for after what it reads

class CaseRun {
 public:
  CaseRun(const Model& model, const MemoryCase& memory_case) : model_(model), case_(memory_case) {}

  Status Run(const std::function<Status(const MemoryCaseResult&)>& on_held) {
    MemoryCaseResult result;
    TrimMemory();
    QKV_ASSIGN_OR_RETURN(const MemoryUse before, ReadMemoryUse());
    result.model_private_bytes = before.private_bytes;
    MemoryPeak peak;
    QKV_RETURN_IF_ERROR(case_.content == MemoryContent::kCards ? MakeSessions() : MakePlains());
    if (!case_.output.empty()) {
      QKV_RETURN_IF_ERROR(HandOn());
      std::error_code error;
      result.output_bytes = std::filesystem::file_size(case_.output, error);
    }
    result.peak_private_bytes = peak.private_bytes();
    TrimMemory();
    QKV_ASSIGN_OR_RETURN(result.held, ReadMemoryUse());
    return on_held(result);
  }

 private:
  size_t own() const { return case_.tokens.size() + kSpareTokens; }
  size_t contexts() const { return case_.one_context ? 1 : case_.agents; }
  size_t sequences() const { return case_.one_context ? case_.agents : 1; }

  // Agents without the context take just their own rows; all of them where RoPE depends on the context's size.
  SessionOptions Options() const {
    SessionOptions options = case_.session;
    const bool has_rows = case_.content != MemoryContent::kEmpty || model_.rope_depends_on_context();
    options.context = static_cast<uint32_t>((has_rows ? case_.depth : 0) + sequences() * own());
    options.sequences = static_cast<int>(sequences());
    return options;
  }

  Status MakePlains() {
    for (size_t i = 0; i < contexts(); ++i) {
      QKV_ASSIGN_OR_RETURN(plains_.emplace_back(), PlainContext::Create(model_, Options()));
      PlainContext& plain = *plains_.back();
      if (case_.content == MemoryContent::kF16) {
        QKV_ASSIGN_OR_RETURN(state_tokens_, plain.LoadFile(case_.state));
      }
      for (int s = 1; s < static_cast<int>(sequences()); ++s) plain.ShareWith(s);
      for (int s = 0; s < static_cast<int>(sequences()); ++s) QKV_RETURN_IF_ERROR(plain.Prefill(case_.tokens, s));
    }
    return {};
  }

  Status MakeSessions() {
    std::vector<std::shared_ptr<const Card>> cards;
    for (const std::string& path : case_.cards) {
      QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
      cards.push_back(std::make_shared<const Card>(std::move(card)));
    }
    QKV_ASSIGN_OR_RETURN(const std::vector<CardPart> parts, PlaceCards(cards));
    SessionOptions options = Options();
    options.fused = true;
    options.card_tokens = static_cast<uint32_t>(case_.depth);
    for (size_t i = 0; i < contexts(); ++i) {
      QKV_ASSIGN_OR_RETURN(sessions_.emplace_back(), Session::Create(model_, options));
      Session* session = sessions_.back().get();
      for (int s = 0; s < options.sequences; ++s) {
        QKV_RETURN_IF_ERROR(InjectCards(parts, InjectMode::kFused, session, s).status());
        QKV_RETURN_IF_ERROR(session->Prefill(case_.tokens, {}, s));
      }
    }
    return {};
  }

  Status HandOn() {
    if (case_.content != MemoryContent::kCards) {
      std::vector<int32_t> tokens = state_tokens_;
      tokens.insert(tokens.end(), case_.tokens.begin(), case_.tokens.end());
      return plains_.front()->SaveFile(case_.output, tokens);
    }
    PackOptions options;
    options.code_bits = case_.code_bits;
    PackTimes times;
    QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(*sessions_.front(), options, &times));
    return card.Write(case_.output);
  }

  const Model& model_;
  const MemoryCase& case_;
  std::vector<int32_t> state_tokens_;
  std::vector<std::unique_ptr<PlainContext>> plains_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

}  // namespace

const char* MemoryContentName(MemoryContent content) {
  switch (content) {
    case MemoryContent::kEmpty: return "empty";
    case MemoryContent::kF16: return "F16";
    case MemoryContent::kCards: return "card";
  }
  return "";
}

Status RunMemoryCase(const Model& model, const MemoryCase& memory_case,
                     const std::function<Status(const MemoryCaseResult&)>& on_held) {
  return CaseRun(model, memory_case).Run(on_held);
}

}  // namespace qkvshare
