#include "quant/kernels.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace qkvshare {

Result<const Kernels*> SelectKernels() {
  const char* forced =
      std::getenv("QKV_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe): nothing here sets the environment
  if (forced != nullptr && *forced != '\0' && std::strcmp(forced, ScalarKernels().name) != 0) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("QKV_FORCE_ISA=") + forced + " is not available; use scalar");
  }
  return &ScalarKernels();
}

size_t RotationBlock(size_t dim) { return dim & (~dim + 1); }

}  // namespace qkvshare
