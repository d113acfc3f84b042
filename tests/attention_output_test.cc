// What attention over an exact card gives, layer by layer, against what llama.cpp's own gives over the same rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ggml.h"
#include "llama.h"
#include "tests/llama_app.h"
#include "tests/shape_fixture.h"

namespace qkvshare {
namespace {

// Against attention in doubles over llama.cpp's own queries, rows and mask. llama.cpp's is up to 0.0017 off: it rounds
// queries to FP16, and sums in FP16.
constexpr double kOutputError = 1e-3;
constexpr double kLlamaError = 3e-3;
// In later layers the inputs differ, too.
constexpr double kLaterError = 6e-3;

double HalfAt(const ggml_tensor* rows, int64_t channel, int64_t row, int64_t head) {
  const auto* at = static_cast<const char*>(rows->data) + row * static_cast<int64_t>(rows->nb[1]) +
                   head * static_cast<int64_t>(rows->nb[2]);
  return ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(at)[channel]);
}

double ParamOf(const ggml_tensor* node, int i) {
  float x = 0;
  std::memcpy(&x, &node->op_params[i], sizeof x);
  return x;
}

// One row of the node's output by definition.
void AddRow(const ggml_tensor* node, int64_t token, int64_t head, std::vector<float>* out) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3],
                    *sinks = node->src[4];
  const int64_t kv_head = head / (q->ne[2] / k->ne[2]);
  const auto* query =
      reinterpret_cast<const float*>(static_cast<const char*>(q->data) + token * static_cast<int64_t>(q->nb[1]) +
                                     head * static_cast<int64_t>(q->nb[2]));
  const double scale = ParamOf(node, 0), softcap = ParamOf(node, 2);
  double sum = sinks != nullptr ? std::exp(double{static_cast<const float*>(sinks->data)[head]}) : 0.0;
  std::vector<double> acc(static_cast<size_t>(v->ne[0]));
  for (int64_t cell = 0; cell < k->ne[1]; ++cell) {
    const double bias = HalfAt(mask, cell, token, 0);
    if (std::isinf(bias)) continue;
    double score = 0;
    for (int64_t c = 0; c < k->ne[0]; ++c) score += double{query[c]} * HalfAt(k, c, cell, kv_head);
    score *= scale;
    if (softcap != 0) score = softcap * std::tanh(score / softcap);
    const double weight = std::exp(score + bias);  // scores of tiny models are small
    sum += weight;
    for (size_t c = 0; c < acc.size(); ++c) acc[c] += weight * HalfAt(v, static_cast<int64_t>(c), cell, kv_head);
  }
  for (const double x : acc) out->push_back(static_cast<float>(x / sum));
}

// Keeps the outputs of the attention nodes, and what the first one's should be.
struct Outputs {
  std::vector<std::vector<float>> layers;
  std::vector<float> expected;

  static bool Callback(ggml_tensor* node, bool ask, void* self) {
    if (ask) return node->op == GGML_OP_FLASH_ATTN_EXT;
    auto* outputs = static_cast<Outputs*>(self);
    const auto* data = static_cast<const float*>(node->data);
    outputs->layers.emplace_back(data, data + ggml_nelements(node));
    if (outputs->layers.size() > 1) return true;
    for (int64_t token = 0; token < node->src[0]->ne[1]; ++token) {
      for (int64_t head = 0; head < node->src[0]->ne[2]; ++head) AddRow(node, token, head, &outputs->expected);
    }
    return true;
  }
};

class AttentionOutputTest : public ShapeFixture<LlamaApiTest> {
 protected:
  // What attention of the suffix over an exact card gives.
  Outputs OutputsOf(const App& app, qkv_inject mode) {
    Outputs outputs;
    llama_context_params params = Context::Params();
    params.swa_full = true;
    params.cb_eval = Outputs::Callback;
    params.cb_eval_user_data = &outputs;
    const auto context = Bound(app, params);
    Take(context->attention.Inject(0, CardOf(*sender_, 16), mode));
    context->LogitsAfter(suffix_);
    return outputs;
  }
};

TEST_P(AttentionOutputTest, IsThatOverLlamaCppsOwnRows) {
  const App app(Model());
  const Outputs native = OutputsOf(app, QKV_INJECT_RESTORE);
  const Outputs fused = OutputsOf(app, QKV_INJECT_FUSED);
  ASSERT_GE(native.layers.size(), 2u);
  ASSERT_EQ(native.layers.size(), fused.layers.size());
  EXPECT_LT(RelativeError(fused.layers[0], native.expected), kOutputError);
  EXPECT_LT(RelativeError(native.layers[0], native.expected), kLlamaError);
  for (size_t layer = 1; layer < native.layers.size(); ++layer)
    EXPECT_LT(RelativeError(fused.layers[layer], native.layers[layer]), kLaterError) << layer;
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionOutputTest, testing::ValuesIn(kShapes), ShapeName);

}  // namespace
}  // namespace qkvshare
