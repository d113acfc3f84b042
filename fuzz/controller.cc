// Reads arbitrary text as a controller; whatever is taken must give costs above 0 for any inputs.
#include "policy/controller.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using qkvshare::StatusCode;
  const auto controller = qkvshare::Controller::Parse(std::string(data, data + size));
  if (!controller) {
    const StatusCode code = controller.status().code();
    Require((code == StatusCode::kCorrupt || code == StatusCode::kUnsupported) &&
            !controller.status().message().empty());
    return 0;
  }
  const std::vector<double> inputs = {0, 1e-300, 1, 1e300, std::numeric_limits<double>::max()};
  const std::vector<std::vector<double>> columns(controller->weights().inputs.size(), inputs);
  for (const double cost : controller->Predict(columns)) Require(std::isfinite(cost) && cost > 0);
  return 0;
}
