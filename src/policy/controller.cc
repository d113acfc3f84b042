#include "policy/controller.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "policy/built_in_controllers.h"

namespace qkvshare {
namespace {

using Json = nlohmann::json;

constexpr const char* kKind = "qkvshare_controller";
constexpr int kVersion = 1;
constexpr size_t kMaxFileBytes = size_t{1} << 22;
// Of the logarithm: what comes out is above 0, and finite.
constexpr double kMostLog = 100;

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, "controller: " + what}; }
Status Corrupt(const std::string& what) { return {StatusCode::kCorrupt, "controller: " + what}; }

// So that no sum of them overflows.
constexpr double kMostNumber = 1e9;

bool IsUsable(double number) { return std::abs(number) <= kMostNumber; }  // no NaN

bool AreUsable(const std::vector<double>& numbers) { return std::all_of(numbers.begin(), numbers.end(), IsUsable); }

bool AreAboveZero(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double x) { return x > 0; });
}

Status CheckSize(const char* what, size_t is, size_t wanted) {
  return is == wanted ? Status() : Invalid(fmt::format("{} has {} numbers, not {}", what, is, wanted));
}

Status CheckInputs(const ControllerWeights& weights) {
  const size_t inputs = weights.inputs.size();
  if (inputs == 0) return Invalid("it has no inputs");
  for (size_t i = 0; i < inputs; ++i) {
    const auto end = weights.inputs.begin() + static_cast<ptrdiff_t>(i);
    if (std::find(weights.inputs.begin(), end, weights.inputs[i]) != end)
      return Invalid(fmt::format("input {} is there twice", ControllerInputName(weights.inputs[i])));
  }
  for (const auto& [name, numbers] : {std::pair("offsets", &weights.offsets), std::pair("means", &weights.means),
                                      std::pair("scales", &weights.scales)}) {
    QKV_RETURN_IF_ERROR(CheckSize(name, numbers->size(), inputs));
    if (!AreUsable(*numbers)) return Invalid(fmt::format("{} hold a number past 1e9, or none", name));
  }
  if (!AreAboveZero(weights.offsets)) return Invalid("an offset is not above 0");
  return AreAboveZero(weights.scales) ? Status() : Invalid("a scale is not above 0");
}

Status CheckLayers(const ControllerWeights& weights) {
  const size_t hidden = weights.hidden.size();
  if (hidden == 0 || hidden > kMaxHidden)
    return Invalid(fmt::format("1 to {} hidden units, not {}", kMaxHidden, hidden));
  QKV_RETURN_IF_ERROR(CheckSize("the hidden bias", weights.hidden_bias.size(), hidden));
  QKV_RETURN_IF_ERROR(CheckSize("the output", weights.output.size(), hidden));
  for (const std::vector<double>& unit : weights.hidden) {
    QKV_RETURN_IF_ERROR(CheckSize("a hidden unit", unit.size(), weights.inputs.size()));
    if (!AreUsable(unit)) return Invalid("a hidden unit holds a number past 1e9, or none");
  }
  if (AreUsable(weights.hidden_bias) && AreUsable(weights.output) && IsUsable(weights.output_bias)) return {};
  return Invalid("a bias or the output holds a number past 1e9, or none");
}

// That names of arms, files and cards can have in them.
bool IsName(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), fits);
}

// Throws Json::exception where a member is missing or of another type.
Result<ControllerWeights> ReadWeights(const Json& json) {
  ControllerWeights weights;
  for (const Json& name : json.at("inputs")) {
    const Result<ControllerInput> input = ControllerInputFromName(name.get<std::string>());
    if (!input) return Corrupt(input.status().message());
    weights.inputs.push_back(*input);
  }
  json.at("offsets").get_to(weights.offsets);
  json.at("means").get_to(weights.means);
  json.at("scales").get_to(weights.scales);
  json.at("hidden").at("weights").get_to(weights.hidden);
  json.at("hidden").at("bias").get_to(weights.hidden_bias);
  json.at("output").at("weights").get_to(weights.output);
  json.at("output").at("bias").get_to(weights.output_bias);
  if (json.at("activation") != "tanh") return Corrupt("its activation is not tanh");
  return weights;
}

}  // namespace

Result<Controller> Controller::Make(std::string name, ControllerWeights weights) {
  if (!IsName(name)) return Invalid("its name is not 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'");
  QKV_RETURN_IF_ERROR(CheckInputs(weights));
  QKV_RETURN_IF_ERROR(CheckLayers(weights));
  Controller controller;
  controller.name_ = std::move(name);
  controller.weights_ = std::move(weights);
  return controller;
}

Result<Controller> Controller::Parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kKind)) return Corrupt(fmt::format("no JSON with \"{}\"", kKind));
  if (!json[kKind].is_number_integer()) return Corrupt(fmt::format("\"{}\" is no version", kKind));
  if (json[kKind] != kVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("controller: version {}; this software reads version {}", json[kKind].dump(), kVersion));
  }
  try {
    QKV_ASSIGN_OR_RETURN(ControllerWeights weights, ReadWeights(json));
    Result<Controller> controller = Make(json.at("name").get<std::string>(), std::move(weights));
    if (!controller) return Status(StatusCode::kCorrupt, controller.status().message());
    controller->id_ = Blake2b({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    return controller;
  } catch (const Json::exception& e) {
    return Corrupt(e.what());
  }
}

FeatureSet Controller::features() const {
  FeatureSet features;
  for (const ControllerInput input : weights_.inputs) features.Set(FeatureOf(input), true);
  features.named = features.on;
  return features;
}

std::vector<double> Controller::Predict(const std::vector<std::vector<double>>& columns) const {
  const ControllerWeights& w = weights_;
  std::vector<double> costs(columns[0].size());
  std::vector<double> z(w.inputs.size());
  for (size_t t = 0; t < costs.size(); ++t) {
    for (size_t i = 0; i < z.size(); ++i) {
      const double value = (std::log(columns[i][t] + w.offsets[i]) - w.means[i]) / w.scales[i];
      z[i] = std::clamp(value, -kInputLimit, kInputLimit);
    }
    double log_cost = w.output_bias;
    for (size_t h = 0; h < w.hidden.size(); ++h) {
      double sum = w.hidden_bias[h];
      for (size_t i = 0; i < z.size(); ++i) sum += w.hidden[h][i] * z[i];
      log_cost += w.output[h] * std::tanh(sum);
    }
    costs[t] = std::exp(std::clamp(log_cost, -kMostLog, kMostLog));
  }
  return costs;
}

std::vector<std::string> BuiltInControllers() {
  std::vector<std::string> names;
  for (const BuiltInController& controller : BuiltInControllerFiles()) names.emplace_back(controller.name);
  return names;
}

Result<std::shared_ptr<const Controller>> OpenController(const std::string& name_or_path) {
  std::string text;
  for (const BuiltInController& controller : BuiltInControllerFiles()) {
    if (name_or_path == controller.name) text = controller.json;
  }
  if (text.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(name_or_path, error)) {
      return Status(StatusCode::kNotFound, fmt::format("there is no controller '{}': give a file, or one of {}",
                                                       name_or_path, fmt::join(BuiltInControllers(), ", ")));
    }
    QKV_ASSIGN_OR_RETURN(text, ReadText(name_or_path, kMaxFileBytes));
  }
  Result<Controller> controller = Controller::Parse(text);
  if (!controller) {
    return Status(controller.status().code(), fmt::format("{}: {}", name_or_path, controller.status().message()));
  }
  return std::make_shared<const Controller>(std::move(*controller));
}

}  // namespace qkvshare
