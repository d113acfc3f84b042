// Random cards, queries and caches for attention, and attention itself in plain doubles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "attend/attention.h"
#include "quant/bit_plan.h"
#include "quant/block.h"

namespace qkvshare {

using Rows = std::vector<float>;

inline std::vector<Half> RandomHalves(size_t count, std::mt19937* random, float size = 1.0f) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<Half> rows(count);
  for (Half& x : rows) x = FloatToHalf(normal(*random));
  return rows;
}

// One layer of packed random rows, with what they are when restored.
struct TestCard {
  AttentionCard card;
  std::vector<std::vector<uint8_t>> blocks;
  std::vector<std::vector<Half>> keys, values;  // restored, of each KV head: [tokens, dim]
  std::vector<int32_t> positions;               // of each token
};

// level_of_token: indices into levels.
inline std::unique_ptr<TestCard> MakeTestCard(const AttentionShape& shape, const std::vector<Level>& levels,
                                              const std::vector<uint8_t>& level_of_token, std::mt19937* random) {
  auto test = std::make_unique<TestCard>();
  const size_t tokens = level_of_token.size();
  BitPlan plan;
  plan.levels = levels;
  plan.level_of_token = level_of_token;
  const TokenOrder order = OrderTokens(plan);
  PackedLayer& layer = test->card.layers.emplace_back();
  const Kernels& kernels = ScalarKernels();
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const bool is_keys = side == Side::kKeys;
    const size_t dim = is_keys ? shape.key_dim : shape.value_dim;
    const BlockLayout layout = BlockLayout::Make(dim, plan.SideBitsOf(0, side), order.level_size);
    (is_keys ? layer.keys : layer.values) = layout;
    for (size_t head = 0; head < shape.kv_heads; ++head) {
      const std::vector<Half> rows = RandomHalves(tokens * dim, random);
      const HeadRows view{rows.data(), dim, tokens, dim};
      const ChannelProfile profile = is_keys ? MeasureKeyProfile(view, 0) : ChannelProfile();
      const BlockCodec codec(kernels, side, dim, profile);
      std::vector<uint8_t>& block = test->blocks.emplace_back(layout.bytes + kBlockAlignment);
      const size_t shift = AlignUp(reinterpret_cast<uintptr_t>(block.data()), kBlockAlignment) -
                           reinterpret_cast<uintptr_t>(block.data());
      uint8_t* out = block.data() + shift;
      if (!codec.Pack(view, order, layout, out).ok()) std::abort();
      (is_keys ? layer.key_blocks : layer.value_blocks).push_back(out);
      std::vector<Half>& restored = (is_keys ? test->keys : test->values).emplace_back(tokens * dim);
      if (!codec.Unpack(out, order, layout, tokens, restored.data(), dim).ok()) std::abort();
      for (const Half x : profile.mean) layer.mean.push_back(HalfToFloat(x));
      for (const Half x : profile.scale) layer.scale.push_back(HalfToFloat(x));
    }
  }
  test->positions.resize(tokens);
  for (size_t i = 0; i < tokens; ++i) test->positions[i] = static_cast<int32_t>(i);
  for (const uint32_t token : order.token_at) test->card.positions.push_back(test->positions[token]);
  test->card.blocks = MakeTokenBlocks(order.level_size);
  return test;
}

// A decode call over cards and an own cache, with random queries.
struct TestCall {
  AttentionShape shape;
  std::vector<const TestCard*> cards;  // of each source but the last, which is the own cache
  std::vector<AttentionSource> sources;
  std::vector<int32_t> positions;          // of each token
  std::vector<float> q;                    // [tokens, heads, key_dim]
  std::vector<Half> own_keys, own_values;  // [cells, kv_heads, dim]
  std::vector<Half> mask;                  // [tokens, cells]
  AttentionNode node;                      // without out

  void Finish(std::mt19937* random) {
    std::normal_distribution<float> normal;
    q.resize(size_t{shape.tokens} * shape.heads * shape.key_dim);
    for (float& x : q) x = normal(*random);
    own_keys = RandomHalves(size_t{shape.cells} * shape.kv_heads * shape.key_dim, random);
    own_values = RandomHalves(size_t{shape.cells} * shape.kv_heads * shape.value_dim, random);
    if (mask.empty()) mask.assign(size_t{shape.tokens} * shape.cells, Half{0});
    node.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
    PointNode();
  }
  // To this call's own rows: after it was copied.
  void PointNode() {
    node.positions = positions.data();
    node.q = q.data();
    node.q_head_stride = shape.key_dim;
    node.q_token_stride = size_t{shape.heads} * shape.key_dim;
    node.keys = {own_keys.data(), size_t{shape.kv_heads} * shape.key_dim, shape.key_dim};
    node.values = {own_values.data(), size_t{shape.kv_heads} * shape.value_dim, shape.value_dim};
    node.mask = mask.data();
    node.mask_stride = shape.cells;
  }

  Rows Run(const AttendKernels& attend, int threads) const {
    const AttentionPlan plan(shape, sources);
    AttentionWorkspace workspace(ScalarKernels(), attend);
    workspace.Reserve(plan);
    return Run(plan, threads, &workspace);
  }
  // plan: of this call; the workspace has room for it.
  Rows Run(const AttentionPlan& plan, int threads, AttentionWorkspace* workspace) const {
    Rows out(size_t{shape.tokens} * shape.heads * shape.value_dim, std::numeric_limits<float>::quiet_NaN());
    AttentionNode to_out = node;
    to_out.out = out.data();
    AttentionRun run(plan, to_out, workspace);
    for (int repeat = 0; repeat < 2; ++repeat) {  // as a graph that is used again
      run.Reset();
      std::vector<std::thread> workers;
      for (int i = 0; i < threads; ++i) workers.emplace_back([&run, i] { run.Run(i); });
      for (std::thread& worker : workers) worker.join();
    }
    return out;
  }

  // The same over restored rows, by definition.
  Rows Reference() const;
};

namespace attention_test {

inline double Dot(const float* q, const Half* k, size_t dim) {
  double dot = 0;
  for (size_t c = 0; c < dim; ++c) dot += double{q[c]} * double{HalfToFloat(k[c])};
  return dot;
}

}  // namespace attention_test

inline Rows TestCall::Reference() const {
  Rows out;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    for (uint32_t head = 0; head < shape.heads; ++head) {
      const size_t kv_head = head / shape.group();
      std::vector<double> scores;
      std::vector<const Half*> values;
      const auto add = [&](const float* query, const Half* key, const Half* value, double bias) {
        double score = double{node.scale} * attention_test::Dot(query, key, shape.key_dim);
        if (node.softcap != 0) score = double{node.softcap} * std::tanh(score / double{node.softcap});
        scores.push_back(score + bias);
        values.push_back(value);
      };
      const float* query = &q[(size_t{token} * shape.heads + head) * shape.key_dim];
      for (size_t s = 0; s < sources.size(); ++s) {
        const AttentionSource& source = sources[s];
        if (std::find(source.tokens.begin(), source.tokens.end(), token) == source.tokens.end()) continue;
        std::vector<float> rotated(query, query + shape.key_dim);
        if (source.shift != 0) node.rotate(s, rotated.data());
        for (size_t i = 0; source.card != nullptr && i < source.card->tokens(); ++i) {
          if (cards[s]->positions[i] >= source.end) continue;
          if (node.window > 0 &&
              positions[token] - (cards[s]->positions[i] + source.shift) >= static_cast<int32_t>(node.window))
            continue;
          add(rotated.data(), &cards[s]->keys[kv_head][i * shape.key_dim],
              &cards[s]->values[kv_head][i * shape.value_dim], 0.0);
        }
        for (size_t i = 0; source.card == nullptr && i < shape.cells; ++i) {
          const double bias = double{HalfToFloat(mask[token * shape.cells + i])};
          if (std::isinf(bias)) continue;
          add(query, &own_keys[(i * shape.kv_heads + kv_head) * shape.key_dim],
              &own_values[(i * shape.kv_heads + kv_head) * shape.value_dim], bias);
        }
      }
      double max = node.sinks != nullptr ? double{node.sinks[head]} : -std::numeric_limits<double>::infinity();
      for (const double score : scores) max = std::max(max, score);
      double sum = node.sinks != nullptr ? std::exp(double{node.sinks[head]} - max) : 0.0;
      std::vector<double> acc(shape.value_dim);
      for (size_t i = 0; i < scores.size(); ++i) {
        const double weight = std::exp(scores[i] - max);
        sum += weight;
        for (size_t c = 0; c < shape.value_dim; ++c) acc[c] += weight * double{HalfToFloat(values[i][c])};
      }
      for (const double x : acc) out.push_back(sum > 0 ? static_cast<float>(x / sum) : 0.0f);
    }
  }
  return out;
}

// |a - b| / |b| over each output row; the largest.
inline double WorstRowError(const Rows& a, const Rows& b, size_t dim) {
  double worst = 0;
  for (size_t row = 0; row < b.size() / dim; ++row) {
    double difference = 0;
    double size = 0;
    for (size_t c = 0; c < dim; ++c) {
      const size_t i = row * dim + c;
      difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
      size += double{b[i]} * double{b[i]};
    }
    const double error = std::sqrt(difference / std::max(size, 1e-12));
    if (!(error <= worst)) worst = error;  // NaN too
  }
  return worst;
}

}  // namespace qkvshare
