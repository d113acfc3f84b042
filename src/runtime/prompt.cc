#include "runtime/prompt.h"

#include <fmt/format.h>

#include <algorithm>

namespace qkvshare {
namespace {

size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Bytes of the UTF-8 character that starts at text[at], 0 where there is none (RFC 3629).
size_t Utf8Length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto follows = [&](size_t i, uint32_t low = 0x80, uint32_t high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint32_t first = byte(at);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(at + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint32_t low = first == 0xE0 ? 0xA0 : 0x80;
    const uint32_t high = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return follows(at + 1, low, high) && follows(at + 2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint32_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint32_t high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(at + 1, low, high) && follows(at + 2) && follows(at + 3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

JoinedPrompt MatchPrompt(std::span<const int32_t> card_tokens, std::vector<int32_t> prompt_tokens) {
  JoinedPrompt joined;
  joined.cached = CommonPrefix(card_tokens, prompt_tokens);
  // The last token is decoded in any case: its logits are not in the card.
  if (joined.cached > 0 && joined.cached == prompt_tokens.size()) --joined.cached;
  joined.tokens = std::move(prompt_tokens);
  joined.seam = "whole";
  return joined;
}

JoinedPrompt JoinPrompt(const Model& model, std::span<const int32_t> card_tokens, const std::string& text) {
  const std::vector<int32_t> card(card_tokens.begin(), card_tokens.end());
  std::string card_text = model.Detokenize(card);
  // Tokenizers of the SentencePiece kind put a space before a text, which is no part of it.
  if (!card_text.empty() && card_text[0] == ' ' && model.Tokenize(card_text, /*add_special=*/true) != card) {
    card_text.erase(0, 1);
  }
  JoinedPrompt joined = MatchPrompt(card_tokens, model.Tokenize(card_text + text, /*add_special=*/true));
  joined.seam = "joined";
  const bool covers_card = joined.cached == card.size() || joined.tokens == card;
  if (covers_card || model.Tokenize(card_text, /*add_special=*/true) == card) return joined;
  std::vector<int32_t> tokens = card;
  const std::vector<int32_t> more = model.Tokenize(text, /*add_special=*/false);
  tokens.insert(tokens.end(), more.begin(), more.end());
  joined = MatchPrompt(card_tokens, std::move(tokens));
  joined.seam = "appended";
  return joined;
}

Result<std::string> NextUserTurn(const Model& model, const std::string& text, const std::string& open_turn,
                                 bool add_generation_prompt) {
  // The turn is what a conversation grows by; the conversation before it does not matter.
  static const std::string kAnswer = "an answer that no template holds";
  std::vector<ChatMessage> messages = {{"user", "a question"}, {"assistant", kAnswer}};
  QKV_ASSIGN_OR_RETURN(const std::string before, model.ApplyChatTemplate(messages, /*add_generation_prompt=*/false));
  messages.push_back({"user", text});
  QKV_ASSIGN_OR_RETURN(const std::string after, model.ApplyChatTemplate(messages, add_generation_prompt));
  const size_t answer_at = before.rfind(kAnswer);
  if (!after.starts_with(before) || answer_at == std::string::npos) {
    return Status(StatusCode::kUnsupported,
                  "the model's chat template does not render one turn after the other; use --whole");
  }
  std::string turn = after.substr(before.size());
  if (open_turn.empty()) return turn;
  // What ends an assistant's turn, less what the open turn has of it already.
  const std::string end = before.substr(answer_at + kAnswer.size());
  size_t there = std::min(end.size(), open_turn.size());
  while (there > 0 && !open_turn.ends_with(end.substr(0, there))) --there;
  return end.substr(there) + turn;
}

Status CheckUtf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text, at);
    if (length == 0) {
      return {StatusCode::kInvalidArgument,
              fmt::format("the text is not UTF-8 at byte {}; convert it, or cut it between characters", at)};
    }
    at += length;
  }
  return {};
}

}  // namespace qkvshare
