#include "eval/ttft_depth.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/stopwatch.h"
#include "eval/plain_state.h"
#include "runtime/inject.h"
#include "runtime/restore.h"

namespace qkvshare {
namespace {

constexpr size_t kSpareTokens = 32;  // that a context has room for after the suffix
constexpr size_t kMaxFileBytes = size_t{1} << 40;

int32_t MostLikely(const float* logits, const Model& model) {
  return static_cast<int32_t>(std::max_element(logits, logits + model.vocab_size()) - logits);
}

// So that the page cache has all of it.
Status ReadOnce(const std::string& path) { return ReadText(path, kMaxFileBytes).status(); }

}  // namespace

SessionOptions TtftOptions(const TtftRequest& request, CacheType type, size_t depth) {
  SessionOptions options = request.session;
  options.context = static_cast<uint32_t>(depth + request.suffix + kSpareTokens);
  options.cache_type_k = options.cache_type_v = type;
  return options;
}

SessionOptions TtftFusedOptions(const TtftRequest& request, size_t depth) {
  SessionOptions options = TtftOptions(request, CacheType::kF16, depth);
  options.fused = true;
  options.card_tokens = static_cast<uint32_t>(depth);
  return options;
}

Result<std::unique_ptr<TtftDepth>> TtftDepth::Make(const Model& model, const TtftRequest& request,
                                                   std::vector<int32_t> tokens, size_t depth) {
  std::unique_ptr<TtftDepth> made(new TtftDepth(model, request));
  made->depth_ = depth;
  made->tokens_ = std::move(tokens);
  made->pack_ = request.pack;
  if (request.complete) QKV_RETURN_IF_ERROR(request.complete(made->context(), &made->pack_));
  QKV_ASSIGN_OR_RETURN(made->run_, RunFolder::Make(request.folder));
  return made;
}

void TtftDepth::Step(const std::string& what) const {
  if (request_.on_step) request_.on_step(fmt::format("{}: {}", depth_, what));
}

// --- The sender

Result<TtftRun> TtftDepth::Send() {
  Step("sender");
  TtftRun run;
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                       Session::Create(model_, TtftOptions(request_, CacheType::kF16, depth_)));
  run.stages.push_back({"context", watch.LapUs()});
  PackOptions options = pack_;
  QKV_RETURN_IF_ERROR(PrefillSession(session.get(), &options, &run.stages));
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(*session, options, &times));
  run.stages.push_back({"take rows", times.take_us});
  run.stages.push_back({"statistics", times.plan_us - times.allocate_us});
  run.stages.push_back({"allocate", times.allocate_us});
  run.stages.push_back({"quantize", times.quantize_us});
  watch.LapUs();
  QKV_RETURN_IF_ERROR(packed.Write(CardPath()));
  run.stages.push_back({"write", watch.LapUs()});
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(CardPath()));
  card_ = std::make_shared<const Card>(std::move(card));
  if (states_.empty()) QKV_RETURN_IF_ERROR(KeepExact(*session));
  return run;
}

Status TtftDepth::PrefillSession(Session* session, PackOptions* options, Stages* stages) const {
  PrefillOptions prefill;
  KeepForPacking(*session, &prefill);
  const bool predicts = options->features.NeedsPredictions();
  PredictionMeter meter(model_, {context().begin(), context().end()});
  if (predicts) prefill.logits = [&](size_t token, const float* logits) { meter.Add(token, logits); };
  prefill.progress = [&](size_t done, size_t total) { Step(fmt::format("sender {}/{}", done, total)); };
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(session->Prefill(context(), prefill));
  stages->push_back({"prefill", watch.LapUs() - meter.us()});
  if (!predicts) return {};
  stages->push_back({"predictions", meter.us()});
  options->predictions = meter.Take();
  return {};
}

// The states of other cache types are made from it.
Status TtftDepth::KeepExact(const Session& session) {
  PackOptions options;
  options.code_bits = 16;
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session, options, &times));
  QKV_ASSIGN_OR_RETURN(Card exact, Card::FromBytes(packed.Bytes()));
  exact_ = std::make_shared<const Card>(std::move(exact));
  return {};
}

Status TtftDepth::WriteStates() {
  for (const CacheType type : kStateTypes) {
    const SessionOptions options = TtftOptions(request_, type, depth_);
    if (!CheckCacheTypes(model_, options).ok()) continue;
    Step("writing the " + StateWayOf(type));
    StateFile state{type, fmt::format("{}/{}.state", run_->path(), CacheTypeName(type)), 0, {}};
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<PlainContext> plain, MakePlain(model_, options, exact_));
    for (int i = 0; i < request_.repeats; ++i) {
      Stopwatch watch;
      QKV_RETURN_IF_ERROR(plain->SaveFile(state.path, context()));
      SyncFile(state.path);
      state.write_us.push_back(watch.LapUs());
    }
    std::error_code error;
    state.bytes = std::filesystem::file_size(state.path, error);
    states_.push_back(std::move(state));
  }
  exact_.reset();  // as large as a state, and of no more use
  return {};
}

// --- Receivers

Result<TtftRun> TtftDepth::Receive(const std::string& way) {
  Step(way);
  if (way == kReprefillWay) return Reprefill();
  if (const StateFile* state = FindState(way); state != nullptr) {
    QKV_RETURN_IF_ERROR(ReadOnce(state->path));
    return TakeState(*state);
  }
  QKV_RETURN_IF_ERROR(ReadOnce(CardPath()));
  return way == kCardRestoredWay ? RestoreCard() : AttachCard();
}

Result<TtftRun> TtftDepth::Reprefill() const {
  TtftRun run;
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<PlainContext> plain,
                       PlainContext::Create(model_, TtftOptions(request_, CacheType::kF16, depth_)));
  run.stages.push_back({"context", watch.LapUs()});
  QKV_RETURN_IF_ERROR(PrefillPlain(plain.get()));
  run.stages.push_back({"prefill", watch.LapUs()});
  QKV_RETURN_IF_ERROR(FinishPlain(plain.get(), &run));
  return run;
}

// In the calls in which it would be done at once.
Status TtftDepth::PrefillPlain(PlainContext* plain) const {
  const size_t batch = std::max<size_t>(request_.session.batch, 1);
  for (size_t done = 0; done < depth_; done += batch) {
    Step(fmt::format("{} {}/{}", kReprefillWay, done, depth_));
    QKV_RETURN_IF_ERROR(plain->Prefill(context().subspan(done, std::min(batch, depth_ - done))));
  }
  return {};
}

Result<TtftRun> TtftDepth::TakeState(const StateFile& state) const {
  TtftRun run;
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<PlainContext> plain,
                       PlainContext::Create(model_, TtftOptions(request_, state.type, depth_)));
  run.stages.push_back({"context", watch.LapUs()});
  QKV_RETURN_IF_ERROR(plain->LoadFile(state.path).status());
  run.stages.push_back({"read and inject", watch.LapUs()});
  QKV_RETURN_IF_ERROR(FinishPlain(plain.get(), &run));
  return run;
}

Result<TtftRun> TtftDepth::RestoreCard() const {
  TtftRun run;
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                       Session::Create(model_, TtftOptions(request_, CacheType::kF16, depth_)));
  run.stages.push_back({"context", watch.LapUs()});
  QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(CardPath()));
  run.stages.push_back({"open and verify", watch.LapUs()});
  RestoreTimes times;
  QKV_RETURN_IF_ERROR(qkvshare::RestoreCard(card, depth_, session.get(), &times));
  run.stages.push_back({"dequantize", times.dequantize_us});
  run.stages.push_back({"inject", times.inject_us});
  QKV_RETURN_IF_ERROR(FinishSession(session.get(), &run));
  return run;
}

Result<TtftRun> TtftDepth::AttachCard() const {
  TtftRun run;
  Stopwatch watch;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                       Session::Create(model_, TtftFusedOptions(request_, depth_)));
  run.stages.push_back({"context", watch.LapUs()});
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(CardPath()));
  run.stages.push_back({"open and verify", watch.LapUs()});
  const CardPart part{std::make_shared<const Card>(std::move(card)), 0, static_cast<uint32_t>(depth_)};
  QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, InjectMode::kFused, session.get()).status());
  run.stages.push_back({"attach", watch.LapUs()});
  QKV_RETURN_IF_ERROR(FinishSession(session.get(), &run));
  return run;
}

Status TtftDepth::FinishPlain(PlainContext* plain, TtftRun* run) const {
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(plain->Prefill(suffix()));
  run->stages.push_back({"suffix prefill", watch.LapUs()});
  run->first_token = MostLikely(plain->logits(), model_);
  run->stages.push_back({"first token", watch.LapUs()});
  return {};
}

Status TtftDepth::FinishSession(Session* session, TtftRun* run) const {
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(session->Prefill(suffix(), {}));
  run->stages.push_back({"suffix prefill", watch.LapUs()});
  run->first_token = MostLikely(session->logits(), model_);
  run->stages.push_back({"first token", watch.LapUs()});
  return {};
}

const TtftDepth::StateFile* TtftDepth::FindState(const std::string& way) const {
  const auto found = std::find_if(states_.begin(), states_.end(),
                                  [&](const StateFile& state) { return StateWayOf(state.type) == way; });
  return found == states_.end() ? nullptr : &*found;
}

size_t TtftDepth::BytesOf(const std::string& way) const {
  if (way == kReprefillWay) return model_.Detokenize({context().begin(), context().end()}).size();
  const StateFile* state = FindState(way);
  return state != nullptr ? state->bytes : card_->file_bytes();
}

std::vector<int64_t> TtftDepth::WriteTimes(const std::string& way) const {
  const StateFile* state = FindState(way);
  return state != nullptr ? state->write_us : std::vector<int64_t>();
}

}  // namespace qkvshare
