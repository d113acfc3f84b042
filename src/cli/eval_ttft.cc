#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/amounts.h"
#include "base/file.h"
#include "card/card.h"
#include "cli/eval.h"
#include "cli/interrupted.h"
#include "cli/options.h"
#include "cli/policy_flags.h"
#include "cli/terminal.h"
#include "cli/ttft_report.h"
#include "eval/ttft.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  qkvshare eval ttft -m qwen2.5-coder-0.5b -f book.txt --depth 1024,8192 -o ttft.jsonl\n"
    "Each receiver starts with files that are in the page cache, and the model in memory. An interrupted run goes on\n"
    "by the same command with the same -o, depth by depth.";

constexpr const char* kAgent = "agent";

struct TtftFlags {
  ModelFlags model;
  PolicyFlags policy;
  std::string file;
  TtftRequest request;
  bool json = false;
};

// What packing goes by besides its options: named in the header, so that no run goes on with other ones.
Status AddComplete(const PolicyFlags& policy, TtftRequest* request) {
  if (policy.readers.empty() && policy.anchor_cards.empty()) return {};
  request->complete_facts["readers"] = policy.readers;
  nlohmann::ordered_json& anchors = request->complete_facts["anchors_from"] = nlohmann::ordered_json::array();
  for (const std::string& path : policy.anchor_cards) {
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(path));
    anchors.push_back(ToHex(card.content_id()));
  }
  request->complete = [&policy](std::span<const int32_t> tokens, PackOptions* pack) {
    QKV_RETURN_IF_ERROR(policy.AddReaders(kAgent, tokens.size(), &pack->segments));
    return policy.AddAnchors(tokens, &pack->anchors);
  };
  return {};
}

// What there is to know of the model before the work.
Status CheckPack(const PolicyFlags& policy, const Model& model, TtftRequest* request) {
  SessionOptions options = request->session;
  options.context = ContextFor(model, 1);
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
  const std::vector<LayerShape>& shapes = session->state_layout().shapes;
  QKV_ASSIGN_OR_RETURN(request->pack.layers, policy.Layers(shapes.size()));
  return request->pack.profile == nullptr ? Status()
                                          : CheckProfileFits(*request->pack.profile, session->identity(), shapes);
}

Status RunTtft(const TtftFlags& flags) {
  TtftRequest request = flags.request;
  if (!request.results.empty()) {
    std::vector<std::string> inputs = flags.policy.InputFiles();
    inputs.insert(inputs.end(), {flags.file, flags.model.model});
    QKV_RETURN_IF_ERROR(CheckTarget(request.results, inputs));
  }
  QKV_ASSIGN_OR_RETURN(request.pack, flags.policy.Options());
  request.pack.sender = kAgent;
  QKV_RETURN_IF_ERROR(AddComplete(flags.policy, &request));
  QKV_ASSIGN_OR_RETURN(request.text, ReadText(flags.file, size_t{1} << 30));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  std::atomic<bool> cancelled{false};
  const InterruptScope interrupt([&] { cancelled = true; });
  request.session = flags.model.session;
  request.session.cancel = &cancelled;
  request.folder = CacheFolder() + "/ttft";
  QKV_RETURN_IF_ERROR(CheckPack(flags.policy, *model, &request));
  TtftReport report;
  {
    ProgressLine line("measuring ");
    request.on_step = [&](const std::string& step) { line.Note(step); };
    QKV_ASSIGN_OR_RETURN(report, MeasureTtft(*model, request));
  }
  if (flags.json) {
    PrintText(
        TtftReportJson(report).dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) +
        "\n");
    return {};
  }
  fmt::print("{}, -t {}: from files in the page cache to the first token, after {} tokens\n", Printable(model->name()),
             report.header["threads"].get<int>(), request.suffix);
  for (const size_t depth : request.depths) {
    std::vector<TtftLine> lines;
    std::copy_if(report.lines.begin(), report.lines.end(), std::back_inserter(lines),
                 [&](const TtftLine& line) { return line.depth == depth; });
    PrintTtft(lines);
  }
  fmt::print("the first context for attached cards, with its self-test and check of the layout: {}, not in any line\n",
             FormatUs(report.first_context_us));
  for (const auto& [way, why] : report.header["left_out"].items())
    fmt::print("without {}: {}\n", way, why.get<std::string>());
  return {};
}

}  // namespace

Command AddEvalTtft(CLI::App* eval) {
  auto flags = std::make_shared<TtftFlags>();
  CLI::App* app = eval->add_subcommand(
      "ttft", "Time to first token by re-prefill, llama.cpp's states and a card, with its stages and bytes");
  app->footer(kExample);
  flags->model.AddModelTo(app);  // the ways have caches and contexts of their own
  app->add_option("-f,--file", flags->file, "Text of the context; repeated until it is long enough")->required();
  app->add_option("--depth", flags->request.depths, "Tokens of the context; several, one after the other")
      ->delimiter(',')
      ->check(Count(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--suffix", flags->request.suffix, "Tokens that the receiver reads after it")
      ->check(Count(1, 1 << 16))
      ->capture_default_str();
  flags->policy.AddTo(app);
  app->add_option("--repeats", flags->request.repeats, "Runs of each way; 3 of prefilling, where these take minutes")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("-o,--output", flags->request.results, "File of results, from which an interrupted run goes on")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = WithWhatIsKept(RunTtft(*flags), flags->request.results);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
