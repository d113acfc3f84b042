// Looks into llama.cpp's graph while it is computed: which RoPE each layer applies, the shapes of its attention, what
// goes into its cache and which cells it sees, and the queries of a window of tokens. Reads only; the graph stays as it
// is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "card/card_info.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/rope.h"

struct ggml_tensor;

namespace qkvshare {

// Set as a context's cb_eval with itself as data; must outlive the context. Used by one decode at a time.
class GraphProbe {
 public:
  static bool Callback(ggml_tensor* tensor, bool ask, void* self);

  // What the graph does in one layer.
  struct Layer {
    LayerShape shape;
    // Values that are rotated together on their way into the cache (see RowFormat); 0: none.
    uint32_t key_rotation = 0, value_rotation = 0;
    // Of the first cells: bit i tells whether the last query sees cell i.
    uint32_t visible_cells = 0;
    LayerRope rope;                        // of queries and keys, before key_rotation
    int32_t key_type = 0, value_type = 0;  // of the cache: ggml's numbers
    uint32_t cells = 0;                    // of the cache, for all sequences
  };
  struct Description {
    Digest rope{};  // of every distinct RoPE in graph order, frequency factors included
    RopeParams first_rope;
    std::vector<Layer> layers;
    // Whether every layer's rope is known; kUnsupported names the first layer where it is not, and why.
    Status rope_status;
    bool flash_attention = false;
  };
  // The next decode records RoPE nodes and attention, until Finish.
  void StartDescribing();
  // kUnsupported where a layer's attention or cache cannot be used (ALiBi, several streams, an unknown rotation).
  Result<Description> FinishDescribing();

  // The next decode keeps the queries of its tokens [first_row, end), as they are in attention: rotated where keys are.
  // Flash attention only. The nodes before and after each attention are computed apart, so it costs a little.
  void CaptureFrom(uint32_t first_row) { capture_from_ = first_row, capturing_ = true; }
  void StopCapturing() { capturing_ = false; }
  // The queries that all captures since the last call kept, layer by layer; last_visible and windows are left to the
  // caller.
  std::vector<LayerQueries> TakeQueries();

 private:
  void Describe(const ggml_tensor* node);
  void DescribeRope(const ggml_tensor* node);
  void DescribeStore(const ggml_tensor* node);
  void DescribeAttention(const ggml_tensor* node);
  void DescribeScores(const ggml_tensor* node);
  void DescribeMask(const ggml_tensor* mask, float max_bias);
  void AddLayer(const ggml_tensor* q, const ggml_tensor* k, size_t value_dim);
  void AddValues(const ggml_tensor* v);
  void AddRope(const ggml_tensor* q);
  void Refuse(const char* what);
  void Capture(const ggml_tensor* node);

  bool describing_ = false;
  bool capturing_ = false;
  uint32_t capture_from_ = 0;
  std::vector<uint8_t> ropes_;  // parameters and factors of each distinct RoPE
  std::vector<uint8_t> last_rope_;
  RopeParams first_rope_;
  std::vector<Layer> layers_;
  bool flash_attention_ = false;
  // Of the layer whose attention comes next.
  uint32_t next_key_rotation_ = 0, next_value_rotation_ = 0;
  const ggml_tensor *next_keys_ = nullptr, *next_values_ = nullptr;  // that it stores
  std::vector<const ggml_tensor*> next_ropes_;
  Status rope_status_;
  Status problem_;
  std::vector<LayerQueries> queries_;
};

}  // namespace qkvshare
