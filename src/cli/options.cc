#include "cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file.h"
#include "cli/terminal.h"
#include "runtime/model_store.h"
#include "runtime/prompt.h"
#include "runtime/sender.h"

namespace qkvshare::cli {
namespace {

constexpr size_t kMaxPromptBytes = 64 << 20;

Status InvalidMessages(const std::string& why) {
  return {StatusCode::kInvalidArgument,
          "--messages: " + why + R"(; it takes a JSON array such as [{"role": "user", "content": "Hi"}])"};
}

Result<std::vector<ChatMessage>> ParseMessages(const std::string& text) {
  using nlohmann::json;
  const json array = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!array.is_array() || array.empty()) return InvalidMessages("not a JSON array of messages");
  std::vector<ChatMessage> messages;
  for (const json& entry : array) {
    const auto has_text = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string();
    };
    if (!has_text("role") || !has_text("content")) {
      return InvalidMessages(fmt::format("message {} has no \"role\" and \"content\" strings", messages.size() + 1));
    }
    messages.push_back({entry["role"].get<std::string>(), entry["content"].get<std::string>()});
  }
  return messages;
}

void AddCacheType(CLI::App* app, const std::string& name, const std::string& description, CacheType* type) {
  const auto set = [type](const std::string& text) {
    const Result<CacheType> parsed = CacheTypeFromName(text);
    if (!parsed) throw CLI::ValidationError(parsed.status().message());
    *type = *parsed;
  };
  app->add_option_function<std::string>(name, set, description + " (f16, bf16, q8_0, q4_0)")
      ->default_str(CacheTypeName(*type));
}

Status CheckWritable(const std::string& path) {
  if (path == "-") return {StatusCode::kInvalidArgument, "an output is a file: - is not one; give it a name"};
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (access(folder.c_str(), W_OK | X_OK) == 0) return CheckReplaceable(path);
  const int error = errno;
  return {error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
          fmt::format("cannot write {}: folder {}: {}", path, folder, std::generic_category().message(error))};
}

}  // namespace

CLI::Validator NotEmpty() {
  return {[](std::string& text) { return std::string(text.empty() ? "is empty" : ""); }, ""};
}

CLI::Validator Finite(double low, double high) {
  const auto check = [low, high](std::string& text) {
    double value = 0;
    const bool good = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
    return good ? std::string() : fmt::format("{} is not a number from {} to {}", text, low, high);
  };
  return {check, ""};
}

CLI::Validator Count(uint64_t low, uint64_t high) {
  const auto check = [low, high](std::string& text) {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool good = error == std::errc() && stop == end && value >= low && value <= high;
    return good ? std::string() : fmt::format("'{}' is not a whole number from {} to {}", text, low, high);
  };
  return {check, ""};
}

void ModelFlags::AddModelTo(CLI::App* app) {
  app->add_option("-m,--model", model, "GGUF file, or a name from `qkvshare models list`")->capture_default_str();
  app->add_option("-t,--threads", session.threads, "Threads (0: one a core)")
      ->check(CLI::Range(0, 512))
      ->capture_default_str();
  app->add_option("--ubatch-size", session.batch, "Tokens of one decode call, as llama.cpp's -ub")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--rope-freq-base", session.rope_freq_base, "RoPE base (0: from the model)")
      ->check(Finite(0, 1e12))
      ->capture_default_str();
  app->add_option("--rope-freq-scale", session.rope_freq_scale, "RoPE frequency scale (0: from the model)")
      ->check(Finite(0, 1e6))
      ->capture_default_str();
}

void ModelFlags::AddTo(CLI::App* app) {
  AddModelTo(app);
  app->add_option("--gpu-layers,--n-gpu-layers", gpu_layers, "Layers on a GPU, as llama.cpp's -ngl")
      ->capture_default_str();
  app->add_option("-c,--ctx-size", session.context, "Context in tokens (0: as much as needed, up to the model's)")
      ->capture_default_str();
  AddCacheType(app, "--cache-type-k", "Type of K in the context's cache, as llama.cpp's -ctk", &session.cache_type_k);
  AddCacheType(app, "--cache-type-v", "The same of V, as llama.cpp's -ctv", &session.cache_type_v);
  app->add_option_function<std::string>(
         "--flash-attn", [this](const std::string& text) { session.flash_attention = text == "on"; },
         "Flash attention, as llama.cpp's -fa")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("on");
}

CLI::Option* AddInject(CLI::App* app, InjectMode* mode) {
  return app
      ->add_option_function<std::string>(
          "--inject", [mode](const std::string& text) { *mode = *InjectModeFromName(text); },
          "How to use the card: fused (attention reads it where it lies), restore (into the context's cache) or auto "
          "(fused where a self-test passes)")
      ->check([](const std::string& text) { return InjectModeFromName(text).status().message(); })
      ->default_str(InjectModeName(*mode));
}

Result<std::unique_ptr<Model>> ModelFlags::Load() const {
  QKV_RETURN_IF_ERROR(CheckSessionOptions(session));
  QKV_ASSIGN_OR_RETURN(const std::string path, ResolveModel(model));
  ProgressLine line("loading model");
  ModelOptions options;
  options.gpu_layers = gpu_layers;
  options.progress = [&](float done) {
    line.Update(static_cast<uint64_t>(done * 100), 100, "%");
    return true;
  };
  return Model::Load(path, options);
}

void PromptFlags::AddTo(CLI::App* app) {
  app->add_option("-p,--prompt", text, "The text itself");
  app->add_option("-f,--file", file, "File with the text (- for standard input)")->check(NotEmpty());
  app->add_option("--messages", messages_file, "JSON file with chat messages, through the model's chat template")
      ->check(NotEmpty());
  app->add_flag("--chat", chat, "The text is a user's turn, through the model's chat template");
  app->add_option("--system-prompt", system, "With --chat: the system message, as llama.cpp's -sys")->needs("--chat");
}

std::string FoundText(const std::vector<ChainCard>& chain) {
  std::string text;
  for (const ChainCard& link : chain) {
    if (link.wanted_by.empty()) continue;
    text += Printable(fmt::format("found: {}, which {} continues", link.path, link.wanted_by)) + "\n";
  }
  return text;
}

Status CheckTarget(const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!std::filesystem::equivalent(path, input, error)) continue;
    return {StatusCode::kInvalidArgument, path + " is an input and would be overwritten; choose another name"};
  }
  return CheckWritable(path);
}

Status CheckTarget(const std::string& path, const ModelFlags& model, const PromptFlags& prompt) {
  return CheckTarget(path, {model.model, prompt.file, prompt.messages_file});
}

Status CheckCardTarget(const std::string& path, const ModelFlags& model, const PromptFlags& prompt) {
  QKV_RETURN_IF_ERROR(CheckTarget(path, model, prompt));
  return CheckReplaceableCard(path);
}

Result<Prompt> ReadPrompt(const PromptFlags& flags, const Model& model, bool add_generation_prompt) {
  const int given = static_cast<int>(flags.text.has_value()) + static_cast<int>(!flags.file.empty()) +
                    static_cast<int>(!flags.messages_file.empty());
  if (given > 1) return Status(StatusCode::kInvalidArgument, "give only one of -p, -f and --messages");
  if (given == 0 && isatty(STDIN_FILENO) == 1) {
    return Status(StatusCode::kInvalidArgument, "no prompt: give -p TEXT, -f FILE or --messages FILE, or pipe it in");
  }
  Prompt prompt;
  if (flags.text) {
    prompt.text = *flags.text;
  } else {
    const std::string& source = given == 0 ? "-" : flags.messages_file.empty() ? flags.file : flags.messages_file;
    QKV_ASSIGN_OR_RETURN(prompt.text, ReadText(source, kMaxPromptBytes));
  }
  QKV_RETURN_IF_ERROR(CheckUtf8(prompt.text));
  QKV_RETURN_IF_ERROR(CheckUtf8(flags.system));
  if (!flags.messages_file.empty()) {
    QKV_ASSIGN_OR_RETURN(prompt.messages, ParseMessages(prompt.text));
  } else if (flags.chat) {
    if (!flags.system.empty()) prompt.messages.push_back({"system", flags.system});
    prompt.messages.push_back({"user", prompt.text});
  }
  if (!prompt.messages.empty()) {
    QKV_ASSIGN_OR_RETURN(prompt.text, model.ApplyChatTemplate(prompt.messages, add_generation_prompt));
  }
  return prompt;
}

}  // namespace qkvshare::cli
