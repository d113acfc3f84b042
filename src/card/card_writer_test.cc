// What the packer refuses, and its promise about sizes.
#include "card/card_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "card/card.h"
#include "card/card_test_util.h"
#include "card/format.h"

namespace qkvshare {
namespace {

using card_test::Content;
using card_test::MixedPlan;
using card_test::SyntheticKv;

class PackCardTest : public testing::Test {
 protected:
  void Refused(StatusCode code, const std::string& text) {
    const Result<PackedCard> packed = PackCard(view_, plan_, profiles_, content_, 2);
    ASSERT_FALSE(packed) << text;
    EXPECT_EQ(packed.status().code(), code) << packed.status().message();
    EXPECT_NE(packed.status().message().find(text), std::string::npos) << packed.status().message();
  }

  SyntheticKv kv_{20, {{2, 64, 32}, {1, 8, 8}}, 1};
  KvView view_ = kv_.view();
  BitPlan plan_ = MixedPlan(20);
  KeyProfiles profiles_ = MeasureKeyProfiles(kv_.view(), kSinkTokens, 2);
  CardContent content_ = Content(20);
};

TEST_F(PackCardTest, RefusesSizesThatDoNotAgree) {
  content_.token_ids.pop_back();
  Refused(StatusCode::kInvalidArgument, "19 token ids");
  content_ = Content(20);
  plan_ = MixedPlan(19);
  Refused(StatusCode::kInvalidArgument, "made for 19 tokens");
  plan_ = MixedPlan(20);
  content_.info.segments[0].tokens = 19;
  Refused(StatusCode::kCorrupt, "segments cover 19 of 20");
  content_ = Content(20);
  profiles_.pop_back();
  Refused(StatusCode::kInvalidArgument, "key profiles");
}

TEST_F(PackCardTest, RefusesProfilesOfAnotherShape) {
  const KeyProfiles good = profiles_;
  profiles_[0].pop_back();
  Refused(StatusCode::kInvalidArgument, "key profiles");
  profiles_ = good;
  profiles_[1][0].mean.pop_back();
  Refused(StatusCode::kInvalidArgument, "key profiles");
  profiles_ = good;
  profiles_[1][0].scale[3] = 0;
  Refused(StatusCode::kInvalidArgument, "key profiles");
  profiles_ = good;
  profiles_[1][0].mean[3] = 0x7E00;
  Refused(StatusCode::kInvalidArgument, "key profiles");
}

TEST_F(PackCardTest, RefusesWhatNoReaderWouldTake) {
  content_.positions[7] = content_.positions[6];
  Refused(StatusCode::kInvalidArgument, "position 7 does not ascend");
  content_ = Content(20);
  content_.positions[0] = -1;
  Refused(StatusCode::kInvalidArgument, "negative");
  content_ = Content(20);
  content_.token_ids[19] = -5;
  Refused(StatusCode::kInvalidArgument, "token 19 is negative");
  content_ = Content(20);
  content_.identity.first_rope.base = NAN;
  Refused(StatusCode::kInvalidArgument, "RoPE");
  content_ = Content(20);
  content_.info.model_name.assign(2 << 20, 'x');
  Refused(StatusCode::kOutOfRange, "names");
  content_ = Content(20);
  view_.layers[1].shape.value_dim = 12;
  Refused(StatusCode::kUnsupported, "layer 1");
  view_.layers.clear();
  Refused(StatusCode::kInvalidArgument, "0 layers");
  view_.tokens = 0;
  Refused(StatusCode::kInvalidArgument, "no tokens");
  view_.tokens = size_t{1} << 21;
  Refused(StatusCode::kOutOfRange, "at most 1048576 tokens");
}

TEST_F(PackCardTest, RefusesContextsThatDoNotHoldTogether) {
  const auto refused = [&](const std::string& text, const std::function<void(CardContent*)>& change) {
    content_ = card_test::RichContent(20);
    ASSERT_TRUE(PackCard(view_, plan_, profiles_, content_, 1));
    change(&content_);
    SCOPED_TRACE(text);
    Refused(StatusCode::kInvalidArgument, text);
  };
  refused("has a parent where", [](CardContent* c) { c->first_token = 0; });
  refused("has a parent where", [](CardContent* c) { c->parent = {}; });
  refused("at hop 0", [](CardContent* c) { c->hop = 0; });
  refused("hop 65537", [](CardContent* c) { c->hop = card_format::kMaxHop + 1; });
  refused("too many tokens", [](CardContent* c) { c->first_token = card_format::kMaxContextTokens; });
  refused("protected tokens", [](CardContent* c) { c->protected_tokens = 21; });
  refused("a static profile", [](CardContent* c) { c->profile.id = {}; });
  refused("a static profile", [](CardContent* c) { c->profile.kind = ProfileKind::kMeasured; });
  refused("inherited from a parent", [](CardContent* c) {
    c->profile = {ProfileKind::kInherited, {}};
    c->parent = {};
    c->first_token = 0;
  });
  refused("windows of 1 layers", [](CardContent* c) { c->windows = {5}; });
  refused("a window of 4294967295", [](CardContent* c) { c->windows[1] = UINT32_MAX; });
  refused("4097 anchors", [](CardContent* c) { c->anchors.resize(4097); });
  refused("anchor 1 is out of order", [](CardContent* c) { c->anchors[1] = c->anchors[0]; });
  refused("anchor 1 is out of", [](CardContent* c) { c->anchors[1].token = 120; });
  refused("anchor 0 is out of", [](CardContent* c) { c->anchors[0].weight = 0; });
  refused("anchor 0 is out of", [](CardContent* c) { c->anchors[0].weight = NAN; });
  refused("anchor 0 is out of", [](CardContent* c) { c->anchors[0].weight = 1.5f; });
  refused("RoPE of -1", [](CardContent* c) { c->identity.first_rope.dims = -1; });
  refused("mode 65536", [](CardContent* c) { c->identity.first_rope.mode = 65536; });
  content_ = card_test::RichContent(20);
  content_.info.context = {{content_.parent, 100}};  // but it lies at 10
  Refused(StatusCode::kCorrupt, "the context ends at 100, but the card starts at 10");
  // Without profiles there is no profile to have an id.
  profiles_.clear();
  content_ = card_test::RichContent(20);
  Refused(StatusCode::kInvalidArgument, "a static profile");
}

TEST_F(PackCardTest, NamesLayerAndTokenOfNonFiniteRows) {
  kv_.rows[2][13 * 8 + 2] = 0x7C00;  // keys of layer 1
  profiles_ = MeasureKeyProfiles(view_, kSinkTokens, 1);
  Refused(StatusCode::kNonFinite, "layer 1: the keys of token 13");
}

TEST_F(PackCardTest, NamesAreForPeopleAndMayBeInvalidUtf8) {
  content_.info.sender = "a\xFF\xFE";
  const Result<PackedCard> packed = PackCard(view_, plan_, profiles_, content_, 1);
  ASSERT_TRUE(packed);
  EXPECT_TRUE(Card::FromBytes(packed->Bytes()));
}

TEST(CardOverheadBytesTest, IsAnUpperBound) {
  for (const size_t tokens : {1u, 4u, 5u, 17u, 100u}) {
    // Many small heads: their blocks' alignment is most of it.
    const SyntheticKv kv(tokens, {{2, 64, 32}, {1, 8, 128}, {100, 8, 8}}, 2);
    const KvView view = kv.view();
    for (const BitPlan& plan :
         {MixedPlan(tokens), UniformPlan(tokens, {4, 4}, 4), UniformPlan(tokens, kExactLevel, 0)}) {
      const PackedCard card = *PackCard(view, plan, MeasureKeyProfiles(view, kSinkTokens, 1), Content(tokens), 1);
      size_t planned = 0;
      for (size_t t = 0; t < tokens; ++t) {
        for (const LayerShape& shape : kv.shapes) {
          for (const Side side : {Side::kKeys, Side::kValues}) {
            const int bits = SideBits(plan.level(t), side, {});
            planned += shape.kv_heads * (TileBytes(1, shape.dim(side), bits) + (bits < 16 ? sizeof(RowScale) : 0));
          }
        }
      }
      const size_t overhead = CardOverheadBytes(view, Content(tokens));
      EXPECT_LE(card.file_bytes(), planned + overhead);
      // And not much more than needed: alignment and slack.
      EXPECT_GE(card.file_bytes() + 64 * (9 + 2 * 3 + 2 * 103) + 128 + tokens + 4 * 1000, planned + overhead);
    }
  }
}

}  // namespace
}  // namespace qkvshare
