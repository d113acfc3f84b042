// What is a shape, and what is a profile: the checks that every reader and writer of them shares.
#include <gtest/gtest.h>

#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {
namespace {

TEST(IsValidShapeTest, HeadsAndSizesHaveLimits) {
  for (const LayerShape& good : {LayerShape{1, 8, 8}, LayerShape{kMaxKvHeads, kMaxHeadDim, 72}}) {
    EXPECT_TRUE(IsValidShape(good)) << good.kv_heads << ", " << good.key_dim;
  }
  for (const uint32_t heads : {0u, kMaxKvHeads + 1, UINT32_MAX}) EXPECT_FALSE(IsValidShape({heads, 8, 8})) << heads;
  for (const uint32_t dim : {0u, 4u, 12u, uint32_t{kMaxHeadDim} + 8, 0x80000000u}) {
    EXPECT_FALSE(IsValidShape({1, dim, 8})) << dim;
    EXPECT_FALSE(IsValidShape({1, 8, dim})) << dim;
  }
}

TEST(IsValidProfileTest, MeansAreFiniteAndScalesNotTooSmall) {
  const ChannelProfile good = {std::vector<Half>(8, FloatToHalf(-3.0f)), std::vector<Half>(8, FloatToHalf(0.5f))};
  EXPECT_TRUE(IsValidProfile(good, 8));
  EXPECT_FALSE(IsValidProfile(good, 16));
  EXPECT_FALSE(IsValidProfile({}, 8));
  EXPECT_FALSE(IsValidProfile({good.mean, {}}, 8));
  const auto with_mean = [&](Half mean) {
    ChannelProfile profile = good;
    profile.mean[7] = mean;
    return IsValidProfile(profile, 8);
  };
  const auto with_scale = [&](Half scale) {
    ChannelProfile profile = good;
    profile.scale[7] = scale;
    return IsValidProfile(profile, 8);
  };
  for (const Half bad : {Half{0x7C00}, Half{0xFC00}, Half{0x7E00}}) {  // infinite, NaN
    EXPECT_FALSE(with_mean(bad)) << bad;
    EXPECT_FALSE(with_scale(bad)) << bad;
  }
  for (const Half mean : {Half{0x7BFF}, Half{0xFBFF}, Half{0x8000}}) EXPECT_TRUE(with_mean(mean)) << mean;
  // The smallest that is measured is valid, the half below it is not, nor are zero and what is negative.
  const Half smallest = FloatToHalf(kSmallestChannelScale);
  EXPECT_TRUE(with_scale(smallest));
  EXPECT_TRUE(with_scale(0x7BFF));
  for (const Half bad : {static_cast<Half>(smallest - 1), Half{0}, FloatToHalf(-0.5f)}) EXPECT_FALSE(with_scale(bad));
}

// What a constant channel gets.
TEST(IsValidProfileTest, MeasuredProfilesAreValid) {
  const std::vector<Half> rows(6 * 8, FloatToHalf(5.0f));
  EXPECT_TRUE(IsValidProfile(MeasureKeyProfile({rows.data(), 8, 6, 8}, 0), 8));
}

}  // namespace
}  // namespace qkvshare
