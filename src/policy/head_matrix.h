// Rows of one KV head as floats, and the products of attention over them: blocks of queries share every load of a tile
// of tokens.
//
// Every sum runs in the order of its terms, without contraction, so the results do not depend on the instruction set.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "quant/kv_view.h"

namespace qkvshare {

// Tokens that a query sees.
struct TokenRange {
  size_t first = 0, end = 0;

  size_t size() const { return end - first; }
};

// Queries of one block: as many rows as its products take and give. Callers pad with rows of zeros.
inline constexpr size_t kQueryBlock = 16;

class HeadMatrix {
 public:
  // Converts all rows, those of `earlier` before the others: two copies, one a row and one interleaved by tiles of
  // tokens.
  explicit HeadMatrix(const HeadRows& head, const HeadRows& earlier = {});

  size_t tokens() const { return tokens_; }
  size_t dim() const { return dim_; }
  // Tokens rounded up to whole tiles: the row length of what the products take and give. Rows past the last are zero.
  size_t padded_tokens() const { return padded_tokens_; }

  // out[r][t] = x[r] . row t, for t in `range` widened to tiles. x: [kQueryBlock, dim]; out: [kQueryBlock,
  // padded_tokens].
  void Dot(const float* x, TokenRange range, float* out) const;
  // out[r] = sum of weight[r][t] * row t, for t in range. weight: [kQueryBlock, padded_tokens]; out: [kQueryBlock,
  // dim].
  void WeightedSum(const float* weight, TokenRange range, float* out) const;
  // [padded_tokens]: squared length of each row.
  std::vector<float> SquaredNorms() const;

 private:
  size_t tokens_, dim_, padded_tokens_;
  std::vector<float> rows_;   // [padded_tokens, dim]
  std::vector<float> tiles_;  // [padded_tokens / tile, dim, tile]
};

// Softmax of scores [count] in place, in single precision. exp is a polynomial, within 3e-7 of itself, relative.
// Returns the logarithm of the sum of exp(score).
float Softmax(std::span<float> scores);

}  // namespace qkvshare
