#include "eval/cache_round_trip.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

// Root of the mean of squared differences, keys and values of a layer.
double Distance(const KvView& a, const KvView& b, size_t layer) {
  double sum = 0;
  size_t count = 0;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const size_t values = a.tokens * a.layers[layer].shape.row_values(side);
    const Half* x = side == Side::kKeys ? a.layers[layer].keys : a.layers[layer].values;
    const Half* y = side == Side::kKeys ? b.layers[layer].keys : b.layers[layer].values;
    for (size_t i = 0; i < values; ++i, ++count) {
      const double difference = double{HalfToFloat(x[i])} - double{HalfToFloat(y[i])};
      sum += difference * difference;
    }
  }
  return std::sqrt(sum / static_cast<double>(count));
}

class RoundTripTest : public SessionTest {};

TEST_F(RoundTripTest, DoesWhatACacheOfTheTypesDoes) {
  const std::unique_ptr<Model> model = LoadTiny({});
  const std::unique_ptr<Session> session = MakeSession(*model);
  const std::vector<int32_t> tokens = SomeTokens(100);
  Prefill(session.get(), tokens);
  const KvState rows = Take(session->TakeKv());
  for (const auto& [keys, values] :
       {std::pair{CacheType::kQ8_0, CacheType::kQ8_0}, std::pair{CacheType::kQ8_0, CacheType::kQ4_0},
        std::pair{CacheType::kQ4_0, CacheType::kQ4_0}}) {
    SCOPED_TRACE(std::string(CacheTypeName(keys)) + "/" + CacheTypeName(values));
    const std::vector<LayerFormat> formats = Take(CacheFormats(*model, SmallOptions(), keys, values));
    std::vector<uint8_t> state =
        Take(RoundTripState(rows.view(), formats, session->state_layout(), session->threads()));
    const KvState tripped = Take(KvState::Parse(std::move(state), session->state_layout()));
    SessionOptions options = SmallOptions();
    options.cache_type_k = keys;
    options.cache_type_v = values;
    const std::unique_ptr<Session> cache = MakeSession(*model, options);
    Prefill(cache.get(), tokens);
    const KvState cached = Take(cache->TakeKv());
    // Rows of the first layer do not depend on what attention made of others: the cache quantized the same ones, but
    // for their rounding to FP16, which moves some to the next code. Errors that had nothing to do with each other, as
    // without the rotation, would be sqrt(2) apart.
    const double lost = Distance(rows.view(), cached.view(), 0);
    EXPECT_GT(lost, 0);
    EXPECT_LT(Distance(tripped.view(), cached.view(), 0), 0.5 * lost);
    EXPECT_NEAR(Distance(rows.view(), tripped.view(), 0), lost, 0.02 * lost);
    EXPECT_EQ(tripped.positions(), rows.positions());
  }
}

TEST_F(RoundTripTest, ThroughF16NothingChanges) {
  const std::unique_ptr<Model> model = LoadTiny({});
  const std::unique_ptr<Session> session = MakeSession(*model);
  Prefill(session.get(), SomeTokens(40));
  const std::vector<LayerFormat> formats = Take(CacheFormats(*model, SmallOptions(), CacheType::kF16, CacheType::kF16));
  const KvState rows = Take(session->TakeKv());
  EXPECT_EQ(Take(RoundTripState(rows.view(), formats, session->state_layout(), 1)), Take(session->SaveState()));
}

TEST_F(RoundTripTest, RefusesTypesThatTheHeadsDoNotFit) {
  TinyModelSpec spec;
  spec.key_dim = 40;
  const std::unique_ptr<Model> model = LoadTiny(spec);
  EXPECT_EQ(CacheFormats(*model, SmallOptions(), CacheType::kQ8_0, CacheType::kQ8_0).status().code(),
            StatusCode::kUnsupported);
}

TEST(SizeInCache, CountsBlocksWithTheirScales) {
  const std::vector<LayerShape> shapes = {{2, 64, 64}, {2, 64, 32}};
  // 256 values of keys and 192 of values a token.
  const CacheSize f16 = SizeInCache(shapes, CacheType::kF16, CacheType::kF16, 10);
  EXPECT_EQ(f16.bytes, 10u * 448 * 2);
  EXPECT_EQ(f16.code_bits, 16);
  EXPECT_EQ(f16.total_bits, 16);
  const CacheSize mixed = SizeInCache(shapes, CacheType::kQ8_0, CacheType::kQ4_0, 10);
  EXPECT_EQ(mixed.bytes, 10u * (256 / 32 * 34 + 192 / 32 * 18));
  EXPECT_NEAR(mixed.code_bits, (256 * 8 + 192 * 4) / 448.0, 1e-12);
  EXPECT_NEAR(mixed.total_bits, (256 * 8.5 + 192 * 4.5) / 448.0, 1e-12);
}

}  // namespace
}  // namespace qkvshare
