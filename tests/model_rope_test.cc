// The RoPE that GraphProbe finds in each layer of models, in llama.cpp's own graphs.
#include <gtest/gtest.h>
#include <llama.h>

#include <memory>

#include "runtime/backend.h"
#include "runtime/graph_probe.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};

class ModelRope : public SessionTest {
 protected:
  static llama_context_params Params() {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified = true;
    return params;
  }
  GraphProbe::Description Describe(const TinyModelSpec& spec, llama_context_params params = Params()) {
    const Status written = WriteTinyModel(spec, Path("model.gguf"));
    EXPECT_TRUE(written.ok()) << written.message();
    InitBackend();
    const std::unique_ptr<llama_model, ModelFree> model(
        llama_model_load_from_file(Path("model.gguf").c_str(), llama_model_default_params()));
    GraphProbe probe;
    params.cb_eval = GraphProbe::Callback;
    params.cb_eval_user_data = &probe;
    const std::unique_ptr<llama_context, ContextFree> context(llama_init_from_model(model.get(), params));
    EXPECT_NE(context, nullptr);
    probe.StartDescribing();
    llama_token token = 5;
    EXPECT_EQ(llama_decode(context.get(), llama_batch_get_one(&token, 1)), 0);
    return Take(probe.FinishDescribing());
  }
  static TinyModelSpec Spec(const char* architecture, int layers = 2) {
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.layers = layers;
    return spec;
  }
};

// What llama.cpp passes where neither model nor context asks for YaRN.
LayerRope Plain(RopeMode mode, float base, int context) {
  LayerRope rope;
  rope.dims = 64;
  rope.mode = mode;
  rope.base = base;
  rope.beta_fast = 32;
  rope.beta_slow = 1;
  rope.original_context = context;
  return rope;
}

TEST_F(ModelRope, OfOneKindInAllLayers) {
  for (const bool flash_attention : {true, false}) {
    llama_context_params params = Params();
    if (!flash_attention) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    for (const char* architecture : {"llama", "qwen2", "gemma3", "plamo3"}) {
      const GraphProbe::Description description = Describe(Spec(architecture), params);
      EXPECT_TRUE(description.rope_status.ok()) << description.rope_status.message();
      const bool norm = std::string(architecture) == "llama";
      for (const GraphProbe::Layer& layer : description.layers) {
        EXPECT_EQ(layer.rope, Plain(norm ? RopeMode::kNorm : RopeMode::kNeox, 10000, 2048)) << architecture;
      }
    }
  }
}

TEST_F(ModelRope, TwoBasesAndAPartOfTheChannels) {
  TinyModelSpec spec = Spec("gemma3", 4);
  spec.sliding_window = 16;
  spec.rope_base = 1e6F;
  spec.rope_base_window = 500.0F;
  spec.rope_dims = 32;
  const GraphProbe::Description description = Describe(spec);
  ASSERT_TRUE(description.rope_status.ok()) << description.rope_status.message();
  for (size_t i = 0; i < 4; ++i) {
    LayerRope expected = Plain(RopeMode::kNeox, i % 2 == 0 ? 500.0F : 1e6F, 2048);
    expected.dims = 32;
    EXPECT_EQ(description.layers[i].rope, expected) << i;
  }
}

TEST_F(ModelRope, LayersWithoutRope) {
  const GraphProbe::Description description = Describe(Spec("smollm3", 8));
  ASSERT_TRUE(description.rope_status.ok()) << description.rope_status.message();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(description.layers[i].rope, i % 4 == 3 ? LayerRope{} : Plain(RopeMode::kNorm, 10000, 2048)) << i;
  }
}

TEST_F(ModelRope, YarnAndLinearScalingOfTheContext) {
  llama_context_params params = Params();
  params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
  params.rope_freq_scale = 0.25F;
  params.rope_freq_base = 5000;
  params.yarn_orig_ctx = 512;
  params.yarn_beta_fast = 16;
  const LayerRope yarn = Describe(Spec("qwen2"), params).layers[1].rope;
  LayerRope expected = Plain(RopeMode::kNeox, 5000, 512);
  expected.scale = 0.25F;
  expected.ext_factor = 1;
  expected.beta_fast = 16;
  expected.attn_factor = yarn.attn_factor;  // llama.cpp's own formula; a shift does not need it
  EXPECT_EQ(yarn, expected);
  params = Params();
  params.rope_freq_scale = 0.5F;
  expected = Plain(RopeMode::kNorm, 10000, 2048);
  expected.scale = 0.5F;
  EXPECT_EQ(Describe(Spec("llama"), params).layers[1].rope, expected);
}

TEST_F(ModelRope, FactorsOfTheContext) {
  TinyModelSpec spec = Spec("llama");
  spec.rope_scaling = "longrope";
  const GraphProbe::Description description = Describe(spec);
  ASSERT_TRUE(description.rope_status.ok()) << description.rope_status.message();
  EXPECT_EQ(description.layers[1].rope.factors, std::vector<float>(32, 1.0F));
  llama_context_params params = Params();
  params.n_ctx = 2048;
  const std::vector<float> factors = Describe(spec, params).layers[1].rope.factors;
  ASSERT_EQ(factors.size(), 32u);
  for (size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(factors[i], 1.0F + 0.1F * static_cast<float>(i));
}

// Keys of quantized caches are turned before llama.cpp rotates them.
TEST_F(ModelRope, BehindTheRotationOfAQuantizedCache) {
  llama_context_params params = Params();
  params.type_k = params.type_v = GGML_TYPE_Q8_0;
  const GraphProbe::Description description = Describe(Spec("qwen2"), params);
  ASSERT_TRUE(description.rope_status.ok()) << description.rope_status.message();
  EXPECT_EQ(description.layers[1].key_rotation, 64u);
  EXPECT_EQ(description.layers[1].rope, Plain(RopeMode::kNeox, 10000, 2048));
}

TEST_F(ModelRope, SeveralPositionsATokenAreRefusedByName) {
  const GraphProbe::Description description = Describe(Spec("qwen2vl"));
  EXPECT_EQ(description.rope_status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(description.rope_status.message(),
            "layer 0: RoPE is of type MROPE; cards of this model can be used only at the positions that they were made "
            "at");
}

}  // namespace
}  // namespace qkvshare
