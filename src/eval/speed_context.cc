#include "eval/speed_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/stopwatch.h"
#include "eval/kept_context.h"
#include "runtime/inject.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

// Codes and scales that attention of one token after the card reads, in all layers. Of layers with a window the
// window's part; the alignment of blocks (under 64 bytes a head) counts too.
size_t AttendedBytes(const Card& card) {
  size_t bytes = 0;
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    size_t whole = 0;
    for (const Side side : {Side::kKeys, Side::kValues})
      whole += card.layout(layer, side).bytes * card.shape(layer).kv_heads;
    const size_t window = card.window(layer), tokens = card.tokens();
    bytes += window > 0 ? whole * std::min(window, tokens) / tokens : whole;
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<SpeedContext>> SpeedContext::Make(const Model& model, const SpeedRequest& request,
                                                         SpeedReport* report) {
  std::unique_ptr<SpeedContext> made(new SpeedContext(model, request));
  QKV_ASSIGN_OR_RETURN(made->tokens_, RepeatTokens(model, request.text, request.depth + kKeptRoom));
  QKV_ASSIGN_OR_RETURN(made->run_, RunFolder::Make(request.folder));
  const SessionOptions options = made->Options(CacheType::kF16, request.depth);
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
  const auto progress = [&](size_t done, size_t total) { made->Step(fmt::format("prefill {}/{}", done, total)); };
  QKV_ASSIGN_OR_RETURN(KeptContext kept,
                       TakeKeptContext(made->tokens(), options, request.folder, session.get(), progress));
  report->prefill_us = kept.prefill_us;
  made->exact_ = std::move(kept.exact);
  RestoreTimes times;
  QKV_RETURN_IF_ERROR(RestoreCard(*made->exact_, request.depth, session.get(), &times));
  made->Step("packing");
  QKV_RETURN_IF_ERROR(made->Pack(*session, report));
  return made;
}

void SpeedContext::Step(const std::string& name) const {
  if (request_.on_step) request_.on_step(name);
}

SessionOptions SpeedContext::Options(CacheType type, size_t tokens) const {
  SessionOptions options = request_.session;
  options.context = static_cast<uint32_t>(tokens + kKeptRoom);
  options.cache_type_k = options.cache_type_v = type;
  return options;
}

SessionOptions SpeedContext::FusedOptions() const {
  SessionOptions options = Options(CacheType::kF16, depth());
  options.fused = true;
  options.card_tokens = static_cast<uint32_t>(depth());
  return options;
}

Status SpeedContext::Attach(std::shared_ptr<const Card> card, Session* session) {
  const uint32_t tokens = card->tokens();
  const CardPart part{std::move(card), 0, tokens};
  return InjectCards({&part, 1}, InjectMode::kFused, session).status();
}

Status SpeedContext::Pack(const Session& session, SpeedReport* report) {
  PackOptions options;
  options.code_bits = request_.bits;
  PackTimes times;
  Stopwatch watch;
  {
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session, options, &times));
    QKV_RETURN_IF_ERROR(packed.Write(card_path()));
  }
  report->pack_us = watch.LapUs();
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(card_path()));
  report->depth = depth();
  report->card_bytes = card.file_bytes();
  report->code_bits = card.average_code_bits();
  report->total_bits = card.average_total_bits();
  report->attended_bytes = AttendedBytes(card);
  card_ = std::make_shared<const Card>(std::move(card));
  return {};
}

}  // namespace qkvshare
