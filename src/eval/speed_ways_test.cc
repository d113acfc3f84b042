#include "eval/speed_ways.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class SpeedWaysTest : public SessionTest {
 protected:
  SpeedRequest Request() const {
    SpeedRequest request;
    request.text = "The water of the spring is cold.";
    request.depth = 200;
    request.folder = Path("bench");
    request.session = SmallOptions();
    return request;
  }
};

// llama.cpp's side is llama.cpp alone, and yet does the work of a session with the same rows.
TEST_F(SpeedWaysTest, LlamasOwnCachesGiveTheBitsOfSessionsThatTheContextIsRestoredTo) {
  const auto model = LoadTiny({});
  const SpeedRequest request = Request();
  SpeedReport report;
  const auto context = Take(SpeedContext::Make(*model, request, &report));
  SpeedWays ways(*context);
  for (const char* name : {kF16Way, kQ8Way, kQ4Way}) {
    const auto session = MakeSession(*model, context->Options(CacheTypeOf(name), context->depth()));
    ASSERT_TRUE(Restore(*context->exact(), context->depth(), session.get()).ok());
    const SpeedWay* way = Take(ways.Find(name));
    ASSERT_EQ(way->session, nullptr) << name;
    for (int run = 0; run < 2; ++run) {
      ASSERT_TRUE(way->Restart().ok());
      ASSERT_TRUE(session->Truncate(context->depth()).ok());
      for (const size_t from : {size_t{0}, size_t{70}, size_t{71}}) {  // several calls, then single tokens
        const std::span<const int32_t> next = context->After(72).subspan(from, from == 0 ? 70 : 1);
        ASSERT_TRUE(way->Prefill(next).ok());
        ASSERT_TRUE(session->Prefill(next, {}).ok());
        const float* logits = way->plain->logits();
        ASSERT_NE(logits, nullptr);
        EXPECT_EQ(std::vector<float>(logits, logits + model->vocab_size()), Logits(*session)) << name;
      }
    }
  }
}

TEST_F(SpeedWaysTest, OnlyCardsNeedASession) {
  const auto model = LoadTiny({});
  const SpeedRequest request = Request();
  SpeedReport report;
  const auto context = Take(SpeedContext::Make(*model, request, &report));
  SpeedWays ways(*context);
  for (const char* name : {kFusedWay, kNoCardWay}) EXPECT_NE(Take(ways.Find(name))->session, nullptr) << name;
  EXPECT_NE(Take(ways.Find(kLlamaWay))->plain, nullptr);
  EXPECT_EQ(Take(ways.Find(kFusedWay))->session->tokens().size(), context->depth());
}

}  // namespace
}  // namespace qkvshare
