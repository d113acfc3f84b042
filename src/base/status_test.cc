#include "qkvshare/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace qkvshare {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Status(StatusCode::kInvalidArgument, "odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  QKV_ASSIGN_OR_RETURN(const int half, Half(n));
  QKV_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int n) {
  QKV_RETURN_IF_ERROR(Quarter(n).status());
  return {};
}

TEST(StatusTest, ErrorsPassThroughTheMacros) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_FALSE(CheckQuarter(7).ok());
}

TEST(StatusTest, ResultsMove) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  ASSERT_TRUE(result);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 5);
}

// Bindings and exit codes rely on the numbers; logs and JSON on the names.
TEST(StatusTest, CodesAndNamesAreStable) {
  const std::pair<StatusCode, const char*> names[] = {
      {StatusCode::kOk, "ok"},
      {StatusCode::kInvalidArgument, "invalid_argument"},
      {StatusCode::kNotFound, "not_found"},
      {StatusCode::kIo, "io"},
      {StatusCode::kCorrupt, "corrupt"},
      {StatusCode::kMismatch, "mismatch"},
      {StatusCode::kUnsupported, "unsupported"},
      {StatusCode::kOutOfRange, "out_of_range"},
      {StatusCode::kCancelled, "cancelled"},
      {StatusCode::kNonFinite, "non_finite"},
      {StatusCode::kInternal, "internal"},
  };
  for (size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(static_cast<size_t>(names[i].first), i);
    EXPECT_STREQ(StatusCodeName(names[i].first), names[i].second);
  }
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(200)), "unknown");
}

}  // namespace
}  // namespace qkvshare
