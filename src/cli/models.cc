#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "runtime/dequantize.h"
#include "runtime/known_models.h"
#include "runtime/model_store.h"

namespace qkvshare::cli {
namespace {

Result<const KnownModel*> Find(const std::string& name) {
  if (const KnownModel* model = FindModel(name); model != nullptr) return model;
  return Status(StatusCode::kNotFound, "no known model is named '" + name + "'; see `qkvshare models list`");
}

struct DequantizeFlags {
  std::string name, output;
  bool f16 = false;
  int threads = 2;
};

Status List(bool json) {
  nlohmann::json array = nlohmann::json::array();
  for (const KnownModel& model : KnownModels()) {
    const bool present = ModelPath(model).has_value();
    array.push_back({{"name", model.name},
                     {"description", model.description},
                     {"license", model.license},
                     {"bytes", model.gguf_bytes},
                     {"present", present}});
    if (!json) {
      fmt::print("{:<20} {:>9}  {:<8} {} ({})\n", model.name, FormatBytes(model.gguf_bytes), present ? "present" : "-",
                 model.description, model.license);
    }
  }
  if (json) PrintJson(array);
  return {};
}

Status Get(const std::string& name) {
  QKV_ASSIGN_OR_RETURN(const KnownModel* model, Find(name));
  ProgressLine line("downloading " + name);
  QKV_ASSIGN_OR_RETURN(const std::string path, GetModel(*model, [&](uint64_t done, uint64_t total) {
                         line.Update(done / 1000000, total / 1000000, "MB");
                       }));
  line.Done();
  fmt::print("{}\n", path);
  return {};
}

Status Path(const std::string& name) {
  QKV_ASSIGN_OR_RETURN(const std::string path, ResolveModel(name));
  fmt::print("{}\n", path);
  return {};
}

Status Dequantize(const DequantizeFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const std::string input, ResolveModel(flags.name));
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {input}));
  return DequantizeModel(input, flags.output, flags.f16 ? FloatType::kF16 : FloatType::kF32, flags.threads);
}

}  // namespace

Command AddModels(CLI::App* app) {
  struct Flags : DequantizeFlags {
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  app->require_subcommand(1);
  CLI::App* list = app->add_subcommand("list", "Models that can be had by name");
  list->add_flag("--json", flags->json, "Report as JSON");
  CLI::App* get = app->add_subcommand("get", "Download a model into the cache folder and print its path");
  get->add_option("name", flags->name, "A name from the list")->required();
  CLI::App* path = app->add_subcommand("path", "Print the path of a model that is present");
  path->add_option("name", flags->name, "A name from the list, or a GGUF file")->required();
  CLI::App* dequantize = app->add_subcommand(
      "dequantize", "Write a model with its weights as floats: evaluations see more with these (docs/evaluation.md)");
  dequantize->add_option("name", flags->name, "A name from the list, or a GGUF file")->required();
  dequantize->add_option("-o,--output", flags->output, "The GGUF file to write")->required()->check(NotEmpty());
  dequantize->add_flag("--f16", flags->f16, "As F16 (default: F32)");
  dequantize->add_option("-t,--threads", flags->threads, "Threads")->check(Count(1, 512))->capture_default_str();
  for (CLI::App* command : {app, list, get, path}) command->footer("Example:\n  qkvshare models get smollm2-135m");
  return [=] {
    Status status;
    if (list->parsed()) status = List(flags->json);
    if (get->parsed()) status = Get(flags->name);
    if (path->parsed()) status = Path(flags->name);
    if (dequantize->parsed()) status = Dequantize(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
