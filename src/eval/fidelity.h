// How far one set of next-token distributions is from another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Over the compared tokens. KL(reference || other) of the next-token distributions, in nats.
struct Fidelity {
  size_t tokens = 0;
  double mean_kl = 0, median_kl = 0, p99_kl = 0, max_kl = 0;
  double top1_agreement = 0;  // share of tokens with the same most likely next token
};

// KL(softmax(p) || softmax(q)) of two rows of logits.
double KlDivergence(std::span<const float> p, std::span<const float> q);

// One prediction of the token that follows, in both.
struct Prediction {
  double kl = 0;                                              // KL(reference || other)
  bool same = false;                                          // the same most likely next token
  double log_probability = 0, reference_log_probability = 0;  // of the token that follows
};

// Rows of logits, one a token.
struct LogitRows {
  size_t vocab = 0;
  std::vector<float> values;  // [tokens, vocab]

  size_t tokens() const { return vocab == 0 ? 0 : values.size() / vocab; }
  std::span<const float> row(size_t token) const { return std::span(values).subspan(token * vocab, vocab); }
};

// Tokens that a noise floor is fed at once: FP16 against itself, which rounds otherwise in other pieces.
inline constexpr size_t kNoisePiece = 16;

// Decodes `tokens` after what the session holds (teacher forcing) and returns their logits. piece: tokens fed at once,
// 0: as many as the session's batch takes.
Result<LogitRows> ScoreTokens(Session* session, std::span<const int32_t> tokens, size_t piece);

// Rows that several others are compared with: what depends on the reference alone is worked out once.
class ReferenceRows {
 public:
  // Of the rows from `first` on. On up to `threads` threads.
  ReferenceRows(LogitRows rows, size_t first, int threads);

  size_t tokens() const { return facts_.size(); }
  // other: rows of the same tokens. next: the tokens that follow those from `first` on. Cost: an exponential a logit.
  std::vector<Prediction> Compare(const LogitRows& other, std::span<const int32_t> next, int threads) const;

 private:
  // Of a row from first_ on.
  struct Facts {
    double log_sum = 0;  // of exponentials
    ptrdiff_t top = 0;   // most likely token
  };
  LogitRows rows_;
  size_t first_;
  std::vector<Facts> facts_;
  std::vector<float> probabilities_;  // [tokens, vocab]
};

// Collects comparisons from several texts into one result.
class FidelityMeter {
 public:
  // Both of the same tokens.
  void Add(const LogitRows& reference, const LogitRows& other);
  Fidelity Result() const;

 private:
  std::vector<double> kl_;
  size_t agreements_ = 0;
};

}  // namespace qkvshare
