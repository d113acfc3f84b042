#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "runtime/calibrate.h"
#include "runtime/prompt.h"

namespace qkvshare::cli {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

struct CalibrateFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string output;
  CalibrateOptions options;
  bool json = false;
};

Status RunCalibrate(const CalibrateFlags& flags) {
  std::vector<std::string> inputs = flags.files;
  inputs.push_back(flags.model.model);
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, inputs));
  QKV_RETURN_IF_ERROR(CheckKind(flags.output, "QKVPROF\n", "a profile"));
  CalibrateOptions options = flags.options;
  for (const std::string& file : flags.files) {
    QKV_ASSIGN_OR_RETURN(std::string text, ReadText(file, kMaxTextBytes));
    if (const Status status = CheckUtf8(text); !status.ok()) return {status.code(), file + ": " + status.message()};
    options.texts.push_back(std::move(text));
  }
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  SessionOptions session_options = flags.model.session;
  if (session_options.context == 0) session_options.context = ContextFor(*model, options.piece_tokens);
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(*model, session_options));
  const InterruptScope interrupt([&] { session->Cancel(); });
  ProgressLine line("calibrating");
  options.progress = [&](size_t done, size_t total) { line.Update(std::min(done, total), total, "tokens"); };
  QKV_ASSIGN_OR_RETURN(StaticProfile profile, Calibrate(session.get(), options));
  line.Done();
  QKV_RETURN_IF_ERROR(WriteStaticProfile(flags.output, &profile));
  const std::string id = ToHex(profile.id);
  if (flags.json) {
    PrintJson({{"profile", flags.output}, {"id", id}, {"tokens", profile.tokens}, {"layers", profile.shapes.size()}});
  } else {
    fmt::print("{}: profile {} of {}, measured on {} tokens\n", flags.output, id.substr(0, 12), model->name(),
               profile.tokens);
  }
  return {};
}

}  // namespace

Command AddCalibrate(CLI::App* app) {
  auto flags = std::make_shared<CalibrateFlags>();
  app->footer(
      "Example:\n  qkvshare calibrate -m smollm2-135m -o smollm2.profile\n"
      "  qkvshare pack -m smollm2-135m -f report.txt --profile smollm2.profile -o report.card");
  flags->model.AddTo(app);
  app->add_option("-f,--file", flags->files, "Text to measure on; repeatable (default: text that the model writes)")
      ->check(NotEmpty());
  app->add_option("-o,--output", flags->output, "The profile to write")->required()->check(NotEmpty());
  app->add_option("-n,--tokens", flags->options.tokens, "Tokens to measure on at most")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  app->add_option("-s,--seed", flags->options.seed, "Seed of the model's own text")->capture_default_str();
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunCalibrate(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
