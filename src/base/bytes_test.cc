#include "base/bytes.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

TEST(BytesTest, ValuesAreLittleEndianAndComeBack) {
  std::vector<uint8_t> bytes;
  ByteWriter writer(&bytes);
  writer.Put(uint32_t{0x04030201});
  writer.Put(uint16_t{0x0605});
  EXPECT_EQ(writer.size(), 6u);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{1, 2, 3, 4, 5, 6}));
  ByteReader reader(bytes);
  uint32_t wide = 0;
  uint16_t narrow = 0;
  ASSERT_TRUE(reader.Get(&wide));
  ASSERT_TRUE(reader.Get(&narrow));
  EXPECT_EQ(wide, 0x04030201u);
  EXPECT_EQ(narrow, 0x0605u);
  EXPECT_EQ(reader.offset(), 6u);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(BytesTest, ReadingPastTheEndChangesNothing) {
  const std::vector<uint8_t> bytes = {1, 2, 3};
  ByteReader reader(bytes);
  uint32_t value = 42;
  EXPECT_FALSE(reader.Get(&value));
  EXPECT_EQ(value, 42u);
  EXPECT_FALSE(reader.Skip(4));
  EXPECT_EQ(reader.offset(), 0u);
  EXPECT_TRUE(reader.Skip(3));
  EXPECT_FALSE(reader.Skip(SIZE_MAX));
  EXPECT_EQ(reader.offset(), 3u);
}

TEST(BytesTest, AlignUp) {
  EXPECT_EQ(AlignUp(0, 64), 0u);
  EXPECT_EQ(AlignUp(1, 64), 64u);
  EXPECT_EQ(AlignUp(64, 64), 64u);
  EXPECT_EQ(AlignUp(65, 64), 128u);
}

}  // namespace
}  // namespace qkvshare
