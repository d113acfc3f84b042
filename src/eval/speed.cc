#include "eval/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/stopwatch.h"
#include "eval/bandwidth.h"
#include "eval/median.h"
#include "eval/plain_state.h"
#include "eval/speed_context.h"
#include "eval/speed_memory.h"
#include "eval/speed_ways.h"

namespace qkvshare {
namespace {

constexpr size_t kDecodeTokens = 8;  // of a run, timed together
// Without a card: what is to be seen is smaller than the noise of a few runs, and than what it makes where in memory a
// context lies. So there are more of them, each in a context of its own.
constexpr size_t kNoCardTokens = 32;
constexpr int kNoCardRepeats = 4;  // times as many
// A turn of all ways can take minutes (a long suffix after a long context): then a few must do.
constexpr int kLeastRuns = 3;
// Ways of kFirstTokenTest beside kHandOverWay. A cache's way goes before kState: llama.cpp's own file of it.
constexpr const char *kAttached = "attached", *kWarm = "warm F16", *kState = " state";

// us, first_us: of each run of this way and of the first one.
Timing Summary(const std::string& way, const std::vector<int64_t>& us, const std::vector<int64_t>& first_us) {
  std::vector<double> ratios;
  for (size_t i = 0; i < us.size(); ++i) {
    ratios.push_back(static_cast<double>(us[i]) / static_cast<double>(std::max<int64_t>(first_us[i], 1)));
  }
  const auto [least, most] = std::minmax_element(us.begin(), us.end());
  return {way, Median(us), *least, *most, Median(ratios)};
}

class SpeedTests {
 public:
  SpeedTests(const SpeedContext& context, SpeedReport* report) : context_(context), report_(report), ways_(context) {}

  // Microseconds to decode tokens one by one after the context, a token. renew: each run in a new context.
  Status Decode(const std::string& test, size_t tokens, int repeats, const std::vector<std::string>& ways,
                bool renew = false) {
    return Measure(test, repeats, Possible(ways), [&](const std::string& name) -> Result<int64_t> {
      QKV_ASSIGN_OR_RETURN(const SpeedWay* way, renew ? ways_.Renew(name) : ways_.Find(name));
      QKV_RETURN_IF_ERROR(way->Restart());
      QKV_RETURN_IF_ERROR(way->Prefill(context_.After(1)));
      Stopwatch watch;
      for (size_t i = 1; i <= tokens; ++i) QKV_RETURN_IF_ERROR(way->Prefill(context_.After(i + 1).last(1)));
      return watch.LapUs() / static_cast<int64_t>(tokens);
    });
  }

  Status Suffix(const std::string& test, size_t count, int repeats, const std::vector<std::string>& ways,
                bool renew = false) {
    return Measure(test, repeats, ways, [&](const std::string& name) -> Result<int64_t> {
      QKV_ASSIGN_OR_RETURN(const SpeedWay* way, renew ? ways_.Renew(name) : ways_.Find(name));
      if (renew) QKV_RETURN_IF_ERROR(way->Prefill(context_.After(1)));  // its first call makes a graph
      QKV_RETURN_IF_ERROR(way->Restart());
      Stopwatch watch;
      QKV_RETURN_IF_ERROR(way->Prefill(context_.After(count)));
      return watch.LapUs();
    });
  }

  // From a hand-over to the first token, after a suffix of 32: in a new context, or in one that has everything.
  Status FirstToken() {
    std::vector<std::string> ways = {kHandOverWay, kAttached, kWarm};
    for (const std::string& cache : Possible({kF16Way, kQ8Way, kQ4Way})) {
      QKV_RETURN_IF_ERROR(WriteState(cache));
      ways.push_back(cache + kState);
    }
    return Measure(kFirstTokenTest, context_.request().repeats, ways,
                   [&](const std::string& name) { return FirstTokenOf(name); });
  }

 private:
  // Those of the ways that llama.cpp has for this model.
  std::vector<std::string> Possible(std::vector<std::string> ways) const {
    std::erase_if(ways, [&](const std::string& way) { return report_->left_out.contains(way); });
    return ways;
  }

  // Runs `run` of each way in turn, every other time in reverse, since what comes first may find another machine than
  // what comes next; it returns the time that counts. The first turn warms up.
  template <typename Run>
  Status Measure(const std::string& name, int repeats, const std::vector<std::string>& ways, const Run& run) {
    std::vector<std::vector<int64_t>> us(ways.size());
    const int64_t limit_us = context_.request().test_us;
    int64_t spent_us = 0;
    for (int turn = 0; turn <= repeats && (turn <= kLeastRuns || spent_us < limit_us); ++turn) {
      context_.Step(fmt::format("{} {}/{}", name, turn, repeats));
      std::vector<int64_t> turn_us(ways.size());
      for (size_t i = 0; i < ways.size(); ++i) {
        const size_t way = turn % 2 == 0 ? i : ways.size() - 1 - i;
        QKV_ASSIGN_OR_RETURN(turn_us[way], run(ways[way]));
      }
      spent_us += std::accumulate(turn_us.begin(), turn_us.end(), int64_t{0});
      if (turn == 0) continue;
      for (size_t i = 0; i < ways.size(); ++i) us[i].push_back(turn_us[i]);
    }
    SpeedTest& test = report_->tests.emplace_back();
    test.name = name;
    test.runs = static_cast<int>(us[0].size());
    for (size_t i = 0; i < ways.size(); ++i) test.ways.push_back(Summary(ways[i], us[i], us[0]));
    return {};
  }

  Result<int64_t> FirstTokenOf(const std::string& name) {
    Stopwatch watch;
    if (name == kAttached || name == kWarm) {
      QKV_ASSIGN_OR_RETURN(const SpeedWay* way, ways_.Find(name == kAttached ? kFusedWay : kF16Way));
      QKV_RETURN_IF_ERROR(way->Restart());
      watch.LapUs();
      QKV_RETURN_IF_ERROR(way->Prefill(context_.After(32)));
      return watch.LapUs();
    }
    QKV_ASSIGN_OR_RETURN(const SpeedWay receiver,
                         name == kHandOverWay ? TakeCard() : LoadState(name.substr(0, name.find(' '))));
    QKV_RETURN_IF_ERROR(receiver.Prefill(context_.After(32)));
    return watch.LapUs();
  }

  Result<SpeedWay> TakeCard() const {
    SpeedWay receiver{kHandOverWay, nullptr, nullptr, context_.depth()};
    QKV_ASSIGN_OR_RETURN(Card card, Card::Open(context_.card_path()));
    QKV_ASSIGN_OR_RETURN(receiver.session, Session::Create(context_.model(), context_.FusedOptions()));
    QKV_RETURN_IF_ERROR(SpeedContext::Attach(std::make_shared<const Card>(std::move(card)), receiver.session.get()));
    return receiver;
  }

  std::string StatePath(const std::string& cache) const { return context_.RunPath(cache + ".state"); }

  Status WriteState(const std::string& cache) {
    QKV_ASSIGN_OR_RETURN(const SpeedWay* way, ways_.Find(cache));
    QKV_RETURN_IF_ERROR(way->Restart());
    QKV_RETURN_IF_ERROR(way->plain->SaveFile(StatePath(cache), context_.tokens()));
    SyncFile(StatePath(cache));
    return {};
  }

  Result<SpeedWay> LoadState(const std::string& cache) const {
    SpeedWay receiver{cache, nullptr, nullptr, context_.depth()};
    const SessionOptions options = context_.Options(CacheTypeOf(cache), context_.depth());
    QKV_ASSIGN_OR_RETURN(receiver.plain, PlainContext::Create(context_.model(), options));
    QKV_RETURN_IF_ERROR(receiver.plain->LoadFile(StatePath(cache)).status());
    return receiver;
  }

  const SpeedContext& context_;
  SpeedReport* report_;
  SpeedWays ways_;
};

}  // namespace

const std::vector<std::string>& SpeedTestNames() {
  static const std::vector<std::string> kNames = {"decode", "suffix", "no-card", "first-token", "memory"};
  return kNames;
}

const Timing* SpeedTest::Find(const std::string& way) const {
  const auto found = std::find_if(ways.begin(), ways.end(), [&](const Timing& timing) { return timing.way == way; });
  return found == ways.end() ? nullptr : &*found;
}

const SpeedTest* SpeedReport::Find(const std::string& test) const {
  const auto found = std::find_if(tests.begin(), tests.end(), [&](const SpeedTest& t) { return t.name == test; });
  return found == tests.end() ? nullptr : &*found;
}

double SpeedReport::AttentionBandwidth() const {
  const SpeedTest* decode = Find(kDecodeTest);
  if (decode == nullptr) return 0;
  const int64_t us = decode->Find(kFusedWay)->median_us - decode->Find(kNoCardWay)->median_us;
  return us > 0 ? static_cast<double>(attended_bytes) * 1e6 / static_cast<double>(us) : 0;
}

namespace {

Status CheckTests(const std::vector<std::string>& tests) {
  for (const std::string& test : tests) {
    if (std::find(SpeedTestNames().begin(), SpeedTestNames().end(), test) == SpeedTestNames().end())
      return {StatusCode::kInvalidArgument, fmt::format("there is no test '{}'", test)};
  }
  return {};
}

void FindLeftOut(const SpeedContext& context, SpeedReport* report) {
  for (const char* way : {kQ8Way, kQ4Way}) {
    const Status status = CheckCacheTypes(context.model(), context.Options(CacheTypeOf(way), context.depth()));
    if (!status.ok()) report->left_out[way] = status.message();
  }
}

Status RunTests(const SpeedContext& context, SpeedReport* report) {
  const SpeedRequest& request = context.request();
  const auto wanted = [&](const char* test) {
    return std::find(request.tests.begin(), request.tests.end(), test) != request.tests.end();
  };
  SpeedTests tests(context, report);
  if (wanted("decode")) {
    context.Step("the machine's memory");
    report->machine_bandwidth = MeasureReadBandwidth(request.session.threads);
    QKV_RETURN_IF_ERROR(tests.Decode(kDecodeTest, kDecodeTokens, request.repeats,
                                     {kFusedWay, kF16Way, kQ8Way, kQ4Way, kNoCardWay, kLlamaWay}));
  }
  if (wanted("suffix")) {
    for (const size_t count : {size_t{32}, size_t{512}}) {
      QKV_RETURN_IF_ERROR(
          tests.Suffix(fmt::format("suffix {}", count), count, request.repeats, {kFusedWay, kF16Way, kNoCardWay}));
    }
  }
  if (wanted("no-card")) {
    const int repeats = request.repeats * kNoCardRepeats;
    QKV_RETURN_IF_ERROR(
        tests.Decode("decode, no card", kNoCardTokens, repeats, {kLlamaWay, kNoCardWay}, /*renew=*/true));
    QKV_RETURN_IF_ERROR(tests.Suffix("suffix 32, no card", 32, repeats, {kLlamaWay, kNoCardWay}, /*renew=*/true));
  }
  if (wanted("first-token")) QKV_RETURN_IF_ERROR(tests.FirstToken());
  return {};
}

}  // namespace

Result<SpeedReport> MeasureSpeed(const Model& model, const SpeedRequest& request) {
  QKV_RETURN_IF_ERROR(CheckTests(request.tests));
  SpeedReport report;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedContext> context, SpeedContext::Make(model, request, &report));
  FindLeftOut(*context, &report);
  QKV_RETURN_IF_ERROR(RunTests(*context, &report));  // its sessions are gone before memory is measured
  if (std::find(request.tests.begin(), request.tests.end(), "memory") != request.tests.end()) {
    QKV_ASSIGN_OR_RETURN(report.memory, MeasureMemory(*context));
  }
  return report;
}

}  // namespace qkvshare
