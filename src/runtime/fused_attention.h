// Puts attention over cards in the place of llama.cpp's own, node by node, while its graph is computed. The graph is
// llama.cpp's: a node is turned into a custom operation just before it runs, on ggml's own threads, and is turned back
// when it is seen again.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attend/attention.h"
#include "qkvshare/status.h"
#include "runtime/attached_card.h"
#include "runtime/rope.h"

struct ggml_tensor;

namespace qkvshare {

struct FusedLayer {
  uint32_t window = 0;  // tokens that a query sees, itself included; 0: all
  LayerRope rope;       // for cards at other positions than they were packed at
};

// One decode call: what its tokens attend to besides the context's own cache.
struct FusedCall {
  struct Source {
    PlacedCard card;
    std::vector<uint32_t> tokens;  // of the call, ascending
  };
  std::vector<int32_t> tokens;  // ids; only where there are sources
  std::vector<int32_t> positions;
  std::vector<Source> sources;
  // Tokens of the call by sequence: a sequence's own rows are summed apart from the others'.
  std::map<int32_t, std::vector<uint32_t>> sequences;
};

// Of one llama.cpp context, whose cb_eval calls it. Used by one decode at a time.
class FusedAttention {
 public:
  FusedAttention(const Kernels& kernels, const AttendKernels& attend);
  ~FusedAttention();

  // What the model's layers are like; before the first call with sources.
  void SetLayers(std::vector<FusedLayer> layers) { layers_ = std::move(layers); }

  // From here to End, attention goes over the call's sources; where it has none, the graph stays as it is.
  void Begin(FusedCall call);
  // What kept attention from going over the cards, if anything did: the call's logits are then worth nothing.
  // kUnsupported; kInternal where llama.cpp's graph is not of this call.
  Status End();

  // Whether the context has cards, so that attention outside of Begin and End would not be what it seems: logits become
  // NaN then.
  void SetGuard(bool on) { guarded_ = on; }
  // Whether that has happened since the last call.
  bool TakeStray() { return std::exchange(stray_, false); }

  // cb_eval, asked: first puts the node back as llama.cpp made it, ...
  void TurnBack(ggml_tensor* node);
  // ... then, after all others have looked at it, has it computed here.
  void TakeOver(ggml_tensor* node);

 private:
  using Params = std::array<int32_t, 16>;
  // A node that was turned into ours.
  struct Node {
    int32_t op = 0;
    Params params{};
    std::unique_ptr<AttentionRun> run;  // null: its call's logits become NaN
  };

  static void Compute(ggml_tensor* node, int thread, int threads, void* self);
  void Replace(ggml_tensor* node, std::unique_ptr<AttentionRun> run);
  Status CheckInputs(const ggml_tensor* node);
  void RecordCells(const ggml_tensor* node);
  Status CheckNode(const ggml_tensor* node, int layer) const;
  const AttentionPlan& PlanFor(const AttentionShape& shape);
  std::vector<const RopeShift*> ShiftsOf(size_t layer);
  std::unique_ptr<AttentionRun> MakeRun(ggml_tensor* node, int layer);

  AttentionWorkspace workspace_;
  Params custom_params_;  // of an operation that calls Compute
  std::vector<FusedLayer> layers_;
  std::map<std::pair<size_t, int32_t>, RopeShift> shifts_;  // of a layer, by so many positions
  // Of each cell: the position that was written there last, as far as decode calls showed it; else -1. By the layers'
  // window: those with one have a cache of their own.
  std::map<uint32_t, std::vector<int32_t>> cell_positions_;
  bool guarded_ = false;
  bool stray_ = false;
  bool active_ = false;
  FusedCall call_;
  Status problem_;
  size_t layers_seen_ = 0;
  bool tokens_seen_ = false;  // among the graph's inputs, and as the call has them
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::unordered_map<const ggml_tensor*, Node> nodes_;
};

}  // namespace qkvshare
