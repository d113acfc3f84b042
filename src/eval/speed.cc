#include "eval/speed.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/file.h"
#include "base/hash.h"
#include "base/stopwatch.h"
#include "card/card.h"
#include "runtime/inject.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr size_t kDecodeTokens = 8;  // of a run, each timed with the others
constexpr size_t kRoom = 1024;       // tokens after the context
constexpr const char *kFused = "fused", *kF16 = "F16", *kEmpty = "empty", *kNoCard = "no card";

// Memory that only this process has, in bytes; 0 where the system does not tell.
size_t PrivateBytes() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  size_t bytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "Private_Clean: %zu", &kib) == 1 ||
        std::sscanf(line.c_str(), "Private_Dirty: %zu", &kib) == 1) {
      bytes += kib * 1024;
    }
  }
  return bytes;
}

Timing Summary(const std::string& way, std::vector<int64_t> us) {
  std::sort(us.begin(), us.end());
  return {way, us[us.size() / 2], us.front(), us.back()};
}

class SpeedMeasurement {
 public:
  SpeedMeasurement(const Model& model, const SpeedRequest& request) : model_(model), request_(request) {}

  Result<SpeedReport> Run() {
    QKV_RETURN_IF_ERROR(MakeContext());
    QKV_RETURN_IF_ERROR(MakeSessions());
    QKV_RETURN_IF_ERROR(MeasureDecode("decode", {kFused, kF16, "Q8_0", "Q4_0", kEmpty}));
    for (const size_t suffix : {size_t{32}, size_t{512}}) {
      QKV_RETURN_IF_ERROR(MeasureSuffix(fmt::format("suffix {}", suffix), suffix, {kFused, kF16, kEmpty}));
    }
    QKV_RETURN_IF_ERROR(MeasureDecode("decode, no card", {kNoCard, kEmpty}));
    QKV_RETURN_IF_ERROR(MeasureSuffix("suffix 32, no card", 32, {kNoCard, kEmpty}));
    QKV_RETURN_IF_ERROR(MeasureFirstToken());
    QKV_RETURN_IF_ERROR(MeasureMemory());
    return report_;
  }

 private:
  struct Way {
    std::string name;
    std::unique_ptr<Session> session;
    size_t depth = 0;
  };

  void Step(const std::string& name) const {
    if (request_.on_step) request_.on_step(name);
  }

  SessionOptions Options(CacheType type, size_t tokens) const {
    SessionOptions options = request_.session;
    options.context = static_cast<uint32_t>(tokens + kRoom);
    options.cache_type_k = options.cache_type_v = type;
    return options;
  }

  std::vector<int32_t> Tokens() const {
    const std::vector<int32_t> text = model_.Tokenize(request_.text, /*add_special=*/true);
    std::vector<int32_t> tokens;
    while (!text.empty() && tokens.size() < request_.depth + kRoom)
      tokens.insert(tokens.end(), text.begin(), text.end());
    return tokens;
  }

  // The context as an exact card, from the folder if it was made before; then packed.
  Status MakeContext() {
    tokens_ = Tokens();
    if (tokens_.empty()) return {StatusCode::kInvalidArgument, "there is no text to make a context of"};
    const std::span context = std::span(tokens_).first(request_.depth);
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(context.data()), context.size_bytes());
    const std::string name = fmt::format("{}-{}-{}.card", ToHex(model_.fingerprint()).substr(0, 12), request_.depth,
                                         ToHex(Blake2b(bytes)).substr(0, 12));
    const std::string path = request_.folder + "/" + name;
    std::filesystem::create_directories(request_.folder);
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Create(model_, Options(CacheType::kF16, request_.depth)));
    if (!std::filesystem::exists(path)) QKV_RETURN_IF_ERROR(PrefillContext(context, path, session.get()));
    std::ifstream(path + ".us") >> report_.prefill_us;
    QKV_ASSIGN_OR_RETURN(Card exact, Card::Open(path));
    exact_ = std::make_shared<const Card>(std::move(exact));
    RestoreTimes times;
    QKV_RETURN_IF_ERROR(RestoreCard(*exact_, request_.depth, session.get(), &times));
    Step("packing");
    return Pack(*session);
  }

  Status PrefillContext(std::span<const int32_t> context, const std::string& path, Session* session) {
    PrefillOptions prefill;
    prefill.progress = [&](size_t done, size_t total) { Step(fmt::format("prefill {}/{}", done, total)); };
    Stopwatch watch;
    QKV_RETURN_IF_ERROR(session->Prefill(context, prefill));
    const std::string us = std::to_string(watch.LapUs());
    QKV_RETURN_IF_ERROR(
        WriteFileAtomic(path + ".us", {ByteSpan(reinterpret_cast<const uint8_t*>(us.data()), us.size())}));
    PackOptions options;
    options.code_bits = 16;
    PackTimes times;
    QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(*session, options, &times));
    return card.Write(path);
  }

  Status Pack(const Session& session) {
    card_path_ = fmt::format("{}/bench-{}.card", request_.folder, getpid());
    PackOptions options;
    options.code_bits = request_.bits;
    PackTimes times;
    Stopwatch watch;
    {
      QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(session, options, &times));
      QKV_RETURN_IF_ERROR(packed.Write(card_path_));
    }
    report_.pack_us = watch.LapUs();
    QKV_ASSIGN_OR_RETURN(Card card, Card::Open(card_path_));
    report_.depth = request_.depth;
    report_.card_bytes = card.file_bytes();
    report_.code_bits = card.average_code_bits();
    report_.total_bits = card.average_total_bits();
    card_ = std::make_shared<const Card>(std::move(card));
    return {};
  }

  Status MakeSessions() {
    Step("restoring");
    QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> fused, MakeFused());
    QKV_RETURN_IF_ERROR(Attach(fused.get()));
    ways_.push_back({kFused, std::move(fused), request_.depth});
    for (const auto& [name, type] :
         {std::pair{kF16, CacheType::kF16}, std::pair{"Q8_0", CacheType::kQ8_0}, std::pair{"Q4_0", CacheType::kQ4_0}}) {
      QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(model_, Options(type, request_.depth)));
      RestoreTimes times;
      QKV_RETURN_IF_ERROR(RestoreCard(*exact_, request_.depth, session.get(), &times));
      ways_.push_back({name, std::move(session), request_.depth});
    }
    QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> empty, Session::Create(model_, Options(CacheType::kF16, 0)));
    ways_.push_back({kEmpty, std::move(empty), 0});
    SessionOptions options = Options(CacheType::kF16, 0);
    options.fused = true;
    QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> no_card, Session::Create(model_, options));
    ways_.push_back({kNoCard, std::move(no_card), 0});
    return {};
  }

  Result<std::unique_ptr<Session>> MakeFused() const {
    SessionOptions options = Options(CacheType::kF16, request_.depth);
    options.fused = true;
    options.card_tokens = static_cast<uint32_t>(request_.depth);
    return Session::Create(model_, options);
  }

  Status Attach(Session* session) const {
    const CardPart part{card_, 0, card_->tokens()};
    return InjectCards({&part, 1}, InjectMode::kFused, session).status();
  }

  // Runs `run` of each way in turn; it returns the time that counts. Ways without it (null) are left out.
  template <typename Run>
  Status Measure(const std::string& name, const std::vector<std::string>& ways, const Run& run) {
    std::vector<std::vector<int64_t>> us(ways.size());
    for (int repeat = -1; repeat < request_.repeats; ++repeat) {  // the first warms up
      Step(fmt::format("{} {}/{}", name, repeat + 1, request_.repeats));
      for (size_t i = 0; i < ways.size(); ++i) {
        QKV_ASSIGN_OR_RETURN(const int64_t time, run(ways[i]));
        if (repeat >= 0) us[i].push_back(time);
      }
    }
    SpeedTest& test = report_.tests.emplace_back();
    test.name = name;
    for (size_t i = 0; i < ways.size(); ++i) test.ways.push_back(Summary(ways[i], us[i]));
    return {};
  }

  Way& Find(const std::string& name) {
    return *std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) { return way.name == name; });
  }

  std::span<const int32_t> After(size_t count) const { return std::span(tokens_).subspan(request_.depth, count); }

  // Microseconds to decode tokens one by one after the context, a token.
  Status MeasureDecode(const std::string& test, const std::vector<std::string>& ways) {
    return Measure(test, ways, [&](const std::string& name) -> Result<int64_t> {
      Way& way = Find(name);
      QKV_RETURN_IF_ERROR(way.session->Truncate(way.depth));
      QKV_RETURN_IF_ERROR(way.session->Prefill(After(1), {}));
      Stopwatch watch;
      for (size_t i = 1; i <= kDecodeTokens; ++i) QKV_RETURN_IF_ERROR(way.session->Prefill(After(i + 1).last(1), {}));
      return watch.LapUs() / static_cast<int64_t>(kDecodeTokens);
    });
  }

  Status MeasureSuffix(const std::string& test, size_t count, const std::vector<std::string>& ways) {
    return Measure(test, ways, [&](const std::string& name) -> Result<int64_t> {
      Way& way = Find(name);
      QKV_RETURN_IF_ERROR(way.session->Truncate(way.depth));
      Stopwatch watch;
      QKV_RETURN_IF_ERROR(way.session->Prefill(After(count), {}));
      return watch.LapUs();
    });
  }

  // From a hand-over to the first token, after a suffix of 32: in a new context ("hand-over", "... state"), or in one
  // that has everything ("attached", "warm F16").
  Status MeasureFirstToken() {
    QKV_RETURN_IF_ERROR(WriteStates());
    std::vector<std::string> ways = {"hand-over", "attached", "warm F16"};
    for (const auto& [name, path] : states_) ways.push_back(name + " state");
    const Status status = Measure("first token", ways, [&](const std::string& name) -> Result<int64_t> {
      Stopwatch watch;
      if (name == "attached" || name == "warm F16") {
        Way& way = Find(name == "attached" ? kFused : kF16);
        QKV_RETURN_IF_ERROR(way.session->Truncate(way.depth));
        watch.LapUs();
        QKV_RETURN_IF_ERROR(way.session->Prefill(After(32), {}));
        return watch.LapUs();
      }
      std::unique_ptr<Session> session;
      if (name == "hand-over") {
        QKV_ASSIGN_OR_RETURN(Card card, Card::Open(card_path_));
        QKV_ASSIGN_OR_RETURN(session, MakeFused());
        const CardPart part{std::make_shared<const Card>(std::move(card)), 0, static_cast<uint32_t>(request_.depth)};
        QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, InjectMode::kFused, session.get()).status());
      } else {
        QKV_ASSIGN_OR_RETURN(session, RestoreStateOf(name.substr(0, name.find(' '))));
      }
      QKV_RETURN_IF_ERROR(session->Prefill(After(32), {}));
      return watch.LapUs();
    });
    for (const auto& [name, path] : states_) std::filesystem::remove(path);
    return status;
  }

  Status WriteStates() {
    for (const char* name : {kF16, "Q8_0", "Q4_0"}) {
      Way& way = Find(name);
      QKV_RETURN_IF_ERROR(way.session->Truncate(way.depth));
      QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, way.session->SaveState());
      const std::string path = fmt::format("{}/bench-{}-{}.state", request_.folder, getpid(), name);
      QKV_RETURN_IF_ERROR(WriteFileAtomic(path, {ByteSpan(state)}));
      states_.emplace_back(name, path);
    }
    return {};
  }

  Result<std::unique_ptr<Session>> RestoreStateOf(const std::string& name) {
    const auto path =
        std::find_if(states_.begin(), states_.end(), [&](const auto& state) { return state.first == name; });
    Way& way = Find(name);
    QKV_ASSIGN_OR_RETURN(const std::string state, ReadText(path->second, size_t{1} << 40));
    QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                         Session::Create(model_, Options(way.session->cache_type_k(), request_.depth)));
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(state.data()), state.size());
    QKV_RETURN_IF_ERROR(session->RestoreState(bytes, std::span(tokens_).first(request_.depth)));
    return session;
  }

  // What one more receiver adds, after it has decoded a suffix.
  Status MeasureMemory() {
    Step("memory");
    ways_.clear();
    for (const bool fused : {true, false}) {
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<size_t> bytes;
      for (int i = 0; i < 3; ++i) {
        SessionOptions options = Options(CacheType::kF16, request_.depth);
        options.context = static_cast<uint32_t>(request_.depth) + 64;
        options.fused = fused;
        options.card_tokens = fused ? static_cast<uint32_t>(request_.depth) : 0;
        QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(model_, options));
        const CardPart part{card_, 0, card_->tokens()};
        QKV_RETURN_IF_ERROR(
            InjectCards({&part, 1}, fused ? InjectMode::kFused : InjectMode::kRestore, session.get()).status());
        QKV_RETURN_IF_ERROR(session->Prefill(After(32), {}));
        sessions.push_back(std::move(session));
        bytes.push_back(PrivateBytes());
      }
      const size_t more = bytes[2] > bytes[1] ? bytes[2] - bytes[1] : 0;
      (fused ? report_.receiver_bytes : report_.restored_receiver_bytes) = more;
    }
    std::filesystem::remove(card_path_);
    return {};
  }

  const Model& model_;
  const SpeedRequest& request_;
  SpeedReport report_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const Card> exact_, card_;
  std::string card_path_;
  std::vector<Way> ways_;
  std::vector<std::pair<std::string, std::string>> states_;  // name and file
};

}  // namespace

const Timing* SpeedTest::Find(const std::string& way) const {
  const auto found = std::find_if(ways.begin(), ways.end(), [&](const Timing& timing) { return timing.way == way; });
  return found == ways.end() ? nullptr : &*found;
}

Result<SpeedReport> MeasureSpeed(const Model& model, const SpeedRequest& request) {
  return SpeedMeasurement(model, request).Run();
}

}  // namespace qkvshare
