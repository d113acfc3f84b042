#include "eval/fidelity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

std::vector<float> RandomRow(std::mt19937* random, size_t vocab, float sigma) {
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(*random);
  return row;
}

// The definition: sum of p log(p / q).
double SlowKl(const std::vector<float>& p, const std::vector<float>& q) {
  double zp = 0, zq = 0, kl = 0;
  for (size_t i = 0; i < p.size(); ++i) zp += std::exp(double{p[i]}), zq += std::exp(double{q[i]});
  for (size_t i = 0; i < p.size(); ++i) {
    const double pi = std::exp(double{p[i]}) / zp, qi = std::exp(double{q[i]}) / zq;
    kl += pi * std::log(pi / qi);
  }
  return kl;
}

TEST(KlDivergence, EqualsTheDefinition) {
  std::mt19937 random(1);
  for (const size_t vocab : {2u, 10u, 1000u}) {
    for (const float sigma : {0.1f, 1.0f, 5.0f}) {
      const std::vector<float> p = RandomRow(&random, vocab, sigma), q = RandomRow(&random, vocab, sigma);
      const double expected = SlowKl(p, q);
      ASSERT_GT(expected, 0.0);
      // nats: double rounding of up to 1,000 terms that nearly cancel.
      EXPECT_NEAR(KlDivergence(p, q), expected, 1e-14 + 1e-12 * expected);
      EXPECT_GT(std::fabs(KlDivergence(p, q) - KlDivergence(q, p)), 1e-6 * expected);  // not symmetric: p comes first
    }
  }
}

TEST(KlDivergence, OfTwoCoins) {
  const std::vector<float> fair = {1.5f, 1.5f}, three_to_one = {std::log(3.0f), 0.0f};
  // 0.5 ln(0.5 / 0.75) + 0.5 ln(0.5 / 0.25), but for the single-precision ln 3 (1e-7).
  EXPECT_NEAR(KlDivergence(fair, three_to_one), 0.5 * std::log(4.0 / 3.0), 1e-7);
}

TEST(KlDivergence, IsZeroForIdenticalRowsAndIgnoresAShift) {
  std::mt19937 random(2);
  const std::vector<float> p = RandomRow(&random, 500, 3);
  EXPECT_EQ(KlDivergence(p, p), 0.0);
  std::vector<float> shifted = p;
  for (float& x : shifted) x += 8;
  EXPECT_NEAR(KlDivergence(p, shifted), 0.0, 1e-6);  // nats; the sum rounds in single precision
}

TEST(KlDivergence, TakesLargeLogits) {
  const std::vector<float> p = {5000, 4999, -5000}, q = {5000, 4998, -5000};
  const double expected = SlowKl({0, -1, -700}, {0, -2, -700});
  EXPECT_NEAR(KlDivergence(p, q), expected, 1e-9);  // nats; double precision at 5,000
  EXPECT_EQ(KlDivergence(p, p), 0.0);
}

// Two tokens to choose from: the KL of row i against the reference grows with `offset`.
LogitRows Rows(const std::vector<float>& offsets) {
  LogitRows rows;
  rows.vocab = 2;
  for (const float offset : offsets) rows.values.insert(rows.values.end(), {offset, 0.0f});
  return rows;
}

TEST(FidelityMeter, GivesMeanQuantilesAndAgreement) {
  // 200 rows with growing distance from the reference, fed out of order and in two parts.
  std::vector<float> offsets(200);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = 0.5f + 0.01f * static_cast<float>((i * 77) % 200);
  std::vector<double> kl;
  kl.reserve(offsets.size());
  for (const float offset : offsets) kl.push_back(SlowKl({0.5f, 0.0f}, {offset, 0.0f}));
  FidelityMeter meter;
  const auto half = offsets.begin() + 120;
  meter.Add(Rows(std::vector<float>(120, 0.5f)), Rows({offsets.begin(), half}));
  meter.Add(Rows(std::vector<float>(80, 0.5f)), Rows({half, offsets.end()}));
  const Fidelity fidelity = meter.Result();
  std::sort(kl.begin(), kl.end());
  double sum = 0;
  for (const double x : kl) sum += x;
  EXPECT_EQ(fidelity.tokens, 200u);
  // nats; double rounding.
  EXPECT_NEAR(fidelity.mean_kl, sum / 200, 1e-12);
  EXPECT_NEAR(fidelity.max_kl, kl[199], 1e-12);
  // A quantile is one of the two values around its place.
  EXPECT_GE(fidelity.median_kl, kl[99] - 1e-12);
  EXPECT_LE(fidelity.median_kl, kl[100] + 1e-12);
  EXPECT_NEAR(fidelity.p99_kl, kl[197], 1e-12);
  EXPECT_EQ(fidelity.top1_agreement, 1.0);
}

TEST(FidelityMeter, CountsAgreementOfTheMostLikelyToken) {
  FidelityMeter meter;
  meter.Add(Rows({1, 1, -1, -1}), Rows({2, -2, -3, 3}));
  EXPECT_EQ(meter.Result().top1_agreement, 0.5);
}

TEST(FidelityMeter, TakesOneTokenAndNone) {
  FidelityMeter meter;
  EXPECT_EQ(meter.Result().tokens, 0u);
  EXPECT_EQ(meter.Result().mean_kl, 0.0);
  meter.Add(Rows({}), Rows({}));
  EXPECT_EQ(meter.Result().tokens, 0u);
  meter.Add(Rows({1}), Rows({2}));
  const Fidelity fidelity = meter.Result();
  EXPECT_EQ(fidelity.tokens, 1u);
  EXPECT_EQ(fidelity.median_kl, fidelity.max_kl);
  EXPECT_EQ(fidelity.p99_kl, fidelity.max_kl);
  EXPECT_EQ(fidelity.mean_kl, fidelity.max_kl);
}

TEST(ReferenceRows, TellsOfEachPredictionInOrder) {
  std::mt19937 random(4);
  LogitRows reference, other;
  reference.vocab = other.vocab = 50;
  for (LogitRows* rows : {&reference, &other}) {
    for (size_t i = 0; i < 6; ++i) {
      const std::vector<float> row = RandomRow(&random, 50, 2);
      rows->values.insert(rows->values.end(), row.begin(), row.end());
    }
  }
  // The fourth rows are the same but for a constant.
  for (size_t i = 0; i < 50; ++i) other.values[3 * 50 + i] = reference.values[3 * 50 + i] + 1;
  const std::vector<int32_t> next = {7, 0, 49};
  for (const int threads : {1, 3}) {
    const ReferenceRows rows(reference, 2, threads);
    EXPECT_EQ(rows.tokens(), 4u);
    const std::vector<Prediction> predictions = rows.Compare(other, next, threads);
    ASSERT_EQ(predictions.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> p(reference.row(2 + i).begin(), reference.row(2 + i).end());
      const std::vector<float> q(other.row(2 + i).begin(), other.row(2 + i).end());
      double zp = 0, zq = 0;
      for (size_t v = 0; v < 50; ++v) zp += std::exp(double{p[v]}), zq += std::exp(double{q[v]});
      const auto token = static_cast<size_t>(next[i]);
      // nats; probabilities are rounded to single precision, the rest to double.
      EXPECT_NEAR(predictions[i].kl, SlowKl(p, q), 1e-7 * SlowKl(p, q) + 1e-9);
      EXPECT_NEAR(predictions[i].reference_log_probability, std::log(std::exp(double{p[token]}) / zp), 1e-12);
      EXPECT_NEAR(predictions[i].log_probability, std::log(std::exp(double{q[token]}) / zq), 1e-12);
      EXPECT_EQ(predictions[i].same,
                std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin());
    }
    EXPECT_TRUE(predictions[1].same);
    EXPECT_LT(predictions[1].kl, 1e-6);  // the sum rounds in single precision
    for (const Prediction& same : rows.Compare(reference, next, threads)) EXPECT_EQ(same.kl, 0.0);
  }
}

class ScoreTokensTest : public SessionTest {};

TEST_F(ScoreTokensTest, GivesOneRowATokenHoweverItIsFed) {
  const std::unique_ptr<Model> model = LoadTiny({});
  const std::unique_ptr<Session> session = MakeSession(*model);
  const std::vector<int32_t> prefix = SomeTokens(20);
  const std::vector<int32_t> rest = SomeTokens(70, 99);
  std::vector<LogitRows> scores;
  for (const size_t piece : {0u, 1u, 16u, 33u, 70u, 1000u}) {
    SCOPED_TRACE(piece);
    session->Clear();
    Prefill(session.get(), prefix);
    const Result<LogitRows> rows = ScoreTokens(session.get(), rest, piece);
    ASSERT_TRUE(rows) << rows.status().message();
    EXPECT_EQ(rows->vocab, static_cast<size_t>(model->vocab_size()));
    EXPECT_EQ(rows->values.size(), rest.size() * rows->vocab);
    EXPECT_EQ(rows->tokens(), rest.size());
    EXPECT_EQ(session->tokens().size(), prefix.size() + rest.size());
    scores.push_back(*rows);
  }
  for (const LogitRows& rows : scores) {
    FidelityMeter meter;
    meter.Add(scores[0], rows);
    const Fidelity fidelity = meter.Result();
    EXPECT_EQ(fidelity.tokens, rest.size());
    // nats. Other matrix shapes round differently, and scores of F16 rows may flip in the last bit; a row that is off
    // by one token is at about 10.
    EXPECT_LT(fidelity.max_kl, 0.02);
  }
  // The rows are those of the last token's logits too.
  const float* last = session->logits();
  ASSERT_NE(last, nullptr);
  const auto row = scores.back().row(rest.size() - 1);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), last));
}

TEST_F(ScoreTokensTest, RefusesWhatDoesNotFit) {
  const std::unique_ptr<Model> model = LoadTiny({});
  const std::unique_ptr<Session> session = MakeSession(*model);
  const std::vector<int32_t> tokens(session->context() + 1, 65);
  EXPECT_EQ(ScoreTokens(session.get(), tokens, 0).status().code(), StatusCode::kOutOfRange);
  session->Clear();
  const Result<LogitRows> none = ScoreTokens(session.get(), {}, 0);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->tokens(), 0u);
}

}  // namespace
}  // namespace qkvshare
