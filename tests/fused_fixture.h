// Tiny models whose cards are attended to, for tests.
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/session_fixture.h"

namespace qkvshare {

// Of logits, whose standard deviation is about 3 (tests/tiny_model.h).
inline constexpr double kExactError = 5e-3;
inline constexpr double kPackedError = 5e-2;

inline double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    size += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / size);
}

// A model of F32 matrices, and a session that holds what cards are made of.
class FusedFixture : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    Use(Spec());
  }
  virtual TinyModelSpec Spec() const { return {}; }
  void Use(TinyModelSpec spec) {
    spec.half_matrices = false;
    sender_.reset();
    model_ = LoadTiny(spec);
    sender_ = MakeSession(*model_);
    Prefill(sender_.get(), prefix_);
  }

  const std::vector<int32_t> prefix_ = SomeTokens(150);
  const std::vector<int32_t> suffix_ = SomeTokens(20, 3);
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> sender_;
};

}  // namespace qkvshare
