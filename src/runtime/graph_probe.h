// Looks into llama.cpp's graph while it is computed: which RoPE each layer applies, the shapes of its attention, and
// the queries of a window of tokens. Reads only; the graph stays as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "card/card_info.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"

struct ggml_tensor;

namespace qkvshare {

// Set as a context's cb_eval with itself as data; must outlive the context. Used by one decode at a time.
class GraphProbe {
 public:
  static bool Callback(ggml_tensor* tensor, bool ask, void* self);

  // The next decodes record RoPE nodes and attention shapes, until Finish.
  void StartDescribing();
  struct Description {
    Digest rope{};  // of every distinct RoPE in graph order, frequency factors included
    RopeParams first_rope;
    std::vector<LayerShape> shapes;
  };
  // kUnsupported where a layer's attention cannot be used (no flash attention node, ALiBi, several streams).
  Result<Description> FinishDescribing();

  // The next decode keeps the queries of its tokens [first_row, end). The nodes before and after each attention are
  // computed apart, so it costs a little.
  void CaptureFrom(uint32_t first_row) { capture_from_ = first_row, capturing_ = true; }
  void StopCapturing() { capturing_ = false; }
  // The queries that all captures since the last call kept, layer by layer; last_visible is left to the caller.
  std::vector<LayerQueries> TakeQueries();

 private:
  void Describe(const ggml_tensor* node);
  void DescribeRope(const ggml_tensor* node);
  void DescribeAttention(const ggml_tensor* node);
  void Capture(const ggml_tensor* node);

  bool describing_ = false;
  bool capturing_ = false;
  uint32_t capture_from_ = 0;
  std::vector<uint8_t> ropes_;  // parameters and factors of each distinct RoPE
  std::vector<uint8_t> last_rope_;
  RopeParams first_rope_;
  std::vector<LayerShape> shapes_;  // by layer
  Status problem_;
  std::vector<LayerQueries> queries_;
};

}  // namespace qkvshare
