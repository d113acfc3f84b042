// The learned controller: a 2-layer network that tells from a token's features what it costs to lower its width.
// tools/train_controller.py trains it on labels of `qkvshare eval sensitivity`; docs/policies.md has the definition and
// what came of it. Source: the paper's controller.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "policy/controller_inputs.h"
#include "qkvshare/status.h"

namespace qkvshare {

// z = (log(x + offset) - mean) / scale for each input x, held in [-kInputLimit, kInputLimit];
// h = tanh(W1 z + b1); log cost = w2 h + b2.
struct ControllerWeights {
  std::vector<ControllerInput> inputs;         // distinct
  std::vector<double> offsets, means, scales;  // [inputs]; offsets above 0, scales above 0
  std::vector<std::vector<double>> hidden;     // [hidden][inputs]
  std::vector<double> hidden_bias, output;     // [hidden]
  double output_bias = 0;
};
// A token unlike any of those that it was trained on counts as the nearest of these, about.
inline constexpr double kInputLimit = 4;
inline constexpr size_t kMaxHidden = 1024;

class Controller {
 public:
  // name: up to 64 letters, digits, dots, dashes and underscores. kInvalidArgument for another one, sizes that do not
  // agree, numbers past 1e9 or that are none.
  static Result<Controller> Make(std::string name, ControllerWeights weights);
  // A controller's file: JSON, version 1. kCorrupt says what is wrong; kUnsupported: another version.
  static Result<Controller> Parse(const std::string& json);

  const std::string& name() const { return name_; }
  const ControllerWeights& weights() const { return weights_; }
  // Of the file's bytes; of one that was made: zeros.
  const Digest& id() const { return id_; }
  // Those that its inputs are made of, all asked for by name.
  FeatureSet features() const;

  // What each token costs at the narrowest level, above 0: in a unit of its own. columns: ControllerColumns of its
  // inputs, [inputs][tokens].
  std::vector<double> Predict(const std::vector<std::vector<double>>& columns) const;

 private:
  std::string name_;
  ControllerWeights weights_;
  Digest id_{};
};

// Names of the controllers that are part of this software (data/controllers).
inline constexpr const char* kDefaultController = "gsm8k";
std::vector<std::string> BuiltInControllers();

// One of those by name, or one by the path of its file. kNotFound names what there is; kIo; as Parse, with the name.
Result<std::shared_ptr<const Controller>> OpenController(const std::string& name_or_path);

}  // namespace qkvshare
