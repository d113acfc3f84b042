#include "base/text.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

TEST(Split, KeepsEmptyPieces) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(Split("a,bc", ','), (Pieces{"a", "bc"}));
  EXPECT_EQ(Split(",a,,", ','), (Pieces{"", "a", "", ""}));
  EXPECT_EQ(Split("", ','), Pieces{""});
  EXPECT_EQ(Split("a,b", ';'), Pieces{"a,b"});
}

}  // namespace
}  // namespace qkvshare
