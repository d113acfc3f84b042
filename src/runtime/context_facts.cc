#include "runtime/context_facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "llama.h"
#include "runtime/backend.h"
#include "runtime/batch.h"

namespace qkvshare {
namespace {

// Decodes one token, and tells what its graph did.
Result<GraphProbe::Description> DescribeToken(const Model& model, llama_context* context, size_t position,
                                              GraphProbe* probe) {
  const llama_token bos = llama_vocab_bos(model.vocab());
  Batch batch(1, 0);
  batch.Add(bos >= 0 ? bos : 0, position, /*logits=*/true);
  probe->StartDescribing();
  const Status decoded = DecodeStatus(llama_decode(context, batch.get()));
  Result<GraphProbe::Description> description = probe->FinishDescribing();
  if (!decoded.ok()) return decoded;
  return description;
}

// Refused here rather than after a long prefill.
Status CheckLayers(const std::vector<GraphProbe::Layer>& layers, uint32_t cells) {
  for (const GraphProbe::Layer& layer : layers) {
    for (const size_t dim : {layer.shape.dim(Side::kKeys), layer.shape.dim(Side::kValues)}) {
      if (dim % 8 == 0 && dim <= kMaxHeadDim) continue;
      return {StatusCode::kUnsupported,
              fmt::format("the model's head size is {}; cards take multiples of 8 up to {}", dim, kMaxHeadDim)};
    }
    if (layer.cells < cells) {
      return {StatusCode::kUnsupported, fmt::format("the cache of some layers has {} rows for a context of {} tokens: "
                                                    "make the context with swa_full = true",
                                                    layer.cells, cells)};
    }
  }
  return {};
}

Result<std::vector<uint8_t>> StateOf(llama_context* context) {
  std::vector<uint8_t> state(llama_state_seq_get_size(context, 0));
  if (state.empty() || llama_state_seq_get_data(context, state.data(), state.size(), 0) != state.size())
    return Status(StatusCode::kUnsupported, "llama.cpp cannot save a state" + LlamaErrorSuffix());
  return state;
}

// Looks at what a token sees that is just one window after the first: with a sliding window all but that one.
Status FindWindows(const Model& model, llama_context* context, ByteSpan one_token_state, GraphProbe* probe,
                   std::vector<LayerFormat>* formats) {
  const auto window = static_cast<uint32_t>(llama_model_n_swa(model.handle()));
  std::vector<int32_t> positions = {0, 1, static_cast<int32_t>(window) - 1};
  if (window < 3) positions.resize(window);
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, RepeatToken(one_token_state, positions));
  llama_memory_clear(llama_get_memory(context), /*data=*/true);
  const size_t read = llama_state_seq_set_data(context, state.data(), state.size(), 0);
  if (read != state.size()) return {StatusCode::kUnsupported, "llama.cpp refused a state" + LlamaErrorSuffix()};
  QKV_ASSIGN_OR_RETURN(const GraphProbe::Description description, DescribeToken(model, context, window, probe));
  const uint32_t all = (1u << (positions.size() + 1)) - 1;
  for (size_t layer = 0; layer < formats->size(); ++layer) {
    const uint32_t visible = description.layers[layer].visible_cells & all;
    if (visible != all && visible != (all & ~1u)) {
      return {StatusCode::kUnsupported,
              fmt::format("layer {} attends to something else than a sliding window of {} tokens", layer, window)};
    }
    (*formats)[layer].window = visible == all ? 0 : window;
  }
  return {};
}

}  // namespace

std::vector<uint32_t> ContextFacts::windows() const {
  std::vector<uint32_t> windows;
  for (const LayerFormat& format : layout.formats) windows.push_back(format.window);
  return windows;
}

Result<ContextFacts> LearnContext(const Model& model, llama_context* context, GraphProbe* probe) {
  QKV_ASSIGN_OR_RETURN(const GraphProbe::Description description, DescribeToken(model, context, 0, probe));
  QKV_RETURN_IF_ERROR(CheckLayers(description.layers, llama_n_ctx(context)));
  ContextFacts facts;
  facts.flash_attention = description.flash_attention;
  QKV_ASSIGN_OR_RETURN(facts.key_type, CacheTypeFromGgml(description.layers.front().key_type));
  QKV_ASSIGN_OR_RETURN(facts.value_type, CacheTypeFromGgml(description.layers.front().value_type));
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, StateOf(context));
  std::vector<LayerShape> shapes;
  std::vector<LayerFormat> formats;
  for (const GraphProbe::Layer& layer : description.layers) {
    shapes.push_back(layer.shape);
    facts.ropes.push_back(layer.rope);
    formats.push_back({{facts.key_type, layer.key_rotation}, {facts.value_type, layer.value_rotation}});
  }
  if (llama_model_n_swa(model.handle()) > 0) QKV_RETURN_IF_ERROR(FindWindows(model, context, state, probe, &formats));
  QKV_ASSIGN_OR_RETURN(facts.layout, LearnStateLayout(state, shapes, formats, !facts.flash_attention));
  facts.rope_status = description.rope_status;
  facts.identity = {model.fingerprint(), description.rope, description.first_rope};
  llama_memory_clear(llama_get_memory(context), /*data=*/true);
  return facts;
}

}  // namespace qkvshare
