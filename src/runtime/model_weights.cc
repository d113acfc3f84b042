#include "runtime/model_weights.h"

#include <algorithm>

#include "llama.h"

namespace qkvshare {

std::string DescribeWeights(const Model& model) {
  const int32_t bytes = llama_model_desc(model.handle(), nullptr, 0);
  std::string text(static_cast<size_t>(std::max(bytes, 0)) + 1, '\0');
  llama_model_desc(model.handle(), text.data(), text.size());
  text.resize(text.size() - 1);
  return text;
}

bool HasFloatWeights(const Model& model) { return DescribeWeights(model).ends_with("F32"); }

}  // namespace qkvshare
