// Attention of one llama.cpp layer over packed cards and the receiver's own cache (docs/attention.md).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attend/attend_kernels.h"
#include "attend/attention_card.h"
#include "quant/kernels.h"

namespace qkvshare {

// Where tokens of a decode call attend to.
struct AttentionSource {
  const AttentionCard* card = nullptr;  // null: the receiver's own cache
  int32_t shift = 0;                    // added to the card's positions
  int32_t end = INT32_MAX;              // tokens of the card at this position of its own and on are not seen
  std::vector<uint32_t> tokens;         // those of the decode call that see it, ascending
};

// The same for every layer of a decode call that has these sizes.
struct AttentionShape {
  uint32_t tokens = 0;
  uint32_t heads = 0, kv_heads = 0;
  uint32_t key_dim = 0, value_dim = 0;  // multiples of 8, at most kMaxHeadDim
  uint32_t cells = 0;                   // of the own cache

  uint32_t group() const { return heads / kv_heads; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// FP16 rows of the own cache: cell i of KV head h at data + i * cell_stride + h * head_stride (in values).
struct OwnRows {
  const Half* data = nullptr;
  size_t cell_stride = 0, head_stride = 0;
};

// One layer's part of a decode call.
struct AttentionNode {
  size_t layer = 0;
  float scale = 1;
  float softcap = 0;                   // 0: none
  uint32_t window = 0;                 // 0: all positions are seen
  const float* sinks = nullptr;        // [heads], or null
  const int32_t* positions = nullptr;  // [tokens]
  const float* q = nullptr;            // token i, head h at q + i * q_token_stride + h * q_head_stride
  size_t q_token_stride = 0, q_head_stride = 0;
  OwnRows keys, values;
  const Half* mask = nullptr;  // token i, cell j at mask + i * mask_stride + j
  size_t mask_stride = 0;
  // Of each cell, or negative: not known. Cells of which all are known are taken in ascending order of it, so that it
  // does not matter to the last bit which cells were free when they were filled; others, and all where it is null, as
  // they lie.
  const std::vector<int32_t>* cell_order = nullptr;
  // Rotates a query [key_dim] for the source of this index, which has a shift. May be empty if none has.
  std::function<void(size_t source, float* q)> rotate;
  float* out = nullptr;  // [tokens, heads, value_dim]
};

// Memory that decode calls use again and again. One for each llama.cpp context.
class AttentionWorkspace;

// How the work of a decode call is cut into items. Depends on shape and sources only, not on threads.
class AttentionPlan {
 public:
  // The sources' cards outlive the plan.
  AttentionPlan(const AttentionShape& shape, std::vector<AttentionSource> sources);

  const AttentionShape& shape() const { return shape_; }
  const std::vector<AttentionSource>& sources() const { return sources_; }

 private:
  friend class AttentionRun;
  friend class AttentionWorkspace;
  friend class AttentionWorker;

  // Rows of one source and one group of tokens; the same for each KV head.
  struct Unit {
    uint32_t source = 0;
    uint32_t first = 0, tokens = 0;  // in the source's list
    size_t row = 0;                  // of its first query in the workspace
    size_t cells = 0;                // of the own cache: its list of visible ones in the workspace
  };
  struct Item {
    uint32_t unit = 0, kv_head = 0, group = 0;
    uint32_t begin = 0, end = 0;  // blocks of the card, or of the cells that its unit sees
    size_t partial = 0;           // of its first row in the workspace
  };
  // Items whose results are merged: of one group of tokens and one KV head.
  struct Group {
    uint32_t first_token = 0, tokens = 0, kv_head = 0;
    uint32_t first_item = 0, items = 0;
  };

  void AddItems(Item item, uint32_t range_tokens);
  // Rows of an item at most.
  static size_t MaxRows(const AttentionShape& shape);

  AttentionShape shape_;
  std::vector<AttentionSource> sources_;
  std::vector<Unit> units_;
  std::vector<Item> items_;
  std::vector<Group> groups_;
  size_t query_rows_ = 0;  // of one KV head
  size_t partial_rows_ = 0;
  size_t own_units_ = 0;
};

class AttentionWorkspace {
 public:
  static constexpr int kMaxThreads = 512;  // ggml's GGML_MAX_N_THREADS

  AttentionWorkspace(const Kernels& kernels, const AttendKernels& attend);
  ~AttentionWorkspace();
  AttentionWorkspace(const AttentionWorkspace&) = delete;
  AttentionWorkspace& operator=(const AttentionWorkspace&) = delete;

  // Makes room for the plan; there may be several, whose runs follow each other. Not while a run is under way.
  void Reserve(const AttentionPlan& plan);

 private:
  friend class AttentionRun;
  friend class AttentionWorker;
  struct Queries;
  struct Scratch;

  const Kernels& kernels_;
  const AttendKernels& attend_;
  std::unique_ptr<Queries> queries_;
  std::vector<float> partials_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // of each thread, made by it
};

// The computation of one node, on as many threads as call Run.
class AttentionRun {
 public:
  AttentionRun(const AttentionPlan& plan, AttentionNode node, AttentionWorkspace* workspace);

  // Before the threads come, each time.
  void Reset();
  // Each thread calls it once with a number of its own, below AttentionWorkspace::kMaxThreads; out is written when all
  // have returned.
  void Run(int thread);

 private:
  friend class AttentionWorker;

  const AttentionPlan& plan_;
  const AttentionNode node_;
  AttentionWorkspace* workspace_;
  std::atomic<uint32_t> next_query_{0}, queries_done_{0}, next_item_{0};
  std::vector<std::atomic<uint32_t>> items_left_;  // of each group
};

}  // namespace qkvshare
