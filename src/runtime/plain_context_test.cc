#include "runtime/plain_context.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

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

class PlainContextStateTest : public PlainContextTest, public testing::WithParamInterface<CacheType> {};

// So llama.cpp alone can go on from what a session or a card holds: put there, or by its own file of it.
TEST_P(PlainContextStateTest, GoesOnFromASessionsStateWithItsBits) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.cache_type_k = options.cache_type_v = GetParam();
  const auto session = MakeSession(*model, options);
  const std::vector<int32_t> tokens = SomeTokens(200);
  Prefill(session.get(), tokens);
  const auto given = Take(PlainContext::Create(*model, options));
  ASSERT_TRUE(given->Prefill(SomeTokens(7, 9)).ok());  // is replaced
  ASSERT_TRUE(given->SetState(Take(session->SaveState())).ok());
  ASSERT_TRUE(given->SaveFile(Path("state"), tokens).ok());
  const auto loaded = Take(PlainContext::Create(*model, options));
  EXPECT_EQ(Take(loaded->LoadFile(Path("state"))), tokens);
  for (const std::vector<int32_t>& next : {SomeTokens(70, 9), SomeTokens(1, 10), SomeTokens(1, 11)}) {
    Prefill(session.get(), next);
    for (PlainContext* plain : {given.get(), loaded.get()}) {
      ASSERT_TRUE(plain->Prefill(next).ok());
      EXPECT_EQ(LogitsOf(*plain, *model), Logits(*session));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PlainContextStateTest,
                         testing::Values(CacheType::kF16, CacheType::kQ8_0, CacheType::kQ4_0),
                         [](const auto& test) { return std::string(CacheTypeName(test.param)); });

TEST_F(PlainContextTest, IsEmptyAfterAStateThatItCannotTake) {
  const auto model = LoadTiny({});
  const auto plain = Take(PlainContext::Create(*model, SmallOptions()));
  const auto is_empty = [&] { return plain->logits() == nullptr; };
  ASSERT_TRUE(plain->Prefill(SomeTokens(10)).ok());
  ASSERT_TRUE(plain->SaveFile(Path("state"), SomeTokens(10)).ok());
  for (const std::string& path : {Path("none/state"), std::string("/dev/full")}) {
    const Status status = plain->SaveFile(path, SomeTokens(10));
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  EXPECT_FALSE(is_empty());

  SessionOptions options = SmallOptions();
  options.context = 1024;
  const auto larger = Take(PlainContext::Create(*model, options));
  ASSERT_TRUE(larger->Prefill(SomeTokens(600)).ok());
  ASSERT_TRUE(larger->SaveFile(Path("longer"), SomeTokens(600)).ok());
  std::fstream(Path("state"), std::ios::in | std::ios::out) << "no state";
  for (const char* name : {"state", "longer", "none"}) {
    ASSERT_TRUE(plain->Prefill(SomeTokens(10)).ok());
    const Status status = plain->LoadFile(Path(name)).status();
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(Path(name)), std::string::npos) << status.message();
    EXPECT_TRUE(is_empty()) << name;
  }
  ASSERT_TRUE(plain->Prefill(SomeTokens(10)).ok());
  EXPECT_EQ(plain->SetState(std::vector<uint8_t>(100)).code(), StatusCode::kInternal);
  EXPECT_TRUE(is_empty());
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
  TinyModelSpec spec;
  spec.key_dim = 80;
  options.flash_attention = true;
  EXPECT_EQ(PlainContext::Create(*LoadTiny(spec, "wide.gguf"), options).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace qkvshare
