// Contexts of every cache type: what is taken from them, and what is restored into them.
#include "runtime/cache_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <tuple>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr CacheType kTypes[] = {CacheType::kF16, CacheType::kBF16, CacheType::kQ8_0, CacheType::kQ4_0};

TEST(CacheTypes, NamesAreLlamasAndUnknownOnesAreRefusedWithTheChoices) {
  for (const CacheType type : kTypes) {
    const Result<CacheType> parsed = CacheTypeFromName(CacheTypeName(type));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, type);
  }
  const Status status = CacheTypeFromName("q5_1").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("q5_1: choose from f16, bf16, q8_0, q4_0"), std::string::npos) << status.message();
}

TEST(CacheTypes, RotationIsItsOwnInverseAndMixesWithinABlockOnly) {
  std::vector<float> x(128, 0.0f);
  x[3] = 1.0f;
  RotateBlocks(64, x.data(), x.size());
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(std::fabs(x[i]), i < 64 ? 0.125f : 0.0f);
  EXPECT_GT(x[0] * x[4], 0);  // column 3: the sign is the parity of 3 & row
  EXPECT_LT(x[0] * x[1], 0);
  RotateBlocks(64, x.data(), x.size());
  for (size_t i = 0; i < 128; ++i) EXPECT_FLOAT_EQ(x[i], i == 3 ? 1.0f : 0.0f);
}

TEST(CacheTypes, BF16ValuesThatFP16DoesNotHoldAreRefusedAndNamed) {
  // BF16 is the upper half of a float.
  const auto bf16 = [](float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); };
  std::vector<uint16_t> rows(3 * 8, bf16(1.5f));
  rows[20] = bf16(65280.0f);  // the largest that FP16 holds
  std::vector<Half> out(rows.size());
  const auto decode = [&] {
    return DecodeRows({CacheType::kBF16, 0}, reinterpret_cast<const uint8_t*>(rows.data()), 3, 8, out.data());
  };
  ASSERT_TRUE(decode().ok());
  EXPECT_EQ(HalfToFloat(out[0]), 1.5f);
  EXPECT_EQ(HalfToFloat(out[20]), 65280.0f);
  for (const float bad :
       {65536.0f, -70000.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    rows[20] = bf16(bad);
    const Status status = decode();
    EXPECT_EQ(status.code(), StatusCode::kNonFinite);
    EXPECT_NE(status.message().find("token 2: "), std::string::npos) << status.message();
  }
}

TEST(CacheTypes, EncodingAndDecodingLoseWhatTheTypeLosesAndNoMore) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<Half> rows(5 * 128);
  for (Half& x : rows) x = FloatToHalf(normal(random));
  // Relative root mean square: half a step of 2^-8; of 1/127 and 1/8 of a block's largest value (about 2.2).
  for (const auto& [type, loss] : {std::pair{CacheType::kF16, 0.0}, std::pair{CacheType::kBF16, 0.003},
                                   std::pair{CacheType::kQ8_0, 0.008}, std::pair{CacheType::kQ4_0, 0.12}}) {
    for (const uint32_t rotation : {0u, 64u, 128u}) {
      const RowFormat format{type, rotation};
      std::vector<uint8_t> bytes(5 * CacheRowBytes(type, 128));
      EncodeRows(format, rows.data(), 5, 128, bytes.data());
      std::vector<Half> back(rows.size());
      ASSERT_TRUE(DecodeRows(format, bytes.data(), 5, 128, back.data()).ok());
      double error = 0, size = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        error += std::pow(HalfToFloat(back[i]) - HalfToFloat(rows[i]), 2);
        size += std::pow(HalfToFloat(rows[i]), 2);
      }
      const double floor = rotation > 0 && type == CacheType::kF16 ? 0.001 : 0;  // rounded twice
      EXPECT_LE(std::sqrt(error / size), loss + floor) << CacheTypeName(type) << ", rotation " << rotation;
      EXPECT_GE(std::sqrt(error / size), IsQuantized(type) ? loss / 4 : 0);
    }
  }
}

struct Cache {
  CacheType k, v;
  bool flash_attention = true;
};

struct CacheCase {
  const char* architecture;
  int heads, kv_heads, key_dim, value_dim;
  Cache cache;
  uint32_t key_rotation, value_rotation;  // that llama.cpp applies to this shape
};

std::ostream& operator<<(std::ostream& out, const CacheCase& c) {
  return out << c.architecture << " " << c.key_dim << " K " << CacheTypeName(c.cache.k) << " V "
             << CacheTypeName(c.cache.v) << (c.cache.flash_attention ? "" : " without flash attention");
}

class CacheTypeTest : public SessionTest, public testing::WithParamInterface<CacheCase> {
 protected:
  std::unique_ptr<Model> Load() {
    TinyModelSpec spec;
    spec.architecture = GetParam().architecture;
    spec.heads = GetParam().heads;
    spec.kv_heads = GetParam().kv_heads;
    spec.key_dim = GetParam().key_dim;
    spec.value_dim = GetParam().value_dim;
    return LoadTiny(spec);
  }
  static SessionOptions Options() {
    SessionOptions options = SmallOptions();
    options.cache_type_k = GetParam().cache.k;
    options.cache_type_v = GetParam().cache.v;
    options.flash_attention = GetParam().cache.flash_attention;
    return options;
  }
};

// Of one layer and side, relative to the size of `a`.
double RelativeError(const KvView& a, const KvView& b, size_t layer, Side side) {
  const size_t values = a.tokens * a.layers[layer].shape.row_values(side);
  const Half* x = side == Side::kKeys ? a.layers[layer].keys : a.layers[layer].values;
  const Half* y = side == Side::kKeys ? b.layers[layer].keys : b.layers[layer].values;
  double error = 0, size = 0;
  for (size_t i = 0; i < values; ++i) {
    error += std::pow(HalfToFloat(x[i]) - HalfToFloat(y[i]), 2);
    size += std::pow(HalfToFloat(x[i]), 2);
  }
  return std::sqrt(error / size);
}

double LossOf(CacheType type) {
  switch (type) {
    case CacheType::kF16: return 0.001;
    case CacheType::kBF16: return 0.004;
    case CacheType::kQ8_0: return 0.02;
    case CacheType::kQ4_0: return 0.15;
  }
  return 0;
}

// The first layer's rows do not depend on the cache: they differ from those of an F16 context by the type's rounding
// alone. A rotation that is not undone, or undone wrongly, gives an error of about 1.
TEST_P(CacheTypeTest, RowsAreThoseOfAnF16ContextButForRounding) {
  const auto model = Load();
  const auto plain = MakeSession(*model);
  const auto session = MakeSession(*model, Options());
  const StateLayout& layout = session->state_layout();
  EXPECT_EQ(layout.formats[0].keys, (RowFormat{GetParam().cache.k, GetParam().key_rotation}));
  EXPECT_EQ(layout.formats[0].values, (RowFormat{GetParam().cache.v, GetParam().value_rotation}));
  EXPECT_EQ(layout.transposed_values, !GetParam().cache.flash_attention);
  Prefill(plain.get(), SomeTokens(150));
  Prefill(session.get(), SomeTokens(150));
  const KvState expected = Take(plain->TakeKv());
  const KvState rows = Take(session->TakeKv());
  EXPECT_LT(RelativeError(expected.view(), rows.view(), 0, Side::kKeys), LossOf(GetParam().cache.k));
  EXPECT_LT(RelativeError(expected.view(), rows.view(), 0, Side::kValues), LossOf(GetParam().cache.v));
}

// A card that was taken from such a context and restored into one gives back its rows: what is quantized again in the
// same way changes by the rounding of FP16 alone, or by one more step where that tips a value over.
TEST_P(CacheTypeTest, ACardIsTakenAndRestoredAndGoesOn) {
  const auto model = Load();
  const auto sender = MakeSession(*model, Options());
  const std::vector<int32_t> prefix = SomeTokens(150);
  const std::vector<int32_t> suffix = SomeTokens(20, 3);
  Prefill(sender.get(), prefix);
  const KvState sent = Take(sender->TakeKv());
  const Card card = PackCard(*sender, 16);
  const auto receiver = MakeSession(*model, Options());
  const Status status = Restore(card, 150, receiver.get());
  ASSERT_TRUE(status.ok()) << status.message();
  const KvState received = Take(receiver->TakeKv());
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_LT(RelativeError(sent.view(), received.view(), layer, Side::kKeys), LossOf(GetParam().cache.k) / 2);
    EXPECT_LT(RelativeError(sent.view(), received.view(), layer, Side::kValues), LossOf(GetParam().cache.v) / 2);
  }
  Prefill(sender.get(), suffix);
  Prefill(receiver.get(), suffix);
  const std::vector<float> a = Logits(*sender), b = Logits(*receiver);
  if (!IsQuantized(GetParam().cache.k) && !IsQuantized(GetParam().cache.v)) {
    EXPECT_EQ(a, b);  // to the bit
  }
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), size += std::pow(a[i], 2);
  EXPECT_LT(std::sqrt(error / size), 0.05);
}

// The state of llama.cpp's own goes into another session of the same types, and is refused elsewhere.
TEST_P(CacheTypeTest, ItsOwnStateGoesIntoTheSameTypesOnly) {
  const auto model = Load();
  const auto sender = MakeSession(*model, Options());
  const std::vector<int32_t> prefix = SomeTokens(100);
  Prefill(sender.get(), prefix);
  const std::vector<uint8_t> state = Take(sender->SaveState());
  const auto receiver = MakeSession(*model, Options());
  ASSERT_TRUE(receiver->RestoreState(state, prefix).ok());
  Prefill(sender.get(), {1, 2, 3});
  Prefill(receiver.get(), {1, 2, 3});
  EXPECT_EQ(Logits(*sender), Logits(*receiver));
  if (GetParam().cache.k == CacheType::kF16 && GetParam().cache.v == CacheType::kF16) return;
  const auto other = MakeSession(*model);
  Prefill(other.get(), {5});
  EXPECT_EQ(other->RestoreState(state, prefix).code(), StatusCode::kUnsupported);
  EXPECT_EQ(other->tokens(), std::vector<int32_t>{5});
}

constexpr CacheType kF16 = CacheType::kF16, kBF16 = CacheType::kBF16, kQ8 = CacheType::kQ8_0, kQ4 = CacheType::kQ4_0;

// Rotations: none of heads that are no multiple of 64; K's blocks are the largest power of two of them that divides
// the head, V's have 64.
INSTANTIATE_TEST_SUITE_P(Caches, CacheTypeTest,
                         testing::Values(CacheCase{"llama", 4, 2, 64, 0, {kBF16, kBF16}, 0, 0},
                                         CacheCase{"llama", 4, 2, 64, 0, {kQ8, kQ8}, 64, 64},
                                         CacheCase{"qwen2", 4, 2, 64, 0, {kQ4, kQ4}, 64, 64},
                                         CacheCase{"qwen2", 4, 2, 64, 0, {kQ8, kQ4}, 64, 64},
                                         CacheCase{"llama", 4, 2, 64, 0, {kF16, kQ8}, 0, 64},
                                         CacheCase{"llama", 4, 2, 64, 0, {kQ4, kBF16}, 64, 0},
                                         CacheCase{"llama", 2, 1, 256, 0, {kQ8, kQ8}, 256, 64},
                                         CacheCase{"llama", 2, 1, 192, 0, {kQ8, kQ8}, 64, 64},
                                         CacheCase{"llama", 4, 2, 96, 0, {kQ8, kQ8}, 0, 0},
                                         CacheCase{"gemma3", 4, 2, 64, 0, {kQ8, kQ4}, 64, 64},
                                         CacheCase{"plamo3", 4, 2, 96, 64, {kQ8, kQ8}, 0, 64},
                                         CacheCase{"llama", 4, 2, 64, 0, {kF16, kF16, false}, 0, 0},
                                         CacheCase{"plamo3", 4, 2, 96, 64, {kBF16, kBF16, false}, 0, 0},
                                         CacheCase{"llama", 4, 2, 64, 0, {kQ8, kF16, false}, 64, 0}));

using CacheRefusalTest = SessionTest;
using CacheWindowTest = SessionTest;

TEST_F(CacheRefusalTest, AQuantizedVCacheWithoutFlashAttention) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.flash_attention = false;
  options.cache_type_v = CacheType::kQ8_0;
  const Status status = Session::Create(*model, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("V cache of type q8_0 needs flash attention"), std::string::npos) << status.message();
}

TEST_F(CacheRefusalTest, HeadsThatAreNoMultipleOfAQuantizedTypesBlock) {
  TinyModelSpec spec;
  spec.key_dim = 72;
  const auto model = LoadTiny(spec);
  for (const bool flash_attention : {true, false}) {
    SessionOptions options = SmallOptions();
    options.cache_type_k = CacheType::kQ4_0;
    options.flash_attention = flash_attention;
    const Status status = Session::Create(*model, options).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("q4_0 takes heads of a multiple of 32 values, but the model's have 72"),
              std::string::npos)
        << status.message();
  }
}

TEST_F(CacheRefusalTest, AWindowOfQueriesWithoutFlashAttention) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.flash_attention = false;
  const auto session = MakeSession(*model, options);
  PrefillOptions prefill;
  prefill.window = 8;
  EXPECT_EQ(session->Prefill(SomeTokens(20), prefill).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(session->tokens().empty());
}

// llama.cpp can be told not to rotate.
TEST_F(CacheWindowTest, WhetherRowsAreRotatedIsSeenInTheContextItself) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.cache_type_k = options.cache_type_v = CacheType::kQ8_0;
  const auto plain = MakeSession(*model);
  setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
  const auto session = MakeSession(*model, options);
  unsetenv("LLAMA_ATTN_ROT_DISABLE");
  EXPECT_EQ(session->state_layout().formats[0].keys, (RowFormat{CacheType::kQ8_0, 0}));
  Prefill(plain.get(), SomeTokens(50));
  Prefill(session.get(), SomeTokens(50));
  const KvState expected = Take(plain->TakeKv());
  const KvState rows = Take(session->TakeKv());
  EXPECT_LT(RelativeError(expected.view(), rows.view(), 0, Side::kKeys), LossOf(CacheType::kQ8_0));
  EXPECT_LT(RelativeError(expected.view(), rows.view(), 0, Side::kValues), LossOf(CacheType::kQ8_0));
}

// The queries of a context that rotates them are as without: the policy compares them with keys that are not rotated.
TEST_F(CacheWindowTest, QueriesOfAWindowAreNotRotated) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.cache_type_k = CacheType::kQ8_0;
  PrefillOptions prefill;
  prefill.window = 16;
  const auto plain = MakeSession(*model);
  const auto rotated = MakeSession(*model, options);
  ASSERT_TRUE(plain->Prefill(SomeTokens(40), prefill).ok());
  ASSERT_TRUE(rotated->Prefill(SomeTokens(40), prefill).ok());
  const std::vector<float>& a = plain->window().layers[0].q;
  const std::vector<float>& b = rotated->window().layers[0].q;
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4f);  // of the first layer: rounding alone
}

}  // namespace
}  // namespace qkvshare
