// Text with facts as the context of a sender: whole sections that fill it to the token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/card_info.h"
#include "eval/facts_text.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// What stands around the text of a context; both may be empty.
struct ContextFrame {
  std::string before, after;
};
// By the model's chat template, for a user's first message. kUnsupported as ApplyChatTemplate, or where the template
// changes the message.
Result<ContextFrame> ChatFrame(const Model& model);

struct FactsDocument {
  std::vector<int32_t> tokens;
  // Of role "introduction" (the frame and a title), then one for each section: its title is the role. The last one has
  // what follows in the frame.
  std::vector<Segment> segments;
  std::vector<FactsSection> sections;  // as far as they are in the text
};

// Document number `document` of a seed. The last section is cut after one of its sentences, and sentences without facts
// follow, so that there are `tokens` tokens; where the tokenizer allows no such text, a few less. Each section is
// tokenized for itself. kInvalidArgument where not even the first sentences of a section fit.
Result<FactsDocument> MakeFactsDocument(const Model& model, const ContextFrame& frame, uint32_t tokens, uint64_t seed,
                                        uint64_t document);

}  // namespace qkvshare
