#include "eval/header_difference.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

TEST(HeaderDifferenceTest, SaysWhatWasGivenAndBothValues) {
  EXPECT_EQ(DifferenceText("threads", 2, 4), "\"threads\" differs: 2 and 4 (-t)");
  EXPECT_EQ(DifferenceText("threads", 2, 4, {"there", "now"}), "\"threads\" differs: 2 there, 4 now (-t)");
  EXPECT_EQ(DifferenceText("unheard", "a", "b"), "\"unheard\" differs: a and b");
}

TEST(HeaderDifferenceTest, LooksIntoObjectsAndLists) {
  const Json one = {{"stop", Json::array()}, {"predict", 320}}, other = {{"stop", Json::array()}, {"predict", 64}};
  EXPECT_EQ(DifferenceText("generate", one, other, {"there", "now"}),
            "\"generate\" differs: predict 320 there, 64 now (-n)");
  EXPECT_EQ(DifferenceText("packs", Json::array({{{"code_bits", 4.0}}}), Json::array({{{"code_bits", 3.5}}})),
            "\"packs\" differs: code_bits 4.0 and 3.5 (--bits)");
  // Lists of other lengths are shown as they are, or where that says too much, not at all.
  EXPECT_EQ(DifferenceText("depths", Json::array({1}), Json::array({1, 2})),
            "\"depths\" differs: [1] and [1,2] (--depth)");
  EXPECT_EQ(DifferenceText("arms", Json(std::string(90, 'a')), Json("b")), "\"arms\" differs (--arm)");
}

TEST(HeaderDifferenceTest, DigestsAreNotShown) {
  const std::string text = DifferenceText("input", std::string(64, 'a'), std::string(64, 'b'));
  EXPECT_TRUE(text.starts_with("\"input\" differs (what is read")) << text;
}

}  // namespace
}  // namespace qkvshare
