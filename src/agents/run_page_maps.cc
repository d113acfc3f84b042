#include "agents/run_page_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "agents/html_text.h"

namespace qkvshare {
namespace {

constexpr size_t kPageTokens = 40'000, kTurnTokens = 4000;  // shown of all turns, of one at most
constexpr size_t kOpenTokens = 400;                         // maps up to this size are not folded
constexpr size_t kTokenBytes = 64;                          // shown of one token
constexpr size_t kIdCharacters = 12;

using LevelCounts = std::map<std::pair<int, int>, size_t>;  // by key and value bits

// Which of the page's six shades: 2, 3, 4, 6, 8 and 16 bits a value, or the nearest above.
int ShadeOf(Level level) {
  const int bits = level.key_bits + level.value_bits;
  constexpr int kUpTo[] = {4, 6, 8, 12, 24};
  int shade = 0;
  while (shade < 5 && bits > kUpTo[shade]) ++shade;
  return shade;
}

size_t TokensOf(const TurnTokens& tokens) { return std::min(tokens.texts.size(), tokens.levels.size()); }

void Count(const TurnTokens& tokens, LevelCounts* counts) {
  for (size_t i = 0; i < TokensOf(tokens); ++i) {
    ++(*counts)[{tokens.levels[i].key_bits, tokens.levels[i].value_bits}];
  }
}

std::string Legend(const LevelCounts& counts) {
  std::string out = "<span class=\"legend\">";
  for (const auto& [bits, count] : counts) {
    const Level level = {static_cast<uint8_t>(bits.first), static_cast<uint8_t>(bits.second)};
    out += fmt::format("<span><span class=\"chip w{}\" title=\"keys {} bits, values {} bits\">{}</span> {}</span> ",
                       ShadeOf(level), bits.first, bits.second, LevelName(level), CountText(count));
  }
  return out + "</span>";
}

// The strongest attention that a token got.
struct Attended {
  float weight = 0;
  size_t by = 0;  // turn
};

// Of all turns, by the anchors of those that took them over. Parts of a turn's card are not resolved.
std::vector<std::vector<Attended>> AttentionOf(const RunRecord& run, const std::vector<TurnTokens>& tokens) {
  std::vector<std::vector<Attended>> attention(run.turns.size());
  std::unordered_map<std::string, size_t> turn_of_card;
  for (size_t i = 0; i < run.turns.size(); ++i) {
    attention[i].resize(i < tokens.size() ? TokensOf(tokens[i]) : 0);
    turn_of_card.emplace(run.turns[i].card.id, i);
  }
  for (size_t i = 0; i < std::min(run.turns.size(), tokens.size()); ++i) {
    const auto mark = [&](size_t turn, size_t first, size_t count) {
      for (const Anchor& anchor : tokens[i].anchors) {
        if (anchor.token < first || anchor.token - first >= std::min(count, attention[turn].size())) continue;
        Attended& attended = attention[turn][anchor.token - first];
        if (anchor.weight > attended.weight) attended = {anchor.weight, i};
      }
    };
    size_t first = 0;
    for (const HandedCard& card : run.turns[i].taken) {
      if (const auto found = turn_of_card.find(card.id); found != turn_of_card.end()) {
        mark(found->second, first, card.tokens);
      }
      first += card.tokens;
    }
    mark(i, first, attention[i].size());
  }
  return attention;
}

// One turn's map.
class Map {
 public:
  Map(const RunRecord& run, size_t turn, const TurnTokens& tokens, const std::vector<Attended>& attention, size_t limit)
      : run_(run), record_(run.turns[turn]), turn_(turn), tokens_(tokens), attention_(attention) {
    const size_t all = TokensOf(tokens);
    shown_ = std::min(limit, all);
    head_ = all > limit ? limit / 2 : all;
    left_out_ = all - shown_;
  }

  std::string Html() const {
    const size_t all = TokensOf(tokens_);
    LevelCounts counts;
    Count(tokens_, &counts);
    std::string out = fmt::format(
        "<details class=\"map\" id=\"map-{}\"{}><summary><b>{}</b> <span class=\"meta\">{} tokens, {:.2f} bits, {}"
        "</span>{}</summary>\n<p class=\"meta\">{}</p>\n",
        turn_, all <= kOpenTokens ? " open" : "", HtmlText(record_.turn), CountText(all), record_.code_bits,
        HtmlText(record_.policy), Legend(counts), Origin());
    size_t first = 0;
    for (const TurnTokens::Segment& segment : tokens_.segments) {
      const size_t end = std::min(all, first + segment.tokens);
      if (end > first) out += Segment(segment.role, first, end);
      first = end;
    }
    if (first < all) out += Segment("", first, all);
    return out + "</details>\n";
  }

 private:
  std::string Origin() const {
    std::string out = HtmlText(record_.card.path);
    if (!record_.card.id.empty())
      out += ", content id " + HtmlText(record_.card.id.substr(0, kIdCharacters)) + "\u2026";
    for (size_t i = 0; i < record_.features.size(); ++i) {
      out += (i == 0 ? ", features: " : ", ") + HtmlText(record_.features[i]);
    }
    return out;
  }

  std::string Segment(const std::string& role, size_t first, size_t end) const {
    std::string out = "<div class=\"segment\">";
    if (!role.empty()) out += "<h4>" + HtmlText(role) + "</h4>";
    if (first < head_) out += Tokens(first, std::min(end, head_));
    if (left_out_ > 0 && first <= head_ && head_ < end) {
      out += fmt::format("<p class=\"note\">{} tokens are left out here.</p>", CountText(left_out_));
    }
    const size_t tail = head_ + left_out_;
    if (left_out_ > 0 && end > tail) out += Tokens(std::max(first, tail), end);
    return out + "</div>\n";
  }

  // Neighbours of the same width share a frame, which keeps big maps small.
  std::string Tokens(size_t first, size_t end) const {
    std::string out = "<div class=\"tokens\">";
    for (size_t i = first; i < end; ++i) {
      const Level level = tokens_.levels[i];
      if (i == first || level != tokens_.levels[i - 1]) {
        out += fmt::format("{}<span class=\"w{}\" title=\"keys {} bits, values {} bits\">", i == first ? "" : "</span>",
                           ShadeOf(level), level.key_bits, level.value_bits);
      }
      out += Token(i);
    }
    return out + "</span></div>";
  }

  std::string Token(size_t i) const {
    const std::string& text = tokens_.texts[i];
    const std::string html = HtmlToken(std::string_view(text).substr(0, CutBefore(text, kTokenBytes)));
    const Attended& attended = attention_[i];
    if (attended.weight <= 0) return "<i>" + html + "</i>";
    return fmt::format("<u title=\"keys {} bits, values {} bits; {:.2g}% of the attention of {}\">{}</u>",
                       tokens_.levels[i].key_bits, tokens_.levels[i].value_bits, 100 * attended.weight,
                       HtmlText(run_.turns[attended.by].turn), html);
  }

  const RunRecord& run_;
  const TurnRecord& record_;
  const size_t turn_;
  const TurnTokens& tokens_;
  const std::vector<Attended>& attention_;
  size_t shown_ = 0, head_ = 0, left_out_ = 0;
};

}  // namespace

size_t ShareOf(size_t all, size_t parts, size_t most) {
  return std::min(all / std::max<size_t>(parts, 1), most) / 2 * 2;
}

std::string BitMaps(const RunRecord& run, const std::vector<TurnTokens>& tokens, size_t turns,
                    const std::string& whose) {
  const std::vector<std::vector<Attended>> attention = AttentionOf(run, tokens);
  LevelCounts counts;
  size_t maps = 0;
  bool attended = false;
  for (size_t i = 0; i < std::min(turns, tokens.size()); ++i) {
    Count(tokens[i], &counts);
    maps += TokensOf(tokens[i]) > 0 ? 1 : 0;
    attended |= std::any_of(attention[i].begin(), attention[i].end(), [](const Attended& a) { return a.weight > 0; });
  }
  if (maps == 0) return "";
  std::string out = "<p>" + HtmlText(whose) + ", as the card keeps them: K8V4 is 8 bits for keys and 4 for values.";
  if (attended) out += " <u>Underlined</u>: what turns attended to most, by the anchors in their cards.";
  out += "</p>\n<p>" + Legend(counts) + "</p>\n";
  const size_t limit = ShareOf(kPageTokens, maps, kTurnTokens);
  for (size_t i = 0; i < std::min(turns, tokens.size()); ++i) {
    if (TokensOf(tokens[i]) > 0) out += Map(run, i, tokens[i], attention[i], limit).Html();
  }
  return out;
}

}  // namespace qkvshare
