// A context that is handed over block by block while it is being read.
#include "runtime/card_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "eval/fidelity.h"
#include "handoff/card_queue.h"
#include "handoff/card_stream.h"
#include "handoff/handoff_test_util.h"
#include "runtime/calibrate.h"
#include "runtime/inject.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 600;  // two blocks, and a part of one

class CardBlocksTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.context = 1024;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    CalibrateOptions calibrate;
    calibrate.tokens = calibrate.piece_tokens = 256;
    StaticProfile profile = Take(Calibrate(NewSession().get(), calibrate));
    ASSERT_TRUE(WriteStaticProfile(Path("tiny.profile"), &profile).ok());
    options_.profile = std::make_shared<const StaticProfile>(profile);
    options_.sender = "a";
  }
  std::unique_ptr<Session> NewSession() const {
    SessionOptions options = FusedOptions();
    options.context = 1024;
    options.batch = 512;
    return MakeSession(*model_, options);
  }
  std::vector<CardPart> Send(const std::vector<int32_t>& tokens, BlockTimes* times = nullptr) const {
    CardQueue queue(64);
    BlockTimes ours;
    const auto session = NewSession();
    const Status status = PrefillAndSend(tokens, options_, session.get(), &queue, times != nullptr ? times : &ours);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(queue.Finish().ok());
    std::vector<CardPart> parts;
    EXPECT_TRUE(ReceiveCards(&queue, &parts).ok());
    return parts;
  }
  // Mean KL of what a receiver of these cards predicts from that after a prefill.
  double Loss(const std::vector<CardPart>& parts, const std::vector<int32_t>& tokens) const {
    const auto sender = NewSession(), receiver = NewSession();
    Prefill(sender.get(), tokens);
    EXPECT_TRUE(InjectCards(parts, InjectMode::kFused, receiver.get()).status().ok());
    const std::vector<int32_t> suffix = SomeTokens(30, 17);
    FidelityMeter meter;
    meter.Add(Take(ScoreTokens(sender.get(), suffix, 0)), Take(ScoreTokens(receiver.get(), suffix, 0)));
    return meter.Result().mean_kl;
  }

  std::unique_ptr<Model> model_;
  PackOptions options_;
};

TEST_F(CardBlocksTest, ClosedBlocksMakeTheContext) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens);
  options_.segments = {{"rules", "a", "", 0, 300}, {"story", "a", "", 300, 300}};
  BlockTimes times;
  const std::vector<CardPart> parts = Send(tokens, &times);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(times.blocks, 3U);
  EXPECT_EQ(TokensOf(parts), tokens);
  size_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Card& card = *parts[i].card;
    bytes += card.file_bytes();
    EXPECT_EQ(card.tokens(), i < 2 ? kBlockTokens : kTokens - 2 * kBlockTokens);
    EXPECT_EQ(card.info().rounding, "queries");
    EXPECT_EQ(card.exact_tokens(), i == 0 ? kSinkTokens : 0);
    EXPECT_EQ(card.parent(), i == 0 ? Digest{} : parts[i - 1].card->content_id());
  }
  EXPECT_EQ(times.bytes, bytes);
  const std::vector<Segment>& second = parts[1].card->info().segments;
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second[0].role, "rules");
  EXPECT_EQ(second[0].tokens, 300 - kBlockTokens);
  EXPECT_EQ(second[1].tokens, 2 * kBlockTokens - 300);
  // As good as one card, and not as good as none is needed for.
  const auto session = NewSession();
  ASSERT_TRUE(session->KeepQueries(kWindowTokens, kWindowStride).ok());
  Prefill(session.get(), tokens);
  PackTimes pack_times;
  PackOptions whole = options_;
  std::vector<CardPart> one;
  const PackedCard packed = Take(PackSession(*session, whole, &pack_times));
  ASSERT_TRUE(AppendCard(std::make_shared<const Card>(Take(Card::FromBytes(packed.Bytes()))), &one).ok());
  const double of_one = Loss(one, tokens);
  EXPECT_GT(of_one, 0);
  EXPECT_LT(Loss(parts, tokens), 2 * of_one);
  options_.code_bits = 2;
  EXPECT_GT(Loss(Send(tokens), tokens), 2 * of_one);
}

TEST_F(CardBlocksTest, ABlockDoesNotDependOnWhatFollows) {
  std::vector<int32_t> tokens = SomeTokens(512), other = tokens;
  std::rotate(other.begin() + kBlockTokens, other.begin() + kBlockTokens + 9, other.end());
  const std::vector<CardPart> a = Send(tokens), b = Send(other);
  const auto same = [&](size_t block) {  // content ids also count when a card was made
    const Card &ours = *a[block].card, &theirs = *b[block].card;
    bool equal = ours.anchors().size() == theirs.anchors().size();
    for (size_t layer = 0; layer < ours.layers(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues})
        equal = equal && std::ranges::equal(ours.block(layer, side, 0), theirs.block(layer, side, 0));
    }
    return equal;
  };
  EXPECT_TRUE(same(0));
  EXPECT_FALSE(same(1));
}

// The receiver has the first block before the sender has read the rest.
TEST_F(CardBlocksTest, BlocksLeaveWhileTheRestIsRead) {
  handoff_test::Ends pipe = handoff_test::Pipe();
  const std::vector<int32_t> tokens = SomeTokens(kTokens);
  std::atomic<size_t> read{0};
  std::thread sender([&] {
    CardStreamWriter writer(*Wire::Take(std::move(pipe.writing), "the receiver", {}), /*share=*/false);
    BlockTimes times;
    const Status status = PrefillAndSend(tokens, options_, NewSession().get(), &writer, &times,
                                         [&](size_t done, size_t) { read = done; });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(writer.Finish().ok());
  });
  CardStreamReader reader(*Wire::Take(std::move(pipe.reading), "the sender", {}), /*own=*/false);
  std::vector<CardPart> parts;
  std::vector<size_t> read_then;
  const Status status = ReceiveCards(&reader, &parts, [&](const CardPart&) { read_then.push_back(read); });
  sender.join();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(TokensOf(parts), tokens);
  ASSERT_EQ(read_then.size(), 3U);
  EXPECT_LT(read_then[0], kTokens);
}

TEST_F(CardBlocksTest, GoesOnFromAttachedCards) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens);
  std::vector<CardPart> parts = Send({tokens.begin(), tokens.begin() + 300});
  const auto session = NewSession();
  ASSERT_TRUE(InjectCards(parts, InjectMode::kFused, session.get()).status().ok());
  options_.profile = nullptr;  // those of the cards before
  CardQueue queue(64);
  BlockTimes times;
  const Status status = PrefillAndSend(std::span(tokens).subspan(300), options_, session.get(), &queue, &times);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(queue.Finish().ok());
  ASSERT_TRUE(ReceiveCards(&queue, &parts).ok());
  EXPECT_EQ(parts.size(), 4U);
  EXPECT_EQ(TokensOf(parts), tokens);
}

TEST_F(CardBlocksTest, WhatCannotBeIsRefusedBeforeTheWork) {
  const auto session = NewSession();
  CardQueue queue(64);
  BlockTimes times;
  const std::vector<int32_t> tokens = SomeTokens(40);
  const auto refused = [&](const PackOptions& options, std::span<const int32_t> of, const std::string& says) {
    const Status status = PrefillAndSend(of, options, session.get(), &queue, &times);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_EQ(times.blocks, 0U);
  };
  PackOptions options = options_;
  refused(options, {}, "no tokens");
  options.policy = Policy::kLocal;
  options.code_bits = 3.5;
  refused(options, tokens, "policy uniform");
  options = options_;
  options.max_bytes = 1 << 20;
  refused(options, tokens, "bits alone");
  options = options_;
  options.profile = nullptr;
  refused(options, tokens, "calibrate");
  EXPECT_TRUE(session->tokens().empty());
  Prefill(session.get(), tokens);
  refused(options_, tokens, "tokens of its own");
}

TEST_F(CardBlocksTest, AReceiverThatIsGoneEndsIt) {
  CardQueue queue(1);
  queue.Close();
  BlockTimes times;
  EXPECT_EQ(PrefillAndSend(SomeTokens(40), options_, NewSession().get(), &queue, &times).code(), StatusCode::kIo);
}

}  // namespace
}  // namespace qkvshare
