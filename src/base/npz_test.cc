#include "base/npz.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace qkvshare {
namespace {

class NpzTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("qkv_npz_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  size_t Files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  std::filesystem::path folder_;
};

TEST_F(NpzTest, Crc32OfTheCheckString) {
  const std::string text = "123456789";
  EXPECT_EQ(Crc32({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), 0xCBF43926u);
  EXPECT_EQ(Crc32({}), 0u);
}

// What tools read is tested in tests/cli_unpack_test.py; here, the bytes of one archive.
TEST_F(NpzTest, LayoutOfAnArchive) {
  Result<NpzWriter> writer = NpzWriter::Create(Path("a.npz"));
  ASSERT_TRUE(writer);
  const std::vector<uint8_t> data = {1, 0, 2, 0, 3, 0};
  ASSERT_TRUE(writer->Add("x", "<u2", {3, 1}, data).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("a.npz")));  // not before it is complete
  ASSERT_TRUE(writer->Finish().ok());
  const Result<std::string> text = ReadText(Path("a.npz"), 1 << 20);
  ASSERT_TRUE(text);
  EXPECT_EQ(text->substr(0, 4), "PK\x03\x04");
  EXPECT_EQ(text->substr(30, 5), "x.npy");
  const std::string npy = text->substr(35, 128 + 6);
  EXPECT_EQ(npy.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_NE(npy.find("{'descr': '<u2', 'fortran_order': False, 'shape': (3, 1, ), }"), std::string::npos) << npy;
  EXPECT_EQ(npy[127], '\n');
  EXPECT_EQ(npy.substr(128), std::string("\x01\0\x02\0\x03\0", 6));
  EXPECT_EQ(text->size(), 35 + npy.size() + 46 + 5 + 22);
}

TEST_F(NpzTest, NothingIsLeftWhereItIsNotFinished) {
  {
    Result<NpzWriter> writer = NpzWriter::Create(Path("a.npz"));
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->Add("x", "|u1", {1}, std::vector<uint8_t>{1}).ok());
    EXPECT_EQ(writer->Add("y", "|u1", {2}, std::vector<uint8_t>{1}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Files(), 1u);
  }
  EXPECT_EQ(Files(), 0u);
  EXPECT_EQ(NpzWriter::Create(Path("none/a.npz")).status().code(), StatusCode::kNotFound);
}

TEST_F(NpzTest, MoreThan4GiBIsRefused) {
  std::ofstream(Path("holes")).put('x');
  constexpr uint64_t kBytes = uint64_t{1} << 32;
  std::filesystem::resize_file(Path("holes"), kBytes);  // takes no space
  const Result<MappedFile> holes = MappedFile::Open(Path("holes"));
  ASSERT_TRUE(holes);
  Result<NpzWriter> writer = NpzWriter::Create(Path("a.npz"));
  ASSERT_TRUE(writer);
  const Status status = writer->Add("x", "|u1", {kBytes}, holes->bytes());
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("4 GiB"), std::string::npos);
}

}  // namespace
}  // namespace qkvshare
