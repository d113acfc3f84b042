#include "eval/model_title.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "eval/report_file.h"

namespace qkvshare {
namespace {

// The start of a model's fingerprint, which does not depend on its file's name, and its name in KnownModels; with its
// weights as floats (`models dequantize`) a model is another one.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {{
    {"fa9d46b38d5be0f9", "smollm2-135m"},
    {"fe8ff32c33e38966", "smollm2-135m, F32"},
    {"099d0b0a100ed459", "qwen2.5-coder-0.5b"},
    {"fd395717036ca891", "qwen2.5-coder-0.5b, F32"},
    {"7b6114a2f2ec36a2", "qwen2.5-coder-1.5b"},
    {"6cadb10ff56ae982", "gemma3-270m"},
}};

}  // namespace

std::string ModelTitle(const nlohmann::ordered_json& header) {
  const std::string fingerprint = HeaderText(header, "model_fingerprint");
  const auto* const known =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& name) { return fingerprint.starts_with(name.first); });
  if (known != kNames.end()) return std::string(known->second);
  // The same model with other weights is another one in a report.
  std::string title = HeaderText(header, "model");
  const std::string weights = HeaderText(header, "weights");
  for (const char* type : {"F32", "F16", "BF16"}) {
    if (weights.ends_with(std::string(" ") + type)) title += fmt::format(", {}", type);
  }
  return title;
}

}  // namespace qkvshare
