#include "handoff/card_stream.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "handoff/handoff_test_util.h"

namespace qkvshare {
namespace {

using handoff_test::Ends;
using handoff_test::Pipe;
using handoff_test::SomeCard;
using SomeCards = std::vector<std::shared_ptr<const Card>>;

constexpr int64_t kLongUs = 20'000'000, kShortUs = 150'000;

WireOptions Idle(int64_t us) {
  WireOptions options;
  options.idle_us = us;
  return options;
}

CardStreamWriter Writer(Descriptor fd, bool share = false, int64_t idle_us = kLongUs) {
  return {*Wire::Take(std::move(fd), "the receiver", Idle(idle_us)), share};
}
CardStreamReader Reader(Descriptor fd, int64_t idle_us = kLongUs, const CardStreamLimits& limits = {}) {
  return {*Wire::Take(std::move(fd), "the sender", Idle(idle_us)), /*own=*/false, limits};
}

struct Received {
  SomeCards cards;
  Status status;
};
Received ReceiveAll(CardStreamReader* reader) {
  Received all;
  for (;;) {
    Result<std::shared_ptr<const Card>> next = reader->Next();
    if (!next || *next == nullptr) {
      all.status = next.status();
      return all;
    }
    all.cards.push_back(*next);
  }
}

bool SameBytes(const Card& a, const Card& b) { return std::ranges::equal(a.bytes(), b.bytes()); }

// What a sender writes, as bytes.
std::vector<uint8_t> StreamOf(const SomeCards& cards) {
  Ends pipe = Pipe();
  std::vector<uint8_t> bytes;
  std::thread reader([&] {
    uint8_t buffer[4096];
    for (ssize_t n = 0; (n = read(pipe.reading.get(), buffer, sizeof buffer)) > 0;)
      bytes.insert(bytes.end(), buffer, buffer + n);
  });
  {
    CardStreamWriter writer = Writer(std::move(pipe.writing));
    for (const auto& card : cards) EXPECT_TRUE(writer.Send(card).ok());
    EXPECT_TRUE(writer.Finish().ok());
  }
  reader.join();
  return bytes;
}

// What a receiver makes of bytes after which the sender is gone.
Received Receive(ByteSpan bytes, const CardStreamLimits& limits = {}) {
  Ends pipe = Pipe();
  std::thread sender([&] {
    Wire wire = *Wire::Take(std::move(pipe.writing), "the receiver", Idle(kLongUs));
    static_cast<void>(wire.Write(bytes));  // the receiver may have seen enough
  });
  Received all;
  {
    CardStreamReader reader = Reader(std::move(pipe.reading), kLongUs, limits);
    all = ReceiveAll(&reader);
    EXPECT_EQ(reader.Next().status().code(), all.status.code());  // for good
  }
  sender.join();
  return all;
}

struct Way {
  const char* name;
  std::function<Ends()> make;
  bool share;
};

class CardStreamTest : public testing::TestWithParam<Way> {};

TEST_P(CardStreamTest, CardsComeAsTheyWereSent) {
  const SomeCards cards = {SomeCard(1), SomeCard(2, 700), SomeCard(3)};
  Ends ends = GetParam().make();
  std::thread sender([&] {
    CardStreamWriter writer = Writer(std::move(ends.writing), GetParam().share);
    for (const auto& card : cards) EXPECT_TRUE(writer.Send(card).ok());
    const Status finished = writer.Finish();
    EXPECT_TRUE(finished.ok()) << finished.message();
    EXPECT_EQ(writer.Send(cards[0]).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(writer.Finish().code(), StatusCode::kInvalidArgument);
  });
  CardStreamReader reader = Reader(std::move(ends.reading));
  const Received all = ReceiveAll(&reader);
  sender.join();
  EXPECT_TRUE(all.status.ok()) << all.status.message();
  ASSERT_EQ(all.cards.size(), cards.size());
  for (size_t i = 0; i < cards.size(); ++i) EXPECT_TRUE(SameBytes(*all.cards[i], *cards[i])) << i;
}

TEST_P(CardStreamTest, NothingIsAHandOverToo) {
  Ends ends = GetParam().make();
  std::thread sender([&] { EXPECT_TRUE(Writer(std::move(ends.writing), GetParam().share).Finish().ok()); });
  CardStreamReader reader = Reader(std::move(ends.reading));
  const Received all = ReceiveAll(&reader);
  sender.join();
  EXPECT_TRUE(all.status.ok()) << all.status.message();
  EXPECT_TRUE(all.cards.empty());
}

TEST_P(CardStreamTest, ASenderThatGivesUpSaysWhy) {
  Ends ends = GetParam().make();
  std::thread sender([&] {
    CardStreamWriter writer = Writer(std::move(ends.writing), GetParam().share);
    EXPECT_TRUE(writer.Send(SomeCard(1)).ok());
    writer.Abort("no room\nfor more");
  });
  CardStreamReader reader = Reader(std::move(ends.reading));
  const Received all = ReceiveAll(&reader);
  sender.join();
  EXPECT_EQ(all.cards.size(), 1U);
  EXPECT_EQ(all.status.code(), StatusCode::kCancelled);
  EXPECT_EQ(all.status.message(), "the sender gave up: no room for more");
}

// With all its threads, in the middle of whatever it did.
TEST_P(CardStreamTest, ASenderThatDiesIsReported) {
  Ends ends = GetParam().make();
  const pid_t child = fork();
  if (child == 0) {
    ends.reading.Close();
    CardStreamWriter writer = Writer(std::move(ends.writing), GetParam().share);
    static_cast<void>(writer.Send(SomeCard(1)));
    kill(getpid(), SIGKILL);
  }
  ends.writing.Close();
  CardStreamReader reader = Reader(std::move(ends.reading));
  const Received all = ReceiveAll(&reader);
  waitpid(child, nullptr, 0);
  ASSERT_EQ(all.cards.size(), 1U);
  EXPECT_EQ(all.status.code(), StatusCode::kIo);
  EXPECT_EQ(all.status.message(), "the sender is gone before the end: 1 card came");
  EXPECT_TRUE(all.cards[0]->VerifyDigests().ok());  // and stays what it is
}

TEST_P(CardStreamTest, AReceiverThatIsGoneIsReportedAndRaisesNoSignal) {
  Ends ends = GetParam().make();
  CardStreamWriter writer = Writer(std::move(ends.writing), GetParam().share);
  ends.reading.Close();
  Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) status = writer.Send(SomeCard(1, 700));
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "the receiver is gone");
  EXPECT_EQ(writer.Send(SomeCard(1)).code(), StatusCode::kInvalidArgument);
}

TEST_P(CardStreamTest, APeerThatStandsStillIsNotWaitedForForEver) {
  Ends ends = GetParam().make();
  {
    CardStreamReader reader = Reader(Descriptor(dup(ends.reading.get())), kShortUs);
    const Status status = reader.Next().status();
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find("the sender has stood still for 0."), std::string::npos) << status.message();
  }
  CardStreamWriter writer = Writer(std::move(ends.writing), GetParam().share, kShortUs);
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) status = writer.Send(SomeCard(1, 700));
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("the receiver has stood still"), std::string::npos) << status.message();
}

TEST_P(CardStreamTest, WaitingIsCancelled) {
  Ends ends = GetParam().make();
  std::atomic<bool> cancel{false};
  WireOptions options = Idle(0);
  options.cancel = &cancel;
  CardStreamReader reader(*Wire::Take(std::move(ends.reading), "the sender", options), /*own=*/true);
  std::thread other([&] { cancel = true; });
  EXPECT_EQ(reader.Next().status().code(), StatusCode::kCancelled);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Ways, CardStreamTest,
                         testing::Values(Way{"Pipe", Pipe, false}, Way{"Socket", handoff_test::Sockets, false},
                                         Way{"SharedMemory", handoff_test::Sockets, true}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST(CardStreamBytesTest, AStreamThatIsCutAnywhereIsReported) {
  const SomeCards cards = {SomeCard(1), SomeCard(2)};
  const std::vector<uint8_t> bytes = StreamOf(cards);
  const size_t first = kFrameHeaderBytes + cards[0]->file_bytes();
  for (size_t cut = 0; cut < bytes.size(); cut += cut % first < 2 * kFrameHeaderBytes ? 1 : 97) {
    const Received all = Receive(ByteSpan(bytes).first(cut));
    EXPECT_EQ(all.status.code(), StatusCode::kIo) << cut;
    EXPECT_EQ(all.cards.size(), std::min<size_t>(cut / first, 2)) << cut;
  }
  EXPECT_TRUE(Receive(bytes).status.ok());
}

TEST(CardStreamBytesTest, AChangedByteIsSeenAndTheCardsBeforeItStay) {
  const SomeCards cards = {SomeCard(1), SomeCard(2)};
  const std::vector<uint8_t> bytes = StreamOf(cards);
  const size_t first = kFrameHeaderBytes + cards[0]->file_bytes();
  for (size_t at = 0; at < bytes.size(); at += at % first < 2 * kFrameHeaderBytes ? 1 : 97) {
    std::vector<uint8_t> changed = bytes;
    changed[at] ^= 0x10;
    const Received all = Receive(changed);
    EXPECT_FALSE(all.status.ok()) << at;
    EXPECT_EQ(all.cards.size(), std::min<size_t>(at / first, 2)) << at;
  }
}

TEST(CardStreamBytesTest, MoreThanAnnouncedIsSeen) {
  std::vector<uint8_t> bytes = StreamOf({SomeCard(1)});
  bytes.push_back(0);
  EXPECT_EQ(Receive(bytes).status.code(), StatusCode::kCorrupt);
  bytes = StreamOf({SomeCard(1)});
  bytes.insert(bytes.end() - kFrameHeaderBytes, 0);  // a byte more than the card has
  EXPECT_EQ(Receive(bytes).status.message(), "the stream of cards is damaged: no frame begins where one should");
}

// Frames that are whole, but are not what may come.
TEST(CardStreamBytesTest, FramesOutOfOrderAreRefused) {
  const SomeCards cards = {SomeCard(1), SomeCard(2)};
  const std::vector<uint8_t> bytes = StreamOf(cards);
  const size_t first = kFrameHeaderBytes + cards[0]->file_bytes();
  const auto rest = bytes.begin() + static_cast<ptrdiff_t>(first);
  EXPECT_EQ(Receive(std::vector<uint8_t>(rest, bytes.end())).status.code(), StatusCode::kCorrupt);  // one is missing
  std::vector<uint8_t> twice(bytes.begin(), rest);
  twice.insert(twice.end(), bytes.begin(), bytes.end());
  const Received all = Receive(twice);
  EXPECT_EQ(all.cards.size(), 1U);
  EXPECT_EQ(all.status.code(), StatusCode::kCorrupt);
  for (const FrameHeader& header :
       {FrameHeader{FrameType::kReceived, 0, 0, 0}, FrameHeader{FrameType::kSealedCard, 0, 9, 9},
        FrameHeader{FrameType::kEnd, 0, 0, 1}}) {
    EXPECT_EQ(Receive(EncodeFrame(header)).status.code(), StatusCode::kCorrupt);
  }
}

// Before memory is set aside for it.
TEST(CardStreamBytesTest, LimitsHold) {
  CardStreamLimits limits;
  EXPECT_EQ(Receive(EncodeFrame({FrameType::kCard, 0, uint64_t{1} << 60, uint64_t{1} << 60})).status.code(),
            StatusCode::kOutOfRange);
  const SomeCards cards = {SomeCard(1), SomeCard(2)};
  limits.cards = 1;
  EXPECT_EQ(Receive(StreamOf(cards), limits).cards.size(), 1U);
  EXPECT_EQ(Receive(StreamOf(cards), limits).status.code(), StatusCode::kOutOfRange);
  limits.cards = 2;
  EXPECT_TRUE(Receive(StreamOf(cards), limits).status.ok());
  limits.card_bytes = cards[0]->file_bytes() - 1;
  EXPECT_EQ(Receive(StreamOf(cards), limits).status.code(), StatusCode::kOutOfRange);
}

// A card whose checksums are right, but not its digests, passes among processes of one user only.
TEST(CardStreamBytesTest, DigestsOfWhatComesFromOutsideAreChecked) {
  const auto card = SomeCard(1);
  std::vector<uint8_t> forged(card->bytes().begin(), card->bytes().end());
  card_format::FileHeader header;
  std::memcpy(&header, forged.data(), sizeof header);
  forged[offsetof(card_format::FileHeader, content_id)] ^= 1;
  std::vector<uint8_t> checked(forged.begin(), forged.begin() + offsetof(card_format::FileHeader, checksum));
  const size_t table = header.section_count * sizeof(card_format::SectionEntry);
  checked.insert(checked.end(), forged.begin() + sizeof header,
                 forged.begin() + static_cast<ptrdiff_t>(sizeof header + table));
  const uint64_t checksum = Xxh3(checked);
  std::memcpy(forged.data() + offsetof(card_format::FileHeader, checksum), &checksum, sizeof checksum);
  const SomeCards cards = {std::make_shared<const Card>(*Card::FromBytes(forged))};
  EXPECT_EQ(Receive(StreamOf(cards)).status.code(), StatusCode::kCorrupt);
  Ends pipe = Pipe();
  std::thread sender([&] { EXPECT_TRUE(Writer(std::move(pipe.writing)).Send(cards[0]).ok()); });
  CardStreamReader reader(*Wire::Take(std::move(pipe.reading), "the sender", Idle(kLongUs)), /*own=*/true);
  EXPECT_TRUE(reader.Next().has_value());
  sender.join();
}

class SharedMemoryTest : public testing::Test {
 protected:
  // Passes a descriptor as if it were a card's memory.
  Status Pass(int file, uint64_t bytes) {
    Wire wire = *Wire::Take(std::move(ends_.writing), "the receiver", Idle(kLongUs));
    EXPECT_TRUE(wire.Write(EncodeFrame({FrameType::kSealedCard, 0, bytes, bytes}), file).ok());
    return Reader(std::move(ends_.reading)).Next().status();
  }
  static Descriptor MemoryOf(const Card& card, int seals) {
    Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(write(file.get(), card.bytes().data(), card.file_bytes()), static_cast<ssize_t>(card.file_bytes()));
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  }

  Ends ends_ = handoff_test::Sockets();
  std::shared_ptr<const Card> card_ = SomeCard(1);
};

TEST_F(SharedMemoryTest, OneCopyServesAllAndOutlivesTheSender) {
  const ByteSpan bytes = card_->bytes();
  SomeCards taken;
  {
    const SealedCard shared = *SealedCard::Make({&bytes, 1});
    for (int i = 0; i < 10; ++i) {
      Ends ends = handoff_test::Sockets();
      std::thread sender([&] {
        CardStreamWriter writer = Writer(std::move(ends.writing));
        EXPECT_TRUE(writer.SendSealed(shared).ok());
        EXPECT_TRUE(writer.Finish().ok());
      });
      CardStreamReader reader = Reader(std::move(ends.reading));
      const Received all = ReceiveAll(&reader);
      sender.join();
      ASSERT_EQ(all.cards.size(), 1U) << all.status.message();
      taken.push_back(all.cards[0]);
    }
  }
  for (const auto& card : taken) EXPECT_TRUE(SameBytes(*card, *card_));
}

TEST_F(SharedMemoryTest, NobodyCanChangeIt) {
  const ByteSpan bytes = card_->bytes();
  const SealedCard shared = *SealedCard::Make({&bytes, 1});
  EXPECT_EQ(write(shared.file(), "x", 1), -1);
  EXPECT_EQ(ftruncate(shared.file(), 0), -1);
  EXPECT_EQ(ftruncate(shared.file(), static_cast<off_t>(bytes.size() + 1)), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared.file(), 0), MAP_FAILED);
}

TEST_F(SharedMemoryTest, MemoryThatSomebodyCouldChangeIsRefused) {
  for (const int seals : {0, F_SEAL_WRITE | F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_WRITE | F_SEAL_GROW}) {
    ends_ = handoff_test::Sockets();
    const Status status = Pass(MemoryOf(*card_, seals).get(), card_->file_bytes());
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("not sealed"), std::string::npos) << status.message();
  }
  ends_ = handoff_test::Sockets();
  EXPECT_TRUE(Pass(MemoryOf(*card_, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW).get(), card_->file_bytes()).ok());
}

TEST_F(SharedMemoryTest, AnotherLengthThanAnnouncedIsRefused) {
  const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  for (const int64_t more : {-1, 1, 4096}) {
    ends_ = handoff_test::Sockets();
    const Status status = Pass(MemoryOf(*card_, seals).get(), card_->file_bytes() + static_cast<uint64_t>(more));
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("were announced"), std::string::npos) << status.message();
  }
}

TEST_F(SharedMemoryTest, OtherDescriptorsAreRefused) {
  const Ends pipe = Pipe();
  EXPECT_EQ(Pass(pipe.reading.get(), 10).code(), StatusCode::kCorrupt);
  // None, where one is announced; one where none is.
  ends_ = handoff_test::Sockets();
  EXPECT_EQ(Pass(-1, card_->file_bytes()).code(), StatusCode::kCorrupt);
  ends_ = handoff_test::Sockets();
  Wire wire = *Wire::Take(std::move(ends_.writing), "the receiver", Idle(kLongUs));
  ASSERT_TRUE(wire.Write(EncodeFrame({FrameType::kEnd, 0, 0, 0}), pipe.reading.get()).ok());
  EXPECT_EQ(Reader(std::move(ends_.reading)).Next().status().code(), StatusCode::kCorrupt);
}

TEST_F(SharedMemoryTest, APipePassesNone) {
  Ends pipe = Pipe();
  EXPECT_EQ(Writer(std::move(pipe.writing), /*share=*/true).Send(card_).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
