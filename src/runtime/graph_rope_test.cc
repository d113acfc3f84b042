// FindRope on graphs as llama.cpp's models build them. What it finds has to hold: a query of a graph at one position,
// shifted, is the query of the same graph at another.
#include "runtime/graph_rope.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

constexpr int64_t kDim = 32, kHeads = 4, kTokens = 3;

// Builds queries and keys, [kDim, kHeads, kTokens] each, on weights and inputs of random numbers.
class Graph {
 public:
  explicit Graph(int64_t tokens = kTokens) : context_(ggml_init({size_t{1} << 20, nullptr, /*no_alloc=*/true})) {
    InitBackend();
    positions_ = ggml_new_tensor_1d(get(), GGML_TYPE_I32, tokens);
  }

  ggml_context* get() const { return context_.get(); }
  ggml_tensor* Leaf(int64_t a, int64_t b = 1, int64_t c = 1) {
    return leaves_.emplace_back(ggml_new_tensor_3d(get(), GGML_TYPE_F32, a, b, c));
  }
  ggml_tensor* Heads() { return Leaf(kDim, kHeads, kTokens); }
  // The Hadamard matrix, as llama.cpp multiplies by it where its cache is quantized.
  ggml_tensor* Rotate(ggml_tensor* x, int64_t n) {
    ggml_tensor* hadamard = ggml_new_tensor_2d(get(), GGML_TYPE_F32, n, n);
    ggml_set_input(hadamard);
    ggml_tensor* rows = ggml_reshape_2d(get(), x, n, ggml_nelements(x) / n);
    return ggml_reshape_3d(get(), ggml_mul_mat(get(), hadamard, rows), x->ne[0], x->ne[1], x->ne[2]);
  }
  // Turns the first `dims` channels; noted for FindRope.
  ggml_tensor* Rope(ggml_tensor* x, int dims, int mode = GGML_ROPE_TYPE_NEOX, float base = 10000) {
    ggml_tensor* rope =
        ggml_rope_ext(get(), x, positions_, nullptr, dims, mode, 0, base, 1, 0, /*attn_factor=*/1.5f, 32, 1);
    ropes_.push_back(rope);
    return rope;
  }
  ggml_tensor* OtherPositions(ggml_tensor* rope) {
    rope->src[1] = ggml_new_tensor_1d(get(), GGML_TYPE_I32, kTokens);
    return rope;
  }

  // As llama.cpp hands queries to attention, and keys and values to the cache.
  Result<LayerRope> Find(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v) {
    attended_ = ggml_permute(get(),
                             ggml_view_4d(get(), q, q->ne[0], q->ne[1], q->ne[2], 1, q->nb[1], q->nb[2],
                                          q->nb[2] * static_cast<size_t>(q->ne[2]), 0),
                             0, 2, 1, 3);
    const auto stored = [this](ggml_tensor* x) {
      return ggml_view_2d(get(), x, x->ne[0] * x->ne[1], x->ne[2], x->nb[2], 0);
    };
    return FindRope(attended_, stored(k), stored(v), ropes_);
  }

  // The queries [heads, tokens, dim] where token t is at first + t.
  std::vector<float> Compute(int32_t first) {
    if (buffer_ == nullptr) Allocate();
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < kTokens; ++t) positions.push_back(first + t);
    ggml_backend_tensor_set(positions_, positions.data(), 0, ggml_nbytes(positions_));
    ggml_tensor* rows = ggml_get_tensor(get(), "result");
    ggml_cgraph* graph = ggml_new_graph(get());
    ggml_build_forward_expand(graph, rows);
    EXPECT_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
    std::vector<float> values(static_cast<size_t>(ggml_nelements(rows)));
    ggml_backend_tensor_get(rows, values.data(), 0, ggml_nbytes(rows));
    return values;
  }

 private:
  void Allocate() {
    ggml_set_name(ggml_cont(get(), attended_), "result");
    backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    buffer_.reset(ggml_backend_alloc_ctx_tensors(get(), backend_.get()));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (ggml_tensor* leaf : leaves_) {
      std::vector<float> values(static_cast<size_t>(ggml_nelements(leaf)));
      for (float& x : values) x = normal(random);
      ggml_backend_tensor_set(leaf, values.data(), 0, ggml_nbytes(leaf));
    }
  }

  ggml_context_ptr context_;
  ggml_backend_ptr backend_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor *positions_ = nullptr, *attended_ = nullptr;
  std::vector<ggml_tensor*> leaves_;
  std::vector<const ggml_tensor*> ropes_;
};

using Build = std::function<ggml_tensor*(Graph*)>;

// The queries are built by q; the keys turn `dims` channels from `first` on.
struct Accepted {
  std::string name;
  uint32_t first, dims;
  Build q;
};

ggml_tensor* TurnedAt(Graph* graph, ggml_tensor* x, int first, int dims) {
  return ggml_rope_set_offset(graph->Rope(x, dims), first);
}

ggml_tensor* Part(Graph* graph, ggml_tensor* x, int64_t first, int64_t dims) {
  return ggml_view_3d(graph->get(), x, dims, x->ne[1], x->ne[2], x->nb[1], x->nb[2],
                      static_cast<size_t>(first) * sizeof(float));
}

std::vector<Accepted> AcceptedQueries() {
  return {
      {"whole heads", 0, 32, [](Graph* g) { return g->Rope(g->Heads(), 32); }},
      {"first channels", 0, 8, [](Graph* g) { return g->Rope(g->Heads(), 8); }},
      {"last channels", 24, 8, [](Graph* g) { return TurnedAt(g, g->Heads(), 24, 8); }},
      {"scaled", 0, 32, [](Graph* g) { return ggml_scale(g->get(), g->Rope(g->Heads(), 32), 0.125f); }},
      {"scaled by token", 0, 32,
       [](Graph* g) { return ggml_mul(g->get(), g->Rope(g->Heads(), 32), g->Leaf(1, 1, kTokens)); }},
      {"normed", 0, 16, [](Graph* g) { return ggml_rms_norm(g->get(), g->Rope(g->Heads(), 16), 1e-5f); }},
      {"a turned part behind another", 24, 8,
       [](Graph* g) {
         ggml_tensor* x = g->Heads();
         return ggml_concat(g->get(), Part(g, x, 0, 24), g->Rope(Part(g, x, 24, 8), 8), 0);
       }},
      {"a turned part before another", 0, 8,
       [](Graph* g) {
         ggml_tensor* x = g->Heads();
         return ggml_concat(g->get(), g->Rope(Part(g, x, 24, 8), 8), Part(g, x, 0, 24), 0);
       }},
      {"one turned part for all heads", 24, 8,
       [](Graph* g) {
         ggml_tensor* shared = g->Rope(g->Leaf(8, 1, kTokens), 8);
         return ggml_concat(g->get(), g->Leaf(24, kHeads, kTokens),
                            ggml_repeat_4d(g->get(), shared, 8, kHeads, kTokens, 1), 0);
       }},
      {"a part of turned heads", 8, 16,
       [](Graph* g) { return Part(g, TurnedAt(g, g->Leaf(48, kHeads, kTokens), 16, 16), 8, 32); }},
      {"some of the heads", 0, 32,
       [](Graph* g) {
         ggml_tensor* x = g->Rope(g->Leaf(32, kHeads + 3, kTokens), 32);
         return ggml_view_3d(g->get(), x, 32, kHeads, kTokens, x->nb[1], x->nb[2], 2 * x->nb[1]);
       }},
  };
}

// Behind the rotation of a quantized cache too, where a shift of the queries themselves would be wrong.
TEST(FindRope, FindsWhichChannelsTurn) {
  for (const Accepted& accepted : AcceptedQueries()) {
    for (const int64_t rotation : {0, 16, 32}) {
      Graph graph;
      ggml_tensor* q = accepted.q(&graph);
      ggml_tensor* k =
          TurnedAt(&graph, graph.Heads(), static_cast<int>(accepted.first), static_cast<int>(accepted.dims));
      if (rotation > 0) q = graph.Rotate(ggml_cont(graph.get(), q), rotation), k = graph.Rotate(k, rotation);
      const Result<LayerRope> rope = graph.Find(q, k, graph.Heads());
      ASSERT_TRUE(rope) << accepted.name << ": " << rope.status().message();
      EXPECT_EQ(rope->first, accepted.first) << accepted.name;
      EXPECT_EQ(rope->dims, accepted.dims) << accepted.name;
      EXPECT_EQ(rope->mode, RopeMode::kNeox);
      if (rotation > 0) continue;
      std::vector<float> shifted = graph.Compute(60);
      RopeShift(*rope, 40).Apply(shifted.data(), kHeads * kTokens, kDim);
      const std::vector<float> expected = graph.Compute(20);
      for (size_t i = 0; i < shifted.size(); ++i) ASSERT_NEAR(shifted[i], expected[i], 1e-4) << accepted.name;
    }
  }
}

// Of one token and one head every part of a row lies in one piece.
TEST(FindRope, TakesAPartOfTheOnlyRow) {
  Graph graph(1);
  ggml_tensor* q = Part(&graph, TurnedAt(&graph, graph.Leaf(48), 0, 16), 0, 32);
  const Result<LayerRope> rope = graph.Find(q, TurnedAt(&graph, graph.Leaf(32), 0, 16), graph.Leaf(32));
  ASSERT_TRUE(rope) << rope.status().message();
  EXPECT_EQ(rope->dims, 16u);
}

TEST(FindRope, ALayerWithoutRopeHasNone) {
  Graph graph;
  const Result<LayerRope> rope = graph.Find(ggml_scale(graph.get(), graph.Heads(), 2), graph.Heads(), graph.Heads());
  ASSERT_TRUE(rope) << rope.status().message();
  EXPECT_EQ(*rope, LayerRope{});
}

struct Refused {
  std::string message;
  Build q, k, v;
};

std::vector<Refused> RefusedGraphs() {
  const Build plain = [](Graph* g) { return g->Heads(); };
  const Build turned = [](Graph* g) { return g->Rope(g->Heads(), 32); };
  const auto turned_with = [](int dims, int mode, float base) {
    return [=](Graph* g) { return g->Rope(g->Heads(), dims, mode, base); };
  };
  const std::string hidden = "RoPE is applied in a way that queries and keys do not show";
  const std::string different = "RoPE turns queries and keys differently";
  return {
      {"RoPE turns queries but not keys", turned, plain, plain},
      {"RoPE turns keys but not queries", plain, turned, plain},
      {different, turned, turned_with(32, GGML_ROPE_TYPE_NEOX, 500), plain},
      {different, turned, turned_with(16, GGML_ROPE_TYPE_NEOX, 10000), plain},
      {different, turned, turned_with(32, GGML_ROPE_TYPE_NORMAL, 10000), plain},
      {different, turned_with(8, GGML_ROPE_TYPE_NEOX, 10000), [](Graph* g) { return TurnedAt(g, g->Heads(), 24, 8); },
       plain},
      {different, [=](Graph* g) { return g->OtherPositions(turned(g)); }, turned, plain},
      {hidden, [=](Graph* g) { return ggml_mul(g->get(), turned(g), g->Leaf(kDim)); }, turned, plain},  // by channel
      {hidden, [=](Graph* g) { return ggml_add(g->get(), turned(g), g->Leaf(kDim)); }, turned, plain},
      {hidden, [=](Graph* g) { return ggml_scale_bias(g->get(), turned(g), 1, 0.5f); }, turned, plain},
      {hidden, [=](Graph* g) { return ggml_mul_mat(g->get(), g->Leaf(kDim, kDim), turned(g)); }, turned, plain},
      {hidden, [=](Graph* g) { return g->Rope(turned(g), 32); }, turned, plain},  // twice
      {hidden,
       [](Graph* g) {
         ggml_tensor* x = g->Heads();
         return ggml_concat(g->get(), g->Rope(Part(g, x, 0, 16), 16), g->Rope(Part(g, x, 16, 16), 16), 0);
       },
       turned, plain},
      {hidden,  // some of the turned channels only
       [](Graph* g) { return Part(g, TurnedAt(g, g->Leaf(48, kHeads, kTokens), 0, 32), 8, 32); }, turned, plain},
      {hidden, [](Graph* g) { return Part(g, TurnedAt(g, g->Leaf(48, kHeads, kTokens), 16, 32), 0, 32); }, turned,
       plain},
      {hidden,  // heads that are not those that turn
       [](Graph* g) { return ggml_reshape_3d(g->get(), g->Rope(g->Leaf(24, 16, kTokens), 24), 32, 12, kTokens); },
       turned, plain},
      {hidden, turned, turned, [=](Graph* g) { return turned(g); }},
      {"RoPE is of type 72",
       [](Graph* g) {
         ggml_tensor* x = g->Rope(g->Heads(), 32);
         x->op_params[2] = 8 + 64;
         return x;
       },
       turned, plain},
  };
}

TEST(FindRope, RefusesWhatCannotBeToldByName) {
  int at = 0;
  for (const Refused& refused : RefusedGraphs()) {
    Graph graph;
    ggml_tensor *q = refused.q(&graph), *k = refused.k(&graph), *v = refused.v(&graph);
    const Result<LayerRope> rope = graph.Find(q, k, v);
    ASSERT_FALSE(rope) << "graph " << at;
    EXPECT_EQ(rope.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(rope.status().message(), refused.message) << "graph " << at;
    ++at;
  }
  // Values that are the turned keys.
  Graph graph;
  ggml_tensor* k = graph.Rope(graph.Heads(), 32);
  const Result<LayerRope> rope = graph.Find(graph.Rope(graph.Heads(), 32), k, k);
  EXPECT_EQ(rope.status().message(), "RoPE turns values too");
}

}  // namespace
}  // namespace qkvshare
