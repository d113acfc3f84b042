#include "cli/speed_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

nlohmann::json TestJson(const SpeedTest& test) {
  nlohmann::json ways = nlohmann::json::object();
  for (const Timing& timing : test.ways) {
    ways[timing.way] = {{"median_us", timing.median_us},
                        {"least_us", timing.least_us},
                        {"most_us", timing.most_us},
                        {"ratio", timing.ratio}};
  }
  return {{"test", test.name}, {"runs", test.runs}, {"ways", ways}};
}

void PrintTest(const SpeedTest& test) {
  for (const Timing& timing : test.ways) {
    const bool first = &timing == &test.ways.front();
    fmt::print("  {:<18}  {:>4}  {:<10}  {:>9}  {:>9}  {:>9}{}\n", first ? test.name : "",
               first ? std::to_string(test.runs) : "", timing.way, FormatUs(timing.median_us),
               FormatUs(timing.least_us), FormatUs(timing.most_us),
               first ? "" : fmt::format("  {:>6.3f}", timing.ratio));
  }
}

// What the context adds to a token, over what it adds with the card.
void PrintAttention(const SpeedReport& report) {
  const SpeedTest* decode = report.Find(kDecodeTest);
  if (decode == nullptr) return;
  const auto less = [&](const char* way, const char* without) {
    return std::max<int64_t>(decode->Find(way)->median_us - decode->Find(without)->median_us, 0);
  };
  const int64_t fused = less(kFusedWay, kNoCardWay);
  if (fused * 50 < decode->Find(kNoCardWay)->median_us) {
    fmt::print("  attention over the context: too short to tell\n");
    return;
  }
  fmt::print("  attention over the context (decode, less that without it): {} {}", kFusedWay, FormatUs(fused));
  for (const char* way : {kF16Way, kQ8Way, kQ4Way}) {
    if (decode->Find(way) == nullptr) continue;  // left out
    const int64_t us = less(way, kLlamaWay);
    fmt::print(", {} {} ({:.1f}x)", way, FormatUs(us), static_cast<double>(us) / static_cast<double>(fused));
  }
  fmt::print("\n");
  const double read = report.AttentionBandwidth(), machine = report.machine_bandwidth;
  if (read == 0 || machine == 0) {
    fmt::print("  of the card a token reads {}; at which rate could not be measured\n",
               FormatBytes(report.attended_bytes));
    return;
  }
  fmt::print("  of the card a token reads {}, at {:.1f} GB/s: {:.0f}% of this machine's {:.1f} GB/s\n",
             FormatBytes(report.attended_bytes), read / 1e9, 100 * read / machine, machine / 1e9);
}

void PrintPrefill(const SpeedReport& report) {
  if (report.prefill_us == 0) {
    fmt::print("  prefill of the context: not known, it was in the cache folder\n");
    return;
  }
  const auto times = [&](int64_t us) { return static_cast<double>(report.prefill_us) / static_cast<double>(us); };
  fmt::print("  prefill of the context: {}, {:.0f} times packing", FormatUs(report.prefill_us), times(report.pack_us));
  if (const SpeedTest* test = report.Find(kFirstTokenTest); test != nullptr) {
    fmt::print(", {:.0f} times the first token after a hand-over", times(test->Find(kHandOverWay)->median_us));
  }
  fmt::print("\n");
}

void PrintMemory(const ReceiverMemory& memory) {
  if (memory.fused == 0) {
    fmt::print("  private memory of one more receiver: not known, this system does not tell\n");
    return;
  }
  const size_t context = memory.empty - std::min(memory.own_rows, memory.empty);
  const size_t card = memory.fused - std::min(memory.empty, memory.fused);
  fmt::print(
      "  private memory of one more receiver: restored {}, fused {}; of that\n    {} are its own rows, {} what "
      "any context of llama.cpp takes, {} for attention over the card\n",
      FormatBytes(memory.restored), FormatBytes(memory.fused), FormatBytes(memory.own_rows), FormatBytes(context),
      FormatBytes(card));
}

}  // namespace

nlohmann::json SpeedJson(const SpeedReport& report) {
  nlohmann::json json = {{"depth", report.depth},         {"card_bytes", report.card_bytes},
                         {"code_bits", report.code_bits}, {"total_bits", report.total_bits},
                         {"pack_us", report.pack_us},     {"prefill_us", report.prefill_us},
                         {"left_out", report.left_out},   {"tests", nlohmann::json::array()}};
  for (const SpeedTest& test : report.tests) json["tests"].push_back(TestJson(test));
  if (report.Find(kDecodeTest) != nullptr) {
    json["attention"] = {{"card_bytes_read", report.attended_bytes},
                         {"bytes_per_s", report.AttentionBandwidth()},
                         {"machine_bytes_per_s", report.machine_bandwidth}};
  }
  if (report.memory) {
    json["receiver_bytes"] = {{"fused", report.memory->fused},
                              {"restored", report.memory->restored},
                              {"empty", report.memory->empty},
                              {"own_rows", report.memory->own_rows}};
  }
  return json;
}

void PrintSpeed(const SpeedReport& report) {
  fmt::print("{} tokens: card {} ({:.2f} bits a channel with everything), packed in {}\n", report.depth,
             FormatBytes(report.card_bytes), report.total_bits, FormatUs(report.pack_us));
  fmt::print("  {:<18}  {:>4}  {:<10}  {:>9}  {:>9}  {:>9}  {:>6}\n", "test", "runs", "way", "median", "least", "most",
             "ratio");
  for (const SpeedTest& test : report.tests) PrintTest(test);
  for (const auto& [way, why] : report.left_out) fmt::print("  without {}: {}\n", way, why);
  PrintPrefill(report);
  PrintAttention(report);
  if (report.memory) PrintMemory(*report.memory);
}

}  // namespace qkvshare::cli
