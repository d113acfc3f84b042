#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attend/attend_kernels.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/eval.h"
#include "cli/options.h"
#include "cli/speed_report.h"
#include "cli/terminal.h"
#include "eval/machine_facts.h"
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
  std::vector<std::string> tests = SpeedTestNames();
  bool json = false;
  std::string output;
  bool resume = false;
};

// In UTC.
std::string Now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

std::string DigestOf(const std::vector<int32_t>& tokens) {
  return ToHex(Blake2b({reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof(int32_t)}));
}

// What the times depend on. Both sides' instruction sets: our kernels' name, and what llama.cpp was built for.
Result<nlohmann::json> Header(const SpeedFlags& flags, const Model& model, const std::string& text) {
  QKV_ASSIGN_OR_RETURN(const AttendKernels* kernels, SelectAttendKernels());
  const unsigned cores = std::thread::hardware_concurrency();
  const int threads = flags.model.session.threads;
  return nlohmann::json{{"date", Now()},
                        {"machine", nlohmann::json(MachineFacts())},
                        {"model", model.name()},
                        {"model_fingerprint", ToHex(model.fingerprint())},
                        {"rope_freq_base", flags.model.session.rope_freq_base},
                        {"rope_freq_scale", flags.model.session.rope_freq_scale},
                        {"text_digest", DigestOf(model.Tokenize(text, /*add_special=*/true))},
                        {"bits", flags.bits},
                        {"threads", threads > 0 ? threads : static_cast<int>(cores)},
                        {"ubatch", flags.model.session.batch},
                        {"repeats", flags.repeats},
                        {"tests", flags.tests},
                        {"qkvshare", kVersionText},
                        {"kernels", kernels->name},
                        {"llama_cpp", LlamaVersion()},
                        {"llama_cpp_system", LlamaSystemInfo()}};
}

void PrintHeader(const nlohmann::json& header) {
  const auto text = [&](const char* key) { return header[key].get<std::string>(); };
  fmt::print("{}, -t {} on {}\nqkvshare {}: {} kernels\nllama.cpp {}: {}\n\n", Printable(text("model")),
             header["threads"].get<int>(), header["machine"]["cpu"].get<std::string>(), text("qkvshare"),
             text("kernels"), text("llama_cpp"), text("llama_cpp_system"));
}

// The depths that the file has, if there is one. kInvalidArgument: it is of a run with another header, but for the
// date.
Result<nlohmann::json> DepthsBefore(const std::string& path, const nlohmann::json& header) {
  if (!std::filesystem::exists(path)) return nlohmann::json::array();
  QKV_ASSIGN_OR_RETURN(const std::string text, ReadText(path, size_t{1} << 30));
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}; choose another -o, or no --resume", path, why));
  };
  const nlohmann::json before = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto depths = before.is_object() ? before.find("depths") : before.end();
  if (depths == before.end() || !depths->is_array()) return refuse("is no report of eval speed");
  for (const auto& [key, value] : header.items()) {
    const auto same = before.find(key);
    if (key != "date" && (same == before.end() || *same != value)) return refuse(fmt::format("\"{}\" differs", key));
  }
  return *depths;
}

bool Holds(const nlohmann::json& depths, size_t depth) {
  return std::any_of(depths.begin(), depths.end(), [&](const nlohmann::json& d) {
    return d.is_object() && d.contains("depth") && d["depth"] == depth;
  });
}

Status Save(const nlohmann::json& object, const std::string& path) {
  if (path.empty()) return {};
  const std::string text = object.dump(2) + "\n";
  return WriteFileAtomic(path, {ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())});
}

Status RunSpeed(const SpeedFlags& flags) {
  if (!flags.output.empty()) QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {flags.file, flags.model.model}));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  SpeedRequest request;
  QKV_ASSIGN_OR_RETURN(request.text, ReadText(flags.file, size_t{1} << 30));
  request.bits = flags.bits;
  request.repeats = flags.repeats;
  request.tests = flags.tests;
  request.folder = CacheFolder() + "/bench";
  request.session = flags.model.session;
  QKV_ASSIGN_OR_RETURN(nlohmann::json object, Header(flags, *model, request.text));
  nlohmann::json depths = nlohmann::json::array();
  if (flags.resume) {
    QKV_ASSIGN_OR_RETURN(depths, DepthsBefore(flags.output, object));
  }
  if (!flags.json) PrintHeader(object);
  object["depths"] = std::move(depths);
  for (const size_t depth : flags.depths) {
    if (Holds(object["depths"], depth)) {
      PrintNote(fmt::format("{} tokens: measured already\n", depth));
      continue;
    }
    request.depth = depth;
    SpeedReport report;
    {
      ProgressLine line("measuring ");
      request.on_step = [&](const std::string& step) { line.Note(fmt::format("{}: {}", depth, step)); };
      QKV_ASSIGN_OR_RETURN(report, MeasureSpeed(*model, request));
    }
    if (!flags.json) PrintSpeed(report);
    QKV_RETURN_IF_ERROR(FlushOutput());
    object["depths"].push_back(SpeedJson(report));
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
  flags->model.AddModelTo(app);  // the ways have caches and contexts of their own
  app->add_option("-f,--file", flags->file, "Text of the context; repeated until it is long enough")->required();
  app->add_option("--depth", flags->depths, "Tokens of the context; several, one after the other")
      ->delimiter(',')
      ->check(Count(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--bits", flags->bits, "Average bits of the card, 2 to 16")->capture_default_str();
  app->add_option("--repeats", flags->repeats,
                  "Runs of each way; 3 where a test takes minutes, 4 times as many without a card")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--tests", flags->tests, "What to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(SpeedTestNames()))
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Report as JSON");
  app->add_option("-o,--output", flags->output, "Also write the JSON report to this file")->check(NotEmpty());
  app->add_flag("--resume", flags->resume, "Keep the depths that the file has from a run with the same settings")
      ->needs("--output");
  return [flags] {
    const Status status = RunSpeed(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
