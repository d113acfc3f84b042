#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "attend/attend_kernels.h"
#include "base/file.h"
#include "cli/eval.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "eval/speed.h"
#include "qkvshare/version.h"
#include "runtime/backend.h"

namespace qkvshare::cli {
namespace {

struct SpeedFlags {
  ModelFlags model;
  std::string file;
  std::vector<size_t> depths = {1024, 8192};
  double bits = 4;
  int repeats = 5;
  bool json = false;
  std::string output;
};

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

nlohmann::json TestJson(const SpeedTest& test) {
  nlohmann::json ways = nlohmann::json::object();
  for (const Timing& timing : test.ways)
    ways[timing.way] = {{"median_us", timing.median_us},
                        {"least_us", timing.least_us},
                        {"most_us", timing.most_us},
                        {"ratio", timing.ratio}};
  return {{"test", test.name}, {"ways", ways}};
}

nlohmann::json DepthJson(const SpeedReport& report) {
  nlohmann::json tests = nlohmann::json::array();
  for (const SpeedTest& test : report.tests) tests.push_back(TestJson(test));
  return {{"depth", report.depth},
          {"card_bytes", report.card_bytes},
          {"code_bits", report.code_bits},
          {"total_bits", report.total_bits},
          {"pack_us", report.pack_us},
          {"prefill_us", report.prefill_us},
          {"receiver_bytes",
           {{"fused", report.memory.fused},
            {"restored", report.memory.restored},
            {"empty", report.memory.empty},
            {"own_rows", report.memory.own_rows}}},
          {"attended_bytes", report.attended_bytes},
          {"attention_bytes_per_s", report.AttentionBandwidth()},
          {"machine_bytes_per_s", report.machine_bandwidth},
          {"tests", tests}};
}

// Each way's time over that of the first.
void PrintTest(const SpeedTest& test) {
  fmt::print("  {:<18}", test.name);
  for (const Timing& timing : test.ways) {
    fmt::print("  {} {} ({}..{}", timing.way, FormatUs(timing.median_us), FormatUs(timing.least_us),
               FormatUs(timing.most_us));
    if (&timing != &test.ways.front()) fmt::print("; {:.3f}x", timing.ratio);
    fmt::print(")");
  }
  fmt::print("\n");
}

// What the context adds to a token, over what it adds with the card.
void PrintAttentionShare(const SpeedTest& decode) {
  const int64_t no_card = decode.Find("no card")->median_us;
  const int64_t fused = decode.Find("fused")->median_us - no_card;
  fmt::print("  attention alone (time less that without the context): fused {}", FormatUs(std::max<int64_t>(fused, 0)));
  for (const char* way : {"F16", "Q8_0", "Q4_0"}) {
    const int64_t us = decode.Find(way)->median_us - no_card;
    fmt::print(", {} {} ({:.1f}x)", way, FormatUs(std::max<int64_t>(us, 0)),
               static_cast<double>(us) / static_cast<double>(std::max<int64_t>(fused, 1)));
  }
  fmt::print("\n");
}

// How near attention over the card comes to what memory gives.
void PrintBandwidth(const SpeedReport& report) {
  const double read = report.AttentionBandwidth(), machine = report.machine_bandwidth;
  fmt::print("  it reads {} of the card a token, at {:.1f} GB/s: {:.0f}% of this machine's {:.1f} GB/s\n",
             FormatBytes(report.attended_bytes), read / 1e9, machine > 0 ? 100 * read / machine : 0, machine / 1e9);
}

void PrintPrefill(const SpeedReport& report) {
  if (report.prefill_us == 0) return;
  const auto first_token = std::find_if(report.tests.begin(), report.tests.end(),
                                        [](const SpeedTest& test) { return test.name == "first token"; });
  fmt::print("  prefill of the context {}: {:.0f} times the first token after a hand-over, {:.0f} times packing\n",
             FormatUs(report.prefill_us),
             static_cast<double>(report.prefill_us) / static_cast<double>(first_token->ways.front().median_us),
             static_cast<double>(report.prefill_us) / static_cast<double>(report.pack_us));
}

void PrintMemory(const ReceiverMemory& memory) {
  const size_t context = memory.empty - std::min(memory.own_rows, memory.empty);
  const size_t card = memory.fused - std::min(memory.empty, memory.fused);
  fmt::print(
      "  private memory of one more receiver: restored {}, fused {}: rows of its own {}, the rest of a llama.cpp "
      "context {}, for attention over the card {}\n",
      FormatBytes(memory.restored), FormatBytes(memory.fused), FormatBytes(memory.own_rows), FormatBytes(context),
      FormatBytes(card));
}

void PrintDepth(const SpeedReport& report) {
  fmt::print("{} tokens: card {} ({:.2f} bits a channel with everything), packed in {}\n", report.depth,
             FormatBytes(report.card_bytes), report.total_bits, FormatUs(report.pack_us));
  for (const SpeedTest& test : report.tests) PrintTest(test);
  PrintPrefill(report);
  PrintAttentionShare(report.tests.front());
  PrintBandwidth(report);
  PrintMemory(report.memory);
}

Status Save(const nlohmann::json& object, const std::string& path) {
  if (path.empty()) return {};
  const std::string text = object.dump(2) + "\n";
  return WriteFileAtomic(path, {ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())});
}

Status RunSpeed(const SpeedFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  QKV_ASSIGN_OR_RETURN(const AttendKernels* kernels, SelectAttendKernels());
  SpeedRequest request;
  QKV_ASSIGN_OR_RETURN(request.text, ReadText(flags.file, size_t{1} << 30));
  request.bits = flags.bits;
  request.repeats = flags.repeats;
  request.folder = CacheFolder() + "/bench";
  request.session = flags.model.session;
  nlohmann::json object = {{"model", model->name()},      {"cpu", CpuName()},
                           {"kernels", kernels->name},    {"threads", flags.model.session.threads},
                           {"repeats", flags.repeats},    {"qkvshare", kVersionText},
                           {"llama_cpp", LlamaVersion()}, {"depths", nlohmann::json::array()}};
  for (const size_t depth : flags.depths) {
    request.depth = depth;
    SpeedReport report;
    {
      ProgressLine line("measuring ");
      request.on_step = [&](const std::string& step) { line.Note(fmt::format("{}: {}", depth, step)); };
      QKV_ASSIGN_OR_RETURN(report, MeasureSpeed(*model, request));
    }
    if (!flags.json) PrintDepth(report);
    object["depths"].push_back(DepthJson(report));
    QKV_RETURN_IF_ERROR(Save(object, flags.output));  // a depth that fails loses none before it
  }
  if (flags.json) PrintJson(object);
  return {};
}

}  // namespace

Command AddEvalSpeed(CLI::App* eval) {
  auto flags = std::make_shared<SpeedFlags>();
  CLI::App* app = eval->add_subcommand(
      "speed", "How fast a receiver of a card is, against llama.cpp's own caches with the same context");
  app->footer(
      "Example:\n  qkvshare eval speed -m qwen2.5-coder-0.5b -f book.txt --depth 8192 -t 2\n"
      "The ways take turns; times are medians with their spread. Contexts are prefilled once and kept in the cache "
      "folder.");
  flags->model.AddTo(app);
  app->add_option("-f,--file", flags->file, "Text of the context; repeated until it is long enough")->required();
  app->add_option("--depth", flags->depths, "Tokens of the context; several, one after the other")
      ->delimiter(',')
      ->check(Count(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--bits", flags->bits, "Average bits of the card, 2 to 16")->capture_default_str();
  app->add_option("--repeats", flags->repeats, "Runs of each way")->check(CLI::Range(1, 1000))->capture_default_str();
  app->add_flag("--json", flags->json, "Report as JSON");
  app->add_option("-o,--output", flags->output, "Also write the JSON report to this file")->check(NotEmpty());
  return [flags] {
    const Status status = RunSpeed(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
