#include "eval/facts_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace qkvshare {
namespace {

constexpr const char* kIntroduction = "# Survey of the district\n\n";
constexpr size_t kFewestSentences = 3;  // of the last section, with which a section of its own is worth it
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

  // Leaves sections of at most `budget` tokens together, and of as many where that can be.
  bool CutTo(size_t budget, std::vector<std::vector<int32_t>>* texts) {
    std::vector<FactsSection>& sections = document_.sections;
    // The last section may be too short when cut; then the one before it takes what is left.
    while (!sections.empty()) {
      size_t others = 0;
      for (size_t i = 0; i + 1 < texts->size(); ++i) others += (*texts)[i].size();
      const size_t fewest = sections.size() == 1 ? 1 : std::min(kFewestSentences, sections.back().sentences.size());
      if (others < budget && Fill(budget - others, fewest, &sections.back(), &texts->back())) return true;
      sections.pop_back();
      texts->pop_back();
    }
    return false;
  }

  // Cuts the section after as many sentences as can be, and fills it up; false where fewer than `fewest` would stay.
  bool Fill(size_t budget, size_t fewest, FactsSection* section, std::vector<int32_t>* text) const {
    std::optional<std::pair<FactsSection, std::vector<int32_t>>> best;
    for (size_t count = section->sentences.size(); count >= std::max<size_t>(fewest, 1); --count) {
      FactsSection cut = *section;
      cut.sentences.resize(count);
      std::vector<int32_t> tokens = Tokens(cut.Text(count));
      if (tokens.size() > budget) continue;
      FillUp(budget, &cut, &tokens);
      const bool exact = tokens.size() == budget;
      if (!best || tokens.size() > best->second.size()) best.emplace(std::move(cut), std::move(tokens));
      if (exact) break;
    }
    if (!best) return false;
    std::tie(*section, *text) = std::move(*best);
    return true;
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
    return Status(StatusCode::kUnsupported, "the model's chat template changes messages; leave out --chat");
  }
  return ContextFrame{text.substr(0, at), text.substr(at + kMark.size())};
}

Result<FactsDocument> MakeFactsDocument(const Model& model, const ContextFrame& frame, uint32_t tokens, uint64_t seed,
                                        uint64_t document) {
  return DocumentMaker(model, frame, seed, document).Make(tokens);
}

}  // namespace qkvshare
