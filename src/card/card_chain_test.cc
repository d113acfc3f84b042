// Finding the parents of delta cards, and the links that are refused.
#include "card/card_chain.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/file.h"
#include "card/card_test_util.h"

namespace qkvshare {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Pack(const CardContent& content) {
  const card_test::SyntheticKv kv(content.token_ids.size(), {{1, 8, 8}}, 1);
  const KvView view = kv.view();
  const KeyProfiles profiles = MeasureKeyProfiles(view, 0, 1);
  return PackCard(view, UniformPlan(view.tokens, {4, 4}, 0), profiles, content, 1)->Bytes();
}

// The same rows each time, so the same profile.
Bytes PackRoot(int32_t first_id = 1) {
  CardContent content = card_test::Content(10);
  content.token_ids[0] = first_id;
  return Pack(content);
}
Bytes PackDelta(const Bytes& parent, uint32_t first) {
  return Pack(card_test::DeltaContent(*Card::FromBytes(parent), first, 10));
}

// The card with another content id in its header, where nothing but a digest would tell.
Bytes WithContentId(const Bytes& card, const Digest& id) {
  Bytes forged = card;
  std::copy(id.begin(), id.end(), forged.begin() + offsetof(card_format::FileHeader, content_id));
  const size_t table_end =
      sizeof(card_format::FileHeader) + card_test::Parts(card).entries.size() * sizeof(card_format::SectionEntry);
  Bytes checked(forged.begin(), forged.begin() + offsetof(card_format::FileHeader, checksum));
  checked.insert(checked.end(), forged.begin() + sizeof(card_format::FileHeader),
                 forged.begin() + static_cast<std::ptrdiff_t>(table_end));
  card_test::Patch(&forged, offsetof(card_format::FileHeader, checksum), Xxh3(checked));
  return forged;
}

class ChainFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() / ("qkv_chain_" + std::to_string(getpid()) + "_" + name);
    std::filesystem::create_directories(folder_ / "other");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  void Write(const std::string& name, const Bytes& bytes) const {
    ASSERT_TRUE(WriteFileAtomic(Path(name), {bytes}).ok());
  }
  // Names of the files of the chain, those that were found with a + before them.
  std::vector<std::string> Chain(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(Path(name));
    const Result<std::vector<ChainCard>> chain = OpenWithParents(paths);
    EXPECT_TRUE(chain) << chain.status().message();
    std::vector<std::string> found;
    for (const ChainCard& link : chain ? *chain : std::vector<ChainCard>()) {
      found.push_back((link.wanted_by.empty() ? "" : "+") + std::filesystem::relative(link.path, folder_).string());
    }
    return found;
  }
  void Refused(const std::vector<std::string>& names, StatusCode code, const std::vector<std::string>& says) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(Path(name));
    const Status status = OpenWithParents(paths).status();
    EXPECT_EQ(status.code(), code) << status.message();
    for (const std::string& words : says) {
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
  }

  using Names = std::vector<std::string>;
  std::filesystem::path folder_;
  const Bytes root_ = PackRoot(), second_ = PackDelta(root_, 8), third_ = PackDelta(second_, 18);
};

TEST_F(ChainFilesTest, ParentsAreFoundBesideTheCardThatContinuesThem) {
  Write("root.card", root_);
  Write("b.card", second_);
  Write("c.card", third_);
  EXPECT_EQ(Chain({"root.card"}), (Names{"root.card"}));
  EXPECT_EQ(Chain({"c.card"}), (Names{"+root.card", "+b.card", "c.card"}));
  EXPECT_EQ(Chain({"b.card", "c.card"}), (Names{"+root.card", "b.card", "c.card"}));
  EXPECT_EQ(Chain({"root.card", "c.card"}), (Names{"root.card", "+b.card", "c.card"}));
  EXPECT_EQ(Chain({"root.card", "b.card", "c.card"}), (Names{"root.card", "b.card", "c.card"}));
  Write("stranger.card", PackRoot(7));
  EXPECT_EQ(Chain({"stranger.card", "b.card"}), (Names{"stranger.card", "+root.card", "b.card"}));
  // A parent that was given is not looked for: that it is not just before is for others to say.
  EXPECT_EQ(Chain({"b.card", "root.card"}), (Names{"b.card", "root.card"}));
}

// After root, second and another card that continues the root, side by side.
TEST_F(ChainFilesTest, AContextIsFoundInItsOrder) {
  const auto id = [](const Bytes& card) { return Card::FromBytes(card)->content_id(); };
  CardContent content = card_test::DeltaContent(*Card::FromBytes(root_), 8, 10);
  content.info.sender = "another";
  const Bytes other = Pack(content);
  content = card_test::DeltaContent(*Card::FromBytes(other), 18, 10);
  content.first_token = 27;
  for (size_t i = 0; i < 10; ++i) content.positions[i] = static_cast<int32_t>(27 + i);
  content.info.context = {{id(root_), 8}, {id(second_), 10}, {id(other), 9}};
  const Bytes joined = Pack(content);
  const Bytes last = PackDelta(joined, 30);
  Write("root.card", root_);
  Write("z.card", second_);
  Write("a.card", other);
  Write("joined.card", joined);
  Write("last.card", last);
  EXPECT_EQ(Chain({"joined.card"}), (Names{"+root.card", "+z.card", "+a.card", "joined.card"}));
  EXPECT_EQ(Chain({"last.card"}), (Names{"+root.card", "+z.card", "+a.card", "+joined.card", "last.card"}));
  EXPECT_EQ(Chain({"z.card", "last.card"}), (Names{"+root.card", "z.card", "+a.card", "+joined.card", "last.card"}));
  // The files that are given keep their order.
  EXPECT_EQ(Chain({"a.card", "joined.card"}), (Names{"+root.card", "a.card", "+z.card", "joined.card"}));

  // A card may be in it twice, and so be needed twice.
  content.info.context = {{id(root_), 8}, {id(root_), 10}, {id(other), 9}};
  Write("joined.card", Pack(content));
  EXPECT_EQ(Chain({"joined.card"}), (Names{"+root.card", "+root.card", "+a.card", "joined.card"}));
  EXPECT_EQ(Chain({"root.card", "joined.card"}).size(), 4u);
  content.info.context = {{id(root_), 16}, {id(other), 11}};
  Write("joined.card", Pack(content));
  Refused({"joined.card"}, StatusCode::kMismatch,
          {"joined.card after", "made on 11 tokens of that card, which has 10"});
  content.info.context = {{{1, 2, 3}, 18}, {id(other), 9}};
  Write("joined.card", Pack(content));
  Refused({"joined.card"}, StatusCode::kNotFound, {Path("joined.card") + " continues card 010203"});
  // One that says it was made on itself.
  Write("joined.card", WithContentId(Pack(content), {1, 2, 3}));
  Refused({"joined.card"}, StatusCode::kCorrupt, {Path("joined.card"), "circle"});
}

TEST_F(ChainFilesTest, EachCardIsLookedForInTheFolderOfTheOneThatWantsIt) {
  Write("root.card", root_);
  Write("other/b.card", second_);
  Write("other/c.card", third_);
  Refused({"other/c.card"}, StatusCode::kNotFound,
          {Path("other/b.card"), ToHex(Card::FromBytes(root_)->content_id()), "put it there"});
  Write("other/root.card", root_);
  EXPECT_EQ(Chain({"other/c.card"}), (Names{"+other/root.card", "+other/b.card", "other/c.card"}));
}

TEST_F(ChainFilesTest, ANameWithoutFolderIsOfTheWorkingFolder) {
  Write("root.card", root_);
  Write("b.card", second_);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const Result<std::vector<ChainCard>> chain = OpenWithParents({"b.card"});
  std::filesystem::current_path(before);
  ASSERT_TRUE(chain) << chain.status().message();
  ASSERT_EQ(chain->size(), 2u);
  EXPECT_EQ(chain->front().path, "root.card");
}

TEST_F(ChainFilesTest, OfEqualCardsTheFirstByNameIsTaken) {
  Write("b.card", second_);
  for (const char* name : {"y.card", "x.card", "z.card"}) Write(name, root_);
  EXPECT_EQ(Chain({"b.card"}), (Names{"+x.card", "b.card"}));
}

TEST_F(ChainFilesTest, WhatIsNoCardIsPassedOver) {
  Write("b.card", second_);
  Write("root.bin", root_);  // not by this name
  Write("empty.card", {});
  Write("text.card", Bytes(500, 'x'));
  Write("short.card", Bytes(root_.begin(), root_.begin() + 100));
  std::filesystem::create_directory(folder_ / "folder.card");
  std::filesystem::create_symlink("nowhere", folder_ / "link.card");
  ASSERT_EQ(mkfifo(Path("pipe.card").c_str(), 0600), 0);
  const std::string id = ToHex(Card::FromBytes(root_)->content_id());
  Refused({"b.card"}, StatusCode::kNotFound, {Path("b.card") + " continues card " + id});
  // Of the others only the headers are read; the one that is wanted is checked as any card is.
  Bytes damaged = PackRoot(7);
  damaged.back() ^= 1;
  Write("damaged.card", damaged);
  Write("root.card", root_);
  EXPECT_EQ(Chain({"b.card"}), (Names{"+root.card", "b.card"}));
  damaged = root_;
  damaged.back() ^= 1;
  Write("root.card", damaged);
  Refused({"b.card"}, StatusCode::kCorrupt, {Path("root.card"), "rule 13"});
}

TEST_F(ChainFilesTest, CirclesAreRefused) {
  const Digest claimed = {1, 2, 3};
  CardContent content = card_test::DeltaContent(*Card::FromBytes(root_), 8, 10);
  content.parent = claimed;
  const Bytes card = Pack(content);
  Write("self.card", WithContentId(card, claimed));
  Refused({"self.card"}, StatusCode::kCorrupt, {Path("self.card"), "circle"});
  // Of two: each continues the other.
  Write("a.card", card);
  std::filesystem::remove(Path("self.card"));
  content.parent = Card::FromBytes(card)->content_id();
  Write("b.card", WithContentId(Pack(content), claimed));
  Refused({"a.card"}, StatusCode::kCorrupt, {Path("a.card"), "circle"});
  Refused({"b.card"}, StatusCode::kCorrupt, {Path("b.card"), "circle"});
}

TEST_F(ChainFilesTest, LinksThatDoNotFitAreRefusedByName) {
  Write("root.card", root_);
  const auto refused = [&](const std::string& says, const std::function<void(CardContent*)>& change) {
    CardContent content = card_test::DeltaContent(*Card::FromBytes(root_), 8, 10);
    change(&content);
    Write("b.card", Pack(content));
    Refused({"b.card"}, StatusCode::kMismatch, {Path("b.card") + " after " + Path("root.card"), says});
    Refused({"root.card", "b.card"}, StatusCode::kMismatch, {says});  // also where it was given
  };
  refused("different models", [](CardContent* c) { c->identity.model[3] ^= 1; });
  refused("different RoPE", [](CardContent* c) { c->identity.rope[3] ^= 1; });
  refused("layers are different", [](CardContent* c) { c->windows = {16}; });
  refused("starts at token 11 of its context, and that card holds tokens 0 to 9",
          [](CardContent* c) { c->first_token = 11; });
  const auto positions_from = [](int32_t first) {
    return [first](CardContent* c) {
      for (size_t i = 0; i < c->positions.size(); ++i) c->positions[i] = first + static_cast<int32_t>(i);
    };
  };
  refused("starts at position 19, and the token before it is at 17", positions_from(19));
  refused("starts at position 17, and the token before it is at 17", positions_from(17));

  // Other means and scales than it says.
  const card_test::SyntheticKv kv(10, {{1, 8, 8}}, 2);
  const CardContent content = card_test::DeltaContent(*Card::FromBytes(root_), 8, 10);
  const KeyProfiles other = MeasureKeyProfiles(kv.view(), 0, 1);
  Write("b.card", PackCard(kv.view(), UniformPlan(10, {4, 4}, 0), other, content, 1)->Bytes());
  Refused({"b.card"}, StatusCode::kMismatch, {"said to be that card's"});
}

TEST_F(ChainFilesTest, FilesThatAreGivenMustBeCards) {
  Refused({"none.card"}, StatusCode::kNotFound, {Path("none.card")});
  Write("text.card", Bytes(500, 'x'));
  Refused({"text.card"}, StatusCode::kCorrupt, {Path("text.card"), "rule 2"});
}

}  // namespace
}  // namespace qkvshare
