#include "runtime/card_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/stopwatch.h"
#include "card/card.h"
#include "quant/kv_rows.h"
#include "runtime/attached_card.h"
#include "runtime/pack_rows.h"

namespace qkvshare {
namespace {

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Status CheckOptions(const PackOptions& options, bool has_profile) {
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  if (options.policy != Policy::kUniform) {
    return Invalid(fmt::format("a context that is sent block by block is packed by policy uniform: {} needs all of it",
                               PolicyName(options.policy)));
  }
  if (options.max_bytes > 0 || options.protected_tokens > 0)
    return Invalid("a context that is sent block by block has no limit of bytes and no last tokens: give bits alone");
  if (!has_profile) {
    return Invalid(
        "blocks are packed with means and scales that were measured before: give a profile (qkvshare "
        "calibrate)");
  }
  return {};
}

// The queries of the block's own tokens, so that it does not depend on what follows.
AttentionWindow WindowOver(const AttentionWindow& window, size_t first, size_t end) {
  AttentionWindow over;
  over.layers = window.layers;
  for (LayerQueries& layer : over.layers) layer.q.clear();
  for (size_t i = 0; i < window.queries(); ++i) {
    if (window.last_visible[i] < first || window.last_visible[i] >= end) continue;
    over.last_visible.push_back(window.last_visible[i] - static_cast<uint32_t>(first));
    for (size_t layer = 0; layer < window.layers.size(); ++layer) {
      const LayerQueries& from = window.layers[layer];
      const size_t row = size_t{from.heads} * from.dim;
      over.layers[layer].q.insert(over.layers[layer].q.end(), from.q.begin() + static_cast<ptrdiff_t>(i * row),
                                  from.q.begin() + static_cast<ptrdiff_t>((i + 1) * row));
    }
  }
  return over;
}

std::vector<Segment> SegmentsIn(const std::vector<Segment>& segments, size_t first, size_t end) {
  std::vector<Segment> inside = SegmentsFrom(segments, first);
  const auto tokens = static_cast<uint32_t>(end - first);
  std::erase_if(inside, [&](const Segment& segment) { return segment.first_token >= tokens; });
  for (Segment& segment : inside) segment.tokens = std::min(segment.tokens, tokens - segment.first_token);
  return inside;
}

class BlockSender {
 public:
  BlockSender(std::span<const int32_t> tokens, const PackOptions& options, Session* session, CardSink* sink,
              BlockTimes* times)
      : tokens_(tokens), options_(options), session_(*session), sink_(*sink), times_(*times) {}

  Status Run(const std::function<void(size_t, size_t)>& progress) {
    before_ = PartsOf(session_.cards());
    const bool has_profile = options_.profile != nullptr || !before_.empty();
    if (tokens_.empty()) return Invalid("there are no tokens to send");
    if (session_.tokens().size() != session_.attached())
      return Invalid("the session has tokens of its own: what is sent block by block starts with the first of them");
    QKV_RETURN_IF_ERROR(CheckOptions(options_, has_profile));
    QKV_RETURN_IF_ERROR(session_.CheckRoom(session_.tokens().size() + tokens_.size()));
    if (session_.flash_attention()) QKV_RETURN_IF_ERROR(session_.KeepQueries(kWindowTokens, kWindowStride));
    const Status status = SendAll(progress);
    if (session_.flash_attention()) static_cast<void>(session_.KeepQueries(0, 1));
    return status;
  }

 private:
  // Whole blocks, as many as one call of llama.cpp takes.
  static constexpr size_t kStep = 2 * size_t{kBlockTokens};

  Status SendAll(const std::function<void(size_t, size_t)>& progress) {
    for (size_t done = 0; done < tokens_.size();) {
      const size_t end = std::min(done + kStep, tokens_.size());
      QKV_RETURN_IF_ERROR(session_.Prefill(tokens_.subspan(done, end - done), {}));
      times_.prefill_us += watch_.LapUs();
      QKV_RETURN_IF_ERROR(SendRows(done, end));
      done = end;
      if (progress) progress(done, tokens_.size());
    }
    return {};
  }

  Status SendRows(size_t first, size_t end) {
    QKV_ASSIGN_OR_RETURN(const KvState state, session_.TakeKv());
    const KvView kv = state.view();
    int64_t pack_us = watch_.LapUs();
    for (size_t at = first; at < end; at += kBlockTokens) {
      const size_t block_end = std::min<size_t>(at + kBlockTokens, end);
      const AttentionWindow window = WindowOver(session_.window(), at, block_end);
      const RowsToPack rows{session_.card_context(),
                            tokens_.subspan(at, block_end - at),
                            RowsIn(kv, at, block_end),
                            std::span(state.positions()).subspan(at, block_end - at),
                            before_,
                            &window};
      QKV_ASSIGN_OR_RETURN(std::shared_ptr<const Card> card, Pack(rows, at));
      pack_us += watch_.LapUs();
      times_.bytes += card->file_bytes();
      ++times_.blocks;
      QKV_RETURN_IF_ERROR(sink_.Send(card));
      QKV_RETURN_IF_ERROR(AppendCard(std::move(card), &before_));
      times_.send_us += watch_.LapUs();
    }
    times_.pack_us += pack_us;
    times_.last_pack_us = pack_us;
    return {};
  }

  Result<std::shared_ptr<const Card>> Pack(const RowsToPack& rows, size_t first) const {
    PackOptions options = options_;
    options.segments = SegmentsIn(options_.segments, first, first + rows.tokens.size());
    PackTimes times;
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackRows(rows, options, &times));
    QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
    return std::make_shared<const Card>(std::move(card));
  }

  std::span<const int32_t> tokens_;
  const PackOptions& options_;
  Session& session_;
  CardSink& sink_;
  BlockTimes& times_;
  std::vector<CardPart> before_;
  Stopwatch watch_;
};

}  // namespace

Status PrefillAndSend(std::span<const int32_t> tokens, const PackOptions& options, Session* session, CardSink* sink,
                      BlockTimes* times, const std::function<void(size_t, size_t)>& progress) {
  *times = {};
  return BlockSender(tokens, options, session, sink, times).Run(progress);
}

Status ReceiveCards(CardSource* source, std::vector<CardPart>* parts,
                    const std::function<void(const CardPart&)>& received) {
  for (;;) {
    QKV_ASSIGN_OR_RETURN(std::shared_ptr<const Card> card, source->Next());
    if (card == nullptr) return {};
    QKV_RETURN_IF_ERROR(AppendCard(std::move(card), parts));
    if (received) received(parts->back());
  }
}

}  // namespace qkvshare
