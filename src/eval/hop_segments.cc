#include "eval/hop_segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/sender.h"

namespace qkvshare {
namespace {

// The hops after `hop`.
std::vector<SegmentReader> ReadersAfter(size_t hop, size_t hops, bool for_all) {
  std::vector<SegmentReader> readers;
  for (size_t reader = hop + 1; reader < hops; ++reader)
    readers.push_back({HopOwner(reader), static_cast<uint32_t>(reader - hop + (for_all ? 0 : 1))});
  return readers;
}

std::vector<SegmentReader> ReadersOf(const HopPart& part, size_t hop, size_t hops) {
  std::vector<SegmentReader> readers;
  for (const size_t reader : part.hops) {
    if (reader > hop && reader < hops) readers.push_back({HopOwner(reader), 1});
  }
  return readers;
}

// Tokens of a message, found by the text that they stand for.
class MessageText {
 public:
  MessageText(const Model& model, const std::vector<int32_t>& prompt, const Segment& message)
      : first_(message.first_token) {
    for (uint32_t i = 0; i < message.tokens; ++i) {
      text_ += model.Detokenize({prompt[first_ + i]});
      ends_.push_back(text_.size());
    }
  }
  // Tokens that the next place where `text` stands has a share in: first and end. Both 0: it stands nowhere.
  std::pair<uint32_t, uint32_t> Next(const std::string& text) {
    const size_t at = text_.find(text, from_);
    if (at == std::string::npos || text.empty()) return {0, 0};
    from_ = at + text.size();
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
    const auto last = std::lower_bound(ends_.begin(), ends_.end(), from_) - ends_.begin();
    return {first_ + static_cast<uint32_t>(first), first_ + static_cast<uint32_t>(last) + 1};
  }

 private:
  uint32_t first_;
  std::string text_;
  std::vector<size_t> ends_;  // of each token, in the text
  size_t from_ = 0;
};

// The last segment is the message that has the parts. What lies between them has the readers that it has.
Status SplitByParts(size_t hop, size_t hops, const HopChain& chain, const std::vector<int32_t>& prompt,
                    const Model& model, std::vector<Segment>* segments) {
  const Segment message = segments->back();
  segments->pop_back();
  MessageText text(model, prompt, message);
  uint32_t done = message.first_token;
  const auto add = [&](uint32_t end, std::vector<SegmentReader> readers) {
    if (end <= done) return;
    segments->push_back({message.role, message.owner, message.parent, done, end - done, std::move(readers)});
    done = end;
  };
  for (const HopPart& part : chain.parts) {
    const auto [first, end] = text.Next(part.text);
    if (end == 0) {
      return {StatusCode::kUnsupported,
              fmt::format("chain {}: a part of the first prompt cannot be found in its tokens, "
                          "whose text is another than that of the message",
                          chain.id)};
    }
    add(first, message.readers);
    add(end, ReadersOf(part, hop, hops));
  }
  add(message.first_token + message.tokens, message.readers);
  return {};
}

}  // namespace

std::string HopOwner(size_t hop) { return fmt::format("hop {}", hop); }

Result<std::vector<Segment>> SegmentsOfPrompt(size_t hop, size_t hops, const HopChain& chain,
                                              const std::vector<int32_t>& prompt, const Model& model) {
  const std::string owner = HopOwner(hop);
  std::vector<Segment> segments;
  if (hop == 0) segments = SegmentsOf(model, chain.messages, prompt, owner);
  if (segments.empty()) {
    segments.push_back({hop == 0 ? "prompt" : "user", owner, "", 0, static_cast<uint32_t>(prompt.size())});
  }
  // Examples, and what this hop alone is asked to do, are of less use to the others than what all work on.
  const bool last_is_for_all = hop == 0 && chain.parts.empty();
  for (size_t i = 0; i < segments.size(); ++i)
    segments[i].readers = ReadersAfter(hop, hops, last_is_for_all && i + 1 == segments.size());
  if (hop == 0 && !chain.parts.empty()) QKV_RETURN_IF_ERROR(SplitByParts(hop, hops, chain, prompt, model, &segments));
  return segments;
}

Segment SegmentOfAnswer(size_t hop, size_t hops, const HopChain& chain, uint32_t read, uint32_t tokens) {
  return {"generated", HopOwner(hop), "", read, tokens, ReadersAfter(hop, hops, /*for_all=*/chain.parts.empty())};
}

}  // namespace qkvshare
