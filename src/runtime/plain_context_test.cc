#include "runtime/plain_context.h"

#include <gtest/gtest.h>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class PlainContextTest : public SessionTest {
 protected:
  static std::vector<float> LogitsOf(const PlainContext& context, const Model& model) {
    const float* logits = context.logits();
    EXPECT_NE(logits, nullptr);
    return {logits, logits + model.vocab_size()};
  }
};

// What eval speed compares must be the same work: both give the same bits, after a prompt of several calls and token by
// token.
TEST_F(PlainContextTest, ComputesWhatASessionWithoutCardsDoes) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model, FusedOptions());
  ASSERT_TRUE(session->fused().ok());
  const auto plain = Take(PlainContext::Create(*model, FusedOptions()));
  const std::vector<int32_t> tokens = SomeTokens(203);
  for (int i = 0; i < 2; ++i) {
    const std::span first = std::span(tokens).first(200);
    ASSERT_TRUE(plain->Prefill(first).ok());
    ASSERT_TRUE(session->Prefill(first, {}).ok());
    EXPECT_EQ(LogitsOf(*plain, *model), Logits(*session));
    for (const int32_t& token : std::span(tokens).subspan(200)) {
      ASSERT_TRUE(plain->Prefill({&token, 1}).ok());
      ASSERT_TRUE(session->Prefill({&token, 1}, {}).ok());
      EXPECT_EQ(LogitsOf(*plain, *model), Logits(*session));
    }
    ASSERT_TRUE(plain->Truncate(0).ok());
    session->Clear();
  }
}

TEST_F(PlainContextTest, GoesOnFromWhatIsKept) {
  const auto model = LoadTiny({});
  const auto plain = Take(PlainContext::Create(*model, SmallOptions()));
  EXPECT_EQ(plain->logits(), nullptr);
  EXPECT_GE(plain->cells(), SmallOptions().context);
  const std::vector<int32_t> tokens = SomeTokens(40);
  const auto last = std::span(tokens).last(1);
  ASSERT_TRUE(plain->Prefill(std::span(tokens).first(39)).ok());
  ASSERT_TRUE(plain->Prefill(last).ok());
  const std::vector<float> expected = LogitsOf(*plain, *model);
  ASSERT_TRUE(plain->Prefill(SomeTokens(10, 9)).ok());
  EXPECT_NE(LogitsOf(*plain, *model), expected);
  ASSERT_TRUE(plain->Truncate(39).ok());
  ASSERT_TRUE(plain->Prefill(last).ok());
  EXPECT_EQ(LogitsOf(*plain, *model), expected);
}

TEST_F(PlainContextTest, RefusesWhatDoesNotFit) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.context = 256;
  const auto plain = Take(PlainContext::Create(*model, options));
  EXPECT_EQ(plain->Prefill(SomeTokens(plain->cells() + 1)).code(), StatusCode::kOutOfRange);
  options.flash_attention = false;
  options.cache_type_v = CacheType::kQ8_0;
  EXPECT_EQ(PlainContext::Create(*model, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
