// Joining a card with the text that follows it: which tokens the whole prompt has, and how many the card covers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

struct JoinedPrompt {
  std::vector<int32_t> tokens;  // of the whole prompt
  size_t cached = 0;            // first tokens to take from the card; at least one token is left to decode
  // How the seam was made: "whole" (a whole prompt was given), "joined" (card and text tokenized as one text) or
  // "appended" (the card's tokens are not those of its text, as may be with generated text: kept as they are).
  std::string seam;
};

// The prompt is given whole; the card may cover any prefix of it. cached is 0 where they differ from the first token
// on.
JoinedPrompt MatchPrompt(std::span<const int32_t> card_tokens, std::vector<int32_t> prompt_tokens);

// The prompt is the card's text and then `text`, tokenized as one text: a word, an emoji or a character that is cut at
// the seam becomes the tokens that the whole text has. An empty text is allowed.
JoinedPrompt JoinPrompt(const Model& model, std::span<const int32_t> card_tokens, const std::string& text);

// The text of a user's turn, and with add_generation_prompt of the start of the assistant's, by the model's chat
// template, as it follows a conversation. open_turn: where the conversation ends within the assistant's turn (generated
// text), its text so far: the turn is ended first, as far as it has not been; else empty. kUnsupported where the
// template does not render one turn after the other.
Result<std::string> NextUserTurn(const Model& model, const std::string& text, const std::string& open_turn,
                                 bool add_generation_prompt = true);

// kInvalidArgument with the offset of the first byte that is not UTF-8 (a character cut off at the end included):
// a tokenizer would replace it silently.
Status CheckUtf8(const std::string& text);

}  // namespace qkvshare
