#include "quant/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "quant/kernels_simd.h"

namespace qkvshare {

const std::vector<const Kernels*>& AvailableKernels() {
  static const std::vector<const Kernels*> sets = [] {
    std::vector<const Kernels*> all = SimdKernels();
    all.push_back(&ScalarKernels());
    return all;
  }();
  return sets;
}

Result<const Kernels*> SelectKernels() {
  const std::vector<const Kernels*>& sets = AvailableKernels();
  const char* forced =
      std::getenv("QKV_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe): nothing here sets the environment
  if (forced == nullptr || *forced == '\0') return sets.front();
  const auto named = [&](const Kernels* kernels) { return std::string(forced) == kernels->name; };
  if (const auto found = std::find_if(sets.begin(), sets.end(), named); found != sets.end()) return *found;
  std::string names;
  for (const Kernels* kernels : sets) names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  return Status(StatusCode::kInvalidArgument,
                std::string("QKV_FORCE_ISA=") + forced + " is not available here; use one of: " + names);
}

size_t RotationBlock(size_t dim) { return dim & (~dim + 1); }

}  // namespace qkvshare
