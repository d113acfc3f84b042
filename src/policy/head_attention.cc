#include "policy/head_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace qkvshare {
namespace {

constexpr float kUniformFloor = 0.1f;

float SquaredNorm(const float* x, size_t n) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

class HeadMeasurement {
 public:
  HeadMeasurement(const HeadMatrix& keys, const HeadMatrix* values, const HeadQueries& queries, const BlockCodec& codec,
                  const HeadAttentionOptions& options)
      : keys_(keys), values_(values), queries_(queries), layer_(*queries.layer), codec_(codec), options_(options) {
    const size_t padded = keys_.padded_tokens();
    block_.resize(kQueryBlock * layer_.dim);
    weights_.resize(kQueryBlock * padded);
    sums_.mass.resize(padded);
    if (options.spread) {
      sums_.squares.resize(padded);
      sums_.log_mass.resize(padded);
      scores_.resize(padded);
    }
    if (values == nullptr) return;
    value_norms_ = values->SquaredNorms();
    cross_.resize(kQueryBlock * padded);
    outputs_.resize(kQueryBlock * values->dim());
    sums_.keys.resize(padded);
    sums_.values.resize(padded);
  }

  HeadAttention Measure() {
    const size_t rows = queries_.visible.size() * queries_.heads;
    for (size_t first = 0; first < rows; first += kQueryBlock) AddBlock(first, std::min(kQueryBlock, rows - first));
    // Costs and size are sums over the same queries, so their number cancels. An output of zero has nothing to lose.
    const auto norm = static_cast<float>(output_size_ > 0 ? 1.0 / output_size_ : 0.0);
    for (std::vector<float>* sums : {&sums_.keys, &sums_.values, &sums_.mass, &sums_.squares, &sums_.log_mass}) {
      if (!sums->empty()) sums->resize(keys_.tokens());
    }
    for (std::vector<float>* costs : {&sums_.keys, &sums_.values}) {
      if (!costs->empty()) costs->erase(costs->begin(), costs->begin() + static_cast<ptrdiff_t>(options_.first));
      for (float& x : *costs) x *= norm;
    }
    return std::move(sums_);
  }

 private:
  // Row i of all: query i / heads, head i % heads.
  const float* Query(size_t row) const {
    const size_t head = queries_.first_head + row % queries_.heads;
    return &layer_.q[(row / queries_.heads * layer_.heads + head) * layer_.dim];
  }
  TokenRange Visible(size_t row) const { return queries_.visible[row / queries_.heads]; }

  void AddBlock(size_t first, size_t rows) {
    const size_t padded = keys_.padded_tokens();
    std::fill(block_.begin(), block_.end(), 0.0f);
    TokenRange all = Visible(first);
    for (size_t r = 0; r < rows; ++r) {
      std::copy_n(Query(first + r), layer_.dim, &block_[r * layer_.dim]);
      const TokenRange visible = Visible(first + r);
      all = {std::min(all.first, visible.first), std::max(all.end, visible.end)};
    }
    keys_.Dot(block_.data(), all, weights_.data());
    for (size_t r = 0; r < rows; ++r) {
      float* weights = &weights_[r * padded];
      const TokenRange visible = Visible(first + r);
      Weigh(visible, weights);
      std::fill(weights + all.first, weights + visible.first, 0.0f);
      std::fill(weights + visible.end, weights + all.end, 0.0f);
    }
    if (values_ != nullptr) AddCosts(first, rows, all);
  }

  // Scores, before their scale, to attention weights. weights: [padded tokens], of which those in `visible` count.
  void Weigh(TokenRange visible, float* weights) {
    if (visible.size() == 0) return;
    for (size_t t = visible.first; t < visible.end; ++t) weights[t] *= layer_.scale;
    if (layer_.softcap > 0) {
      for (size_t t = visible.first; t < visible.end; ++t)
        weights[t] = layer_.softcap * std::tanh(weights[t] / layer_.softcap);
    }
    if (options_.spread) std::copy(weights + visible.first, weights + visible.end, &scores_[visible.first]);
    const float log_sum = Softmax({weights + visible.first, visible.size()});
    float* mass = sums_.mass.data();
    for (size_t t = visible.first; t < visible.end; ++t) mass[t] += weights[t];
    for (size_t t = visible.first; options_.spread && t < visible.end; ++t) {
      sums_.squares[t] += weights[t] * weights[t];
      sums_.log_mass[t] += weights[t] * (scores_[t] - log_sum);
    }
    if (options_.attention) return;
    std::fill(weights + visible.first, weights + visible.end, 1.0f / static_cast<float>(visible.size()));
  }

  void AddCosts(size_t first, size_t rows, TokenRange all) {
    const size_t padded = keys_.padded_tokens();
    const size_t dim = values_->dim();
    values_->WeightedSum(weights_.data(), all, outputs_.data());
    values_->Dot(outputs_.data(), {std::max(all.first, options_.first), all.end}, cross_.data());
    for (size_t r = 0; r < rows; ++r) {
      float* query = &block_[r * layer_.dim];
      codec_.TransformQuery(query);
      const float moved = layer_.scale * layer_.scale * SquaredNorm(query, layer_.dim) / static_cast<float>(layer_.dim);
      const float output_norm = SquaredNorm(&outputs_[r * dim], dim);
      output_size_ += static_cast<double>(output_norm);
      AddRow(&weights_[r * padded], &cross_[r * padded], Visible(first + r), moved, output_norm);
    }
  }

  void AddRow(const float* weights, const float* cross, TokenRange visible, float moved, float output_norm) {
    const float floor = kUniformFloor / static_cast<float>(visible.size());
    const float* norms = value_norms_.data();
    float* keys = sums_.keys.data();
    float* values = sums_.values.data();
    for (size_t t = std::max(visible.first, options_.first); t < visible.end; ++t) {
      const float weight = (1 - kUniformFloor) * weights[t] + floor;
      const float square = norms[t] + output_norm - 2 * cross[t];
      keys[t] += weight * moved * (square > 0 ? square : 0.0f);
      values[t] += weight;
    }
  }

  const HeadMatrix& keys_;
  const HeadMatrix* values_;
  const HeadQueries& queries_;
  const LayerQueries& layer_;
  const BlockCodec& codec_;
  const HeadAttentionOptions& options_;
  std::vector<float> block_;            // [kQueryBlock, key_dim]
  std::vector<float> weights_, cross_;  // [kQueryBlock, padded tokens]
  std::vector<float> outputs_;          // [kQueryBlock, value_dim]
  std::vector<float> value_norms_, scores_;
  double output_size_ = 0;
  HeadAttention sums_;
};

}  // namespace

TokenRange VisibleTokens(size_t last, uint32_t window, size_t end) {
  const size_t first = window > 0 && last + 1 > window ? last + 1 - window : 0;
  const size_t seen = std::min(last + 1, end);
  return {std::min(first, seen), seen};
}

HeadAttention MeasureHeadAttention(const HeadMatrix& keys, const HeadMatrix* values, const HeadQueries& queries,
                                   const BlockCodec& codec, const HeadAttentionOptions& options) {
  return HeadMeasurement(keys, values, queries, codec, options).Measure();
}

}  // namespace qkvshare
