// RopeShift against ggml's own RoPE: ggml turns rows, and a shifted query has to meet keys as if ggml had turned them
// at the shifted positions.
#include "runtime/rope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

using Rows = std::vector<float>;

// A row of `dim` values as ggml turns it.
struct Variant {
  std::string name;
  uint32_t dim = 64;
  LayerRope rope;
};

Rows RandomRows(size_t count, uint32_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows rows(count * dim);
  for (float& x : rows) x = normal(random);
  return rows;
}

// A graph of one ROPE node over rows [dim, 1, tokens].
class RopeGraph {
 public:
  RopeGraph(const Variant& variant, int64_t tokens) {
    InitBackend();
    const LayerRope& rope = variant.rope;
    context_.reset(ggml_init({size_t{1} << 20, nullptr, /*no_alloc=*/true}));
    rows_ = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, variant.dim, 1, tokens);
    positions_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, tokens);
    if (!rope.factors.empty()) {
      factors_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, static_cast<int64_t>(rope.factors.size()));
    }
    turned_ = ggml_rope_ext(context_.get(), rows_, positions_, factors_, static_cast<int>(rope.dims),
                            static_cast<int>(rope.mode), rope.original_context, rope.base, rope.scale, rope.ext_factor,
                            rope.attn_factor, rope.beta_fast, rope.beta_slow);
    ggml_rope_set_offset(turned_, static_cast<int>(rope.first));
    backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
    if (factors_ != nullptr) ggml_backend_tensor_set(factors_, rope.factors.data(), 0, ggml_nbytes(factors_));
  }

  const ggml_tensor* node() const { return turned_; }

  Rows Turn(const Rows& rows, const std::vector<int32_t>& positions) {
    ggml_backend_tensor_set(rows_, rows.data(), 0, ggml_nbytes(rows_));
    ggml_backend_tensor_set(positions_, positions.data(), 0, ggml_nbytes(positions_));
    ggml_cgraph* graph = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph, turned_);
    EXPECT_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
    Rows turned(rows.size());
    ggml_backend_tensor_get(turned_, turned.data(), 0, ggml_nbytes(turned_));
    return turned;
  }

 private:
  ggml_context_ptr context_;
  ggml_backend_ptr backend_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor *rows_ = nullptr, *positions_ = nullptr, *factors_ = nullptr, *turned_ = nullptr;
};

Rows Turn(const Variant& variant, const Rows& rows, const std::vector<int32_t>& positions) {
  return RopeGraph(variant, static_cast<int64_t>(positions.size())).Turn(rows, positions);
}

// As Llama 3 does: slow pairs eight times slower, those between in proportion.
std::vector<float> Llama3Factors(size_t pairs, float base) {
  std::vector<float> factors;
  for (size_t i = 0; i < pairs; ++i) {
    const float wavelength = 6.2831853f * std::pow(base, static_cast<float>(i) / static_cast<float>(pairs));
    const float smooth = std::min(1.0f, std::max(0.0f, (8192 / wavelength - 1) / 3));
    factors.push_back(1 / ((1 - smooth) / 8 + smooth));
  }
  return factors;
}

std::vector<float> LongFactors(size_t pairs) {
  std::vector<float> factors;
  for (size_t i = 0; i < pairs; ++i) factors.push_back(1.0f + 0.9f * static_cast<float>(i));
  return factors;
}

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const RopeMode mode : {RopeMode::kNorm, RopeMode::kNeox}) {
    const std::string name = mode == RopeMode::kNorm ? "norm" : "neox";
    const auto add = [&](const std::string& kind, uint32_t dim, LayerRope rope) {
      rope.mode = mode;
      variants.push_back({fmt::format("{} {}", name, kind), dim, std::move(rope)});
    };
    add("plain", 64, {.dims = 64, .base = 10000});
    add("another base", 128, {.dims = 128, .base = 1e6f});
    add("first dims", 96, {.dims = 32, .base = 10000});
    add("last dims", 96, {.dims = 32, .first = 64, .base = 10000});
    add("linear", 64, {.dims = 64, .base = 10000, .scale = 0.25f});
    const LayerRope yarn{.dims = 128,
                         .base = 1e6f,
                         .scale = 0.25f,
                         .ext_factor = 1,
                         .attn_factor = 0.9f,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .original_context = 32768};
    add("yarn", 128, yarn);
    LayerRope mixed = yarn;
    mixed.ext_factor = 0.5f;
    mixed.dims = 64;
    mixed.original_context = 4096;
    add("half yarn of a part", 128, mixed);
    add("llama 3", 128, {.dims = 128, .base = 500000, .factors = Llama3Factors(64, 500000)});
    add("longrope", 96, {.dims = 96, .base = 10000, .attn_factor = 1.19f, .factors = LongFactors(48)});
  }
  return variants;
}

// How far ggml may be from the product that it stands for: its angles are floats, each after up to a rounding a pair,
// relative to their size, and so are its sums.
double Tolerance(const Variant& variant, const float* q, const float* k, double positions) {
  const double rounding = std::ldexp(1.0, -24);
  const LayerRope& rope = variant.rope;
  const std::vector<double> frequencies = RopeFrequencies(rope);
  double tolerance = 0;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const size_t a = rope.first + (rope.mode == RopeMode::kNorm ? 2 * i : i);
    const size_t b = rope.mode == RopeMode::kNorm ? a + 1 : a + frequencies.size();
    const double size = std::hypot(q[a], q[b]) * std::hypot(k[a], k[b]);
    tolerance += size * rounding * (positions * frequencies[i] * (static_cast<double>(i) + 4) + 8);
  }
  for (size_t i = 0; i < variant.dim; ++i) tolerance += rounding * std::fabs(q[i] * k[i]);
  return tolerance;
}

double Dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(RopeShift, ShiftedQueriesMeetKeysAsGgmlWouldTurnThem) {
  const std::vector<int32_t> deltas = {1, -1, 2, 3, 7, 64, -64, 500, 1000, -1000, 4096, 12345, 50000, 100000, 131072};
  const int32_t query = 1717, key = 1234;
  for (const Variant& variant : Variants()) {
    const uint32_t dim = variant.dim;
    const Rows q = Turn(variant, RandomRows(1, dim, 1), {query});
    const Rows key_row = RandomRows(1, dim, 2);
    const Rows k = Turn(variant, key_row, {key});
    Rows copies;
    std::vector<int32_t> positions;
    for (const int32_t delta : deltas) {
      copies.insert(copies.end(), key_row.begin(), key_row.end());
      positions.push_back(key + delta);
    }
    const Rows moved = Turn(variant, copies, positions);
    for (size_t i = 0; i < deltas.size(); ++i) {
      Rows shifted = q;
      RopeShift(variant.rope, deltas[i]).Apply(shifted.data());
      const double tolerance = Tolerance(variant, q.data(), k.data(), 2.0 * key + std::abs(deltas[i]));
      EXPECT_NEAR(Dot(shifted.data(), k.data(), dim), Dot(q.data(), &moved[i * dim], dim), tolerance)
          << variant.name << " by " << deltas[i];
      EXPECT_LT(tolerance, 1) << variant.name;  // the products are of about 10
    }
  }
}

// ggml itself at the position before: every channel, not only their product.
TEST(RopeShift, TurnsRowsAsGgmlDoes) {
  for (const Variant& variant : Variants()) {
    const Rows row = RandomRows(1, variant.dim, 3);
    Rows shifted = Turn(variant, row, {300});
    RopeShift(variant.rope, 200).Apply(shifted.data());
    const Rows expected = Turn(variant, row, {100});
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(shifted[i], expected[i], 2e-4) << variant.name << " " << i;
  }
}

TEST(RopeShift, LeavesAloneWhatDoesNotTurn) {
  for (const Variant& variant : Variants()) {
    const Rows row = RandomRows(1, variant.dim, 4);
    Rows shifted = row;
    RopeShift(variant.rope, 1000).Apply(shifted.data());
    for (uint32_t i = 0; i < variant.dim; ++i) {
      const bool turns = i >= variant.rope.first && i < variant.rope.first + variant.rope.dims;
      EXPECT_EQ(shifted[i] != row[i], turns) << variant.name << " " << i;
    }
    // A pure rotation, whatever attn_factor is.
    EXPECT_NEAR(Dot(shifted.data(), shifted.data(), row.size()), Dot(row.data(), row.data(), row.size()), 1e-4);
  }
  Rows row = RandomRows(1, 64, 5);
  const Rows before = row;
  RopeShift(LayerRope{}, 1000).Apply(row.data());
  EXPECT_EQ(row, before);
}

TEST(RopeShift, ByNothingKeepsEveryBit) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::array<float, 8> row = {-0.0f, 0.0f, nan, infinity, 1e-42f, -1.0f, -0.0f, -3e38f};
  for (const RopeMode mode : {RopeMode::kNorm, RopeMode::kNeox}) {
    std::array<float, 8> shifted = row;
    RopeShift({.dims = 8, .mode = mode, .base = 10000}, 0).Apply(shifted.data());
    EXPECT_EQ((std::bit_cast<std::array<uint32_t, 8>>(shifted)), (std::bit_cast<std::array<uint32_t, 8>>(row)));
  }
}

TEST(RopeShift, TakesManyRowsAndTheLargestDeltas) {
  const uint32_t dim = 64;
  const size_t stride = 80;
  for (const RopeMode mode : {RopeMode::kNorm, RopeMode::kNeox}) {
    const LayerRope rope{.dims = dim, .mode = mode, .base = 10000};
    Rows rows = RandomRows(5, stride, 6);
    const Rows before = rows;
    RopeShift(rope, 77).Apply(rows.data(), 5, stride);
    for (size_t row = 0; row < 5; ++row) {
      Rows one(&before[row * stride], &before[row * stride] + stride);
      RopeShift(rope, 77).Apply(one.data());
      EXPECT_EQ(Rows(&rows[row * stride], &rows[row * stride] + stride), one) << row;
    }
    for (const int32_t delta : {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min() + 1}) {
      Rows there = before;
      RopeShift(rope, delta).Apply(there.data());
      EXPECT_NE(there, before);
      RopeShift(rope, -delta).Apply(there.data());
      for (size_t i = 0; i < stride; ++i) EXPECT_NEAR(there[i], before[i], 1e-5);
    }
  }
}

TEST(ReadRope, GivesWhatTheNodeHas) {
  for (const Variant& variant : Variants()) {
    const RopeGraph graph(variant, 1);
    const Result<LayerRope> rope = ReadRope(graph.node());
    ASSERT_TRUE(rope) << rope.status().message();
    EXPECT_EQ(*rope, variant.rope) << variant.name;
  }
}

TEST(ReadRope, RefusesSeveralPositionsATokenByName) {
  const ggml_context_ptr context(ggml_init({size_t{1} << 20, nullptr, /*no_alloc=*/true}));
  ggml_tensor* rows = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 64, 1, 1);
  ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 4);
  std::array<int, GGML_MROPE_SECTIONS> sections = {8, 8, 8, 8};
  const std::vector<std::pair<int, std::string>> modes = {
      {GGML_ROPE_TYPE_MROPE, "MROPE"}, {GGML_ROPE_TYPE_IMROPE, "IMROPE"}, {GGML_ROPE_TYPE_VISION, "VISION"}};
  for (const auto& [mode, name] : modes) {
    const ggml_tensor* node =
        ggml_rope_multi(context.get(), rows, positions, nullptr, 32, sections.data(), mode, 0, 10000, 1, 0, 1, 32, 1);
    const Result<LayerRope> rope = ReadRope(node);
    ASSERT_FALSE(rope);
    EXPECT_EQ(rope.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(rope.status().message(), "RoPE is of type " + name);
  }
}

TEST(ReadRope, RefusesFrequenciesThatAreNoNumbers) {
  for (const float factor : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> factors(32, 1.0f);
    factors[5] = factor;
    const RopeGraph graph({"factors", 64, {.dims = 64, .base = 10000, .factors = factors}}, 1);
    EXPECT_EQ(ReadRope(graph.node()).status().code(), StatusCode::kUnsupported);
  }
  const RopeGraph graph({"base", 64, {.dims = 64, .base = 0}}, 1);
  EXPECT_EQ(ReadRope(graph.node()).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace qkvshare
