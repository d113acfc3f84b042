// Hand-over of a card of 8,192 tokens at 4 bits (24 layers of 2 KV heads of 64 channels, as Qwen2.5-Coder-0.5B has),
// from the sender's having it to the receiver's having it checked. Both ends are threads of this process.
//
// "over_pointer_ms" is what it takes more than a pointer in the same run, "of_memcpy" the bytes a second over those
// that one thread copies between buffers beyond all caches.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "card/card.h"
#include "card/card_test_util.h"
#include "handoff/card_pages.h"
#include "handoff/card_queue.h"
#include "handoff/card_stream.h"
#include "handoff/handoff_test_util.h"

namespace qkvshare {
namespace {

using Clock = std::chrono::steady_clock;
using handoff_test::Ends;

constexpr size_t kTokens = 8192, kLayers = 24;

double Ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

const std::shared_ptr<const Card>& BigCard() {
  static const std::shared_ptr<const Card> card = [] {
    const card_test::SyntheticKv kv(kTokens, std::vector<LayerShape>(kLayers, {2, 64, 64}), 1);
    const Result<PackedCard> packed =
        PackCard(kv.view(), UniformPlan(kTokens, {4, 4}, kSinkTokens), MeasureKeyProfiles(kv.view(), kSinkTokens, 2),
                 card_test::Content(kTokens), 2);
    return std::make_shared<const Card>(*Card::FromBytes(packed->Bytes()));
  }();
  return card;
}

// As a receiver has to, who needs memory for the card.
double CopyMs() {
  const ByteSpan from = BigCard()->bytes();
  const auto start = Clock::now();
  Result<CardPages> to = CardPages::Make(from.size());
  if (!to) return -1;
  std::memcpy(to->writable().data(), from.data(), from.size());
  return Ms(Clock::now() - start);
}

// The receiver touches what it got as any reader does.
bool Has(const Result<std::shared_ptr<const Card>>& card) {
  return card && *card != nullptr && (*card)->tokens() == kTokens;
}

template <typename Send>
double TimeOf(CardSource* source, Send send) {
  std::thread sender;
  const auto start = Clock::now();
  sender = std::thread(send);
  const auto card = source->Next();
  const double ms = Ms(Clock::now() - start);
  sender.join();
  return Has(card) ? ms : -1;
}

double PointerMs() {
  CardQueue queue(1);
  return TimeOf(&queue, [&] { static_cast<void>(queue.Send(BigCard())); });
}

void Report(benchmark::State& state, double ms, double pointer_ms, double copy_ms) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["MB"] = static_cast<double>(BigCard()->file_bytes()) / 1e6;
  state.counters["over_pointer_ms"] = (ms - pointer_ms) / runs;
  state.counters["of_memcpy"] = copy_ms / ms;
}

// once: milliseconds of one hand-over, less than 0 where it failed. In turn with a pointer and a copy.
template <typename Once>
void Run(benchmark::State& state, Once once) {
  BigCard();
  double sum_ms = 0, pointer_ms = 0, copy_ms = 0;
  once();
  for (auto _ : state) {
    const double ms = once();
    if (ms < 0) {
      state.SkipWithError("the hand-over failed");
      return;
    }
    state.SetIterationTime(ms / 1e3);
    sum_ms += ms;
    pointer_ms += PointerMs();
    copy_ms += CopyMs();
  }
  Report(state, sum_ms, pointer_ms, copy_ms);
}

void Pointer(benchmark::State& state) { Run(state, PointerMs); }

void File(benchmark::State& state) {
  const std::string path = std::filesystem::temp_directory_path() / ("qkv_bench_" + std::to_string(getpid()) + ".card");
  const ByteSpan bytes = BigCard()->bytes();
  if (!WriteFileAtomic(path, {bytes}).ok()) return state.SkipWithError("no room for a file");
  Run(state, [&] {
    const auto start = Clock::now();
    const Result<Card> card = Card::Open(path);
    return card && card->tokens() == kTokens ? Ms(Clock::now() - start) : -1;
  });
  std::filesystem::remove(path);
}

enum class What { kBytes, kSealed, kCopiedAndSealed };

template <typename MakeEnds>
double StreamMs(MakeEnds make, What what, bool own) {
  static const SealedCard* sealed = nullptr;
  const ByteSpan bytes = BigCard()->bytes();
  if (sealed == nullptr && what == What::kSealed) sealed = new SealedCard(*SealedCard::Make({&bytes, 1}));
  Ends ends = make();
  CardStreamReader reader(*Wire::Take(std::move(ends.reading), "the sender", {}), own);
  CardStreamWriter writer(*Wire::Take(std::move(ends.writing), "the receiver", {}), what == What::kCopiedAndSealed);
  return TimeOf(
      &reader, [&] { static_cast<void>(what == What::kSealed ? writer.SendSealed(*sealed) : writer.Send(BigCard())); });
}

void SharedMemory(benchmark::State& state) {
  Run(state, [] { return StreamMs(handoff_test::Sockets, What::kSealed, true); });
}
void SharedMemoryAndCopy(benchmark::State& state) {
  Run(state, [] { return StreamMs(handoff_test::Sockets, What::kCopiedAndSealed, true); });
}
void PipeBytes(benchmark::State& state) {
  Run(state, [] { return StreamMs(handoff_test::Pipe, What::kBytes, true); });
}
void SocketBytes(benchmark::State& state) {
  Run(state, [] { return StreamMs(handoff_test::Sockets, What::kBytes, true); });
}
void PipeBytesWithDigests(benchmark::State& state) {
  Run(state, [] { return StreamMs(handoff_test::Pipe, What::kBytes, false); });
}

BENCHMARK(Pointer)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(SharedMemory)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(SharedMemoryAndCopy)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(File)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(PipeBytes)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(SocketBytes)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(PipeBytesWithDigests)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace qkvshare
