#include "eval/facts_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace qkvshare {
namespace {

constexpr const char* kIntroduction = "# Survey of the district\n\n";
constexpr size_t kFewestSentences = 3;  // of the last section, with which a section of its own is worth it
constexpr size_t kSteps = 4;            // sections that may become the last one
constexpr int kCorrections = 8;         // of a sum of lengths that is not the length of the whole

// Indices of lengths that add up to `sum`, each at most once; nothing where none do.
std::optional<std::vector<size_t>> PickSum(const std::vector<size_t>& lengths, size_t sum) {
  // within[i][s]: whether some of the first i add up to s.
  std::vector<std::vector<bool>> within(lengths.size() + 1, std::vector<bool>(sum + 1));
  within[0][0] = true;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (size_t s = 0; s <= sum; ++s) {
      within[i + 1][s] = within[i][s] || (s >= lengths[i] && within[i][s - lengths[i]]);
    }
  }
  if (!within[lengths.size()][sum]) return std::nullopt;
  std::vector<size_t> picked;
  for (size_t i = lengths.size(); i > 0; --i) {
    if (within[i - 1][sum]) continue;
    picked.push_back(i - 1);
    sum -= lengths[i - 1];
  }
  return picked;
}

class DocumentMaker {
 public:
  DocumentMaker(const Model& model, const ContextFrame& frame, uint64_t seed, uint64_t document)
      : model_(model), frame_(frame), writer_(seed, document), fillers_(writer_.Fillers()) {
    for (const std::string& filler : fillers_) filler_lengths_.push_back(Tokens(" " + filler).size());
  }

  Result<FactsDocument> Make(size_t tokens) {
    const std::vector<int32_t> before = model_.Tokenize(frame_.before + kIntroduction, /*add_special=*/true);
    const std::vector<int32_t> after = Tokens(frame_.after);
    Append("introduction", before);
    std::vector<std::vector<int32_t>> texts;
    const size_t most = tokens - std::min(tokens, after.size());  // up to the frame's end
    size_t used = before.size();
    while (used < most) {
      FactsSection section = writer_.Next();
      std::vector<int32_t> text = Tokens(section.Text(SIZE_MAX));
      document_.sections.push_back(std::move(section));
      texts.push_back(std::move(text));
      used += texts.back().size();
    }
    if (!CutTo(most - std::min(most, before.size()), &texts)) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a context of {} tokens has no room for a section with facts; ask for more", tokens));
    }
    for (size_t i = 0; i < texts.size(); ++i) Append(document_.sections[i].title, texts[i]);
    Extend(after);
    return std::move(document_);
  }

 private:
  std::vector<int32_t> Tokens(const std::string& text) const { return model_.Tokenize(text, /*add_special=*/false); }

  // Cuts the text to `budget` tokens, or to a few less where there is no such text. false: nothing fits.
  bool CutTo(size_t budget, std::vector<std::vector<int32_t>>* texts) {
    std::vector<FactsSection>& sections = document_.sections;
    // What is left may be too little for a section of its own; then the one before takes it.
    struct {
      size_t tokens = 0, sections = 0;
      FactsSection last;
      std::vector<int32_t> text;
    } best;
    for (size_t count = sections.size(); count > 0 && count + kSteps > sections.size() && best.tokens < budget;
         --count) {
      size_t others = 0;
      for (size_t i = 0; i + 1 < count; ++i) others += (*texts)[i].size();
      FactsSection last = sections[count - 1];
      const size_t fewest = count == 1 ? 1 : std::min(kFewestSentences, last.sentences.size());
      if (others >= budget) continue;
      std::vector<int32_t> text = Fill(budget - others, fewest, &last);
      if (text.empty() || others + text.size() <= best.tokens) continue;
      best = {others + text.size(), count, std::move(last), std::move(text)};
    }
    sections.resize(best.sections);
    texts->resize(best.sections);
    if (best.sections == 0) return false;
    sections.back() = std::move(best.last);
    texts->back() = std::move(best.text);
    return true;
  }

  // Cuts the section after as many sentences as can be, but for `fewest`, and fills it up; its tokens, none where it
  // does not fit.
  std::vector<int32_t> Fill(size_t budget, size_t fewest, FactsSection* section) const {
    std::vector<int32_t> best;
    FactsSection best_section;
    for (size_t count = section->sentences.size(); count >= std::max<size_t>(fewest, 1); --count) {
      FactsSection cut = *section;
      cut.sentences.resize(count);
      std::vector<int32_t> tokens = Tokens(cut.Text(count));
      if (tokens.size() > budget) continue;
      FillUp(budget, &cut, &tokens);
      if (tokens.size() <= best.size()) continue;
      best = std::move(tokens);
      best_section = std::move(cut);
      if (best.size() == budget) break;
    }
    *section = std::move(best_section);
    return best;
  }

  // Adds fillers up to `budget` tokens; none where no sum of them is one.
  void FillUp(size_t budget, FactsSection* section, std::vector<int32_t>* tokens) const {
    size_t aim = budget - tokens->size();
    for (int i = 0; i < kCorrections; ++i) {
      const auto picked = PickSum(filler_lengths_, aim);
      if (!picked) return;
      FactsSection filled = *section;
      for (const size_t index : *picked) filled.sentences.push_back({fillers_[index], "", ""});
      std::vector<int32_t> all = Tokens(filled.Text(SIZE_MAX));
      if (all.size() == budget) {
        *section = std::move(filled);
        *tokens = std::move(all);
        return;
      }
      // The seams of sentences took more or fewer tokens.
      if (all.size() > budget + aim) return;
      aim = aim + budget - all.size();
    }
  }

  void Append(const std::string& role, const std::vector<int32_t>& tokens) {
    Segment& segment = document_.segments.emplace_back();
    segment.role = role;
    segment.first_token = static_cast<uint32_t>(document_.tokens.size());
    Extend(tokens);
  }
  void Extend(const std::vector<int32_t>& tokens) {
    document_.tokens.insert(document_.tokens.end(), tokens.begin(), tokens.end());
    document_.segments.back().tokens += static_cast<uint32_t>(tokens.size());
  }

  const Model& model_;
  const ContextFrame& frame_;
  FactsWriter writer_;
  std::vector<std::string> fillers_;
  std::vector<size_t> filler_lengths_;  // tokens
  FactsDocument document_;
};

}  // namespace

Result<ContextFrame> ChatFrame(const Model& model) {
  static const std::string kMark = "a message that no template holds";
  QKV_ASSIGN_OR_RETURN(const std::string text, model.ApplyChatTemplate({{"user", kMark}}, false));
  const size_t at = text.rfind(kMark);
  if (at == std::string::npos) {
    return Status(StatusCode::kUnsupported, "the model's chat template changes messages; give --plain");
  }
  return ContextFrame{text.substr(0, at), text.substr(at + kMark.size())};
}

Result<FactsDocument> MakeFactsDocument(const Model& model, const ContextFrame& frame, uint32_t tokens, uint64_t seed,
                                        uint64_t document) {
  return DocumentMaker(model, frame, seed, document).Make(tokens);
}

}  // namespace qkvshare
