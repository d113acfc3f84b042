#include "eval/speed_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/stopwatch.h"
#include "runtime/backend.h"
#include "runtime/inject.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr size_t kRoom = 1024;  // tokens after the context

ByteSpan BytesOf(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

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
  QKV_RETURN_IF_ERROR(made->MakeTokens());
  QKV_ASSIGN_OR_RETURN(made->run_, RunFolder::Make(request.folder));
  const std::string path = made->ExactPath();
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                       Session::Create(model, made->Options(CacheType::kF16, request.depth)));
  if (!std::filesystem::exists(path)) QKV_RETURN_IF_ERROR(made->Prefill(path, session.get()));
  std::ifstream(path + ".us") >> report->prefill_us;
  QKV_ASSIGN_OR_RETURN(Card exact, Card::Open(path));
  made->exact_ = std::make_shared<const Card>(std::move(exact));
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
  options.context = static_cast<uint32_t>(tokens + kRoom);
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

Status SpeedContext::MakeTokens() {
  const std::vector<int32_t> text = model_.Tokenize(request_.text, /*add_special=*/true);
  if (text.empty()) return {StatusCode::kInvalidArgument, "there is no text to make a context of"};
  while (tokens_.size() < request_.depth + kRoom) tokens_.insert(tokens_.end(), text.begin(), text.end());
  return {};
}

// Named by the tokens and all that their rows and the time of their prefill depend on, but for the machine.
std::string SpeedContext::ExactPath() const {
  const SessionOptions options = Options(CacheType::kF16, depth());
  const std::string how = fmt::format("{} {} -c {} -ub {} -t {} -fa {} {} {}", LlamaVersion(), LlamaSystemInfo(),
                                      options.context, options.batch, options.threads, options.flash_attention,
                                      options.rope_freq_base, options.rope_freq_scale);
  const std::string text(reinterpret_cast<const char*>(tokens().data()), tokens().size_bytes());
  return fmt::format("{}/{}-{}-{}.card", request_.folder, ToHex(model_.fingerprint()).substr(0, 12), depth(),
                     ToHex(Blake2b(BytesOf(text + how))).substr(0, 12));
}

// Leaves the context as an exact card at `path`, and its time beside it.
Status SpeedContext::Prefill(const std::string& path, Session* session) const {
  PrefillOptions prefill;
  prefill.progress = [&](size_t done, size_t total) { Step(fmt::format("prefill {}/{}", done, total)); };
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(session->Prefill(tokens(), prefill));
  QKV_RETURN_IF_ERROR(WriteFileAtomic(path + ".us", {BytesOf(std::to_string(watch.LapUs()))}));
  PackOptions options;
  options.code_bits = 16;
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(*session, options, &times));
  return card.Write(path);
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
