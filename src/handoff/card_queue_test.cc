#include "handoff/card_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "handoff/handoff_test_util.h"

namespace qkvshare {
namespace {

using handoff_test::SomeCard;

TEST(CardQueueTest, HandsOverPointersInOrder) {
  CardQueue queue(2);
  const std::vector<std::shared_ptr<const Card>> cards = {SomeCard(1), SomeCard(2), SomeCard(3), SomeCard(4)};
  std::thread sender([&] {
    for (const auto& card : cards) EXPECT_TRUE(queue.Send(card).ok());
    EXPECT_TRUE(queue.Finish().ok());
  });
  for (const auto& card : cards) {
    const auto next = queue.Next();
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(*next, card);
  }
  sender.join();
  for (int i = 0; i < 2; ++i) {  // and again
    const auto end = queue.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(*end, nullptr);
  }
  EXPECT_EQ(queue.Send(cards[0]).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(queue.Finish().code(), StatusCode::kInvalidArgument);
}

TEST(CardQueueTest, ASenderWaitsForRoom) {
  CardQueue queue(1);
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (int i = 0; i < 3; ++i, ++sent) EXPECT_TRUE(queue.Send(SomeCard(1)).ok());
  });
  for (int taken = 0; taken < 3; ++taken) {
    ASSERT_TRUE(queue.Next().has_value());
    EXPECT_LE(sent, taken + 2);
  }
  sender.join();
}

TEST(CardQueueTest, TellsWhyTheSenderGaveUpAfterTheCardsThatCame) {
  CardQueue queue(4);
  ASSERT_TRUE(queue.Send(SomeCard(1)).ok());
  queue.Abort("the prompt does not fit");
  EXPECT_TRUE(queue.Next().has_value());
  const Status status = queue.Next().status();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_NE(status.message().find("the prompt does not fit"), std::string::npos);
}

TEST(CardQueueTest, AReceiverThatClosesWakesTheSender) {
  CardQueue queue(1);
  ASSERT_TRUE(queue.Send(SomeCard(1)).ok());
  std::thread receiver([&] { queue.Close(); });
  EXPECT_EQ(queue.Send(SomeCard(2)).code(), StatusCode::kIo);
  receiver.join();
  EXPECT_EQ(queue.Finish().code(), StatusCode::kIo);
  EXPECT_EQ(queue.Next().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace qkvshare
