// What there is to find out about a llama.cpp context before its cache can be taken or filled, whoever made it.
#pragma once

#include <cstdint>
#include <vector>

#include "card/card_info.h"
#include "qkvshare/status.h"
#include "runtime/cache_type.h"
#include "runtime/graph_probe.h"
#include "runtime/kv_state.h"
#include "runtime/model.h"
#include "runtime/rope.h"

struct llama_context;

namespace qkvshare {

struct ContextFacts {
  ModelIdentity identity;  // of the model as this context uses it
  StateLayout layout;
  std::vector<LayerRope> ropes;  // of each layer
  // Where it is not ok some layer's RoPE is not known, and cards can be used only at the positions that they were
  // packed at.
  Status rope_status;
  CacheType key_type = CacheType::kF16, value_type = CacheType::kF16;
  bool flash_attention = false;

  // Of each layer: tokens that a token attends to, itself included; 0: all.
  std::vector<uint32_t> windows() const;
};

// Decodes a token or two in an empty context whose cb_eval calls the probe, checks that its graph and its states are
// laid out as this software expects, and leaves it empty. kUnsupported says what is not as expected.
Result<ContextFacts> LearnContext(const Model& model, llama_context* context, GraphProbe* probe);

}  // namespace qkvshare
