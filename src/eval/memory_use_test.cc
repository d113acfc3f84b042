#include "eval/memory_use.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/file.h"

namespace qkvshare {
namespace {

constexpr size_t kBytes = size_t{64} << 20;
constexpr size_t kNoise = size_t{8} << 20;  // what else the process may take or give back meanwhile

MemoryUse Use() {
  const Result<MemoryUse> use = ReadMemoryUse();
  EXPECT_TRUE(use) << use.status().message();
  return use ? *use : MemoryUse();
}

// Its pages are there once they are written.
std::unique_ptr<uint8_t[]> Written() {
  std::unique_ptr<uint8_t[]> bytes(new uint8_t[kBytes]);
  std::memset(bytes.get(), 7, kBytes);
  return bytes;
}

TEST(MemoryUse, CountsWhatIsAllocated) {
  const MemoryUse before = Use();
  const std::unique_ptr<uint8_t[]> bytes = Written();
  const MemoryUse after = Use();
  EXPECT_EQ(bytes[kBytes - 1], 7);
  EXPECT_GT(after.private_bytes, before.private_bytes + kBytes - kNoise);
  EXPECT_LT(after.private_bytes, before.private_bytes + kBytes + kNoise);
  EXPECT_LT(after.shared_bytes, before.shared_bytes + kNoise);
  EXPECT_GT(after.proportional_bytes, before.proportional_bytes + kBytes - kNoise);
}

TEST(MemoryUse, MappedFilesAreShared) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("qkv_memory_use_" + std::to_string(getpid()))).string();
  std::ofstream(path) << std::string(kBytes, 'x');
  const MemoryUse before = Use();
  size_t sum = 0;
  {
    const Result<MappedFile> file = MappedFile::Open(path);
    ASSERT_TRUE(file);
    for (size_t i = 0; i < kBytes; i += 512) sum += file->bytes()[i];  // only pages that are touched are there
    const MemoryUse after = Use();
    EXPECT_GT(after.shared_bytes, before.shared_bytes + kBytes - kNoise);
    EXPECT_LT(after.private_bytes, before.private_bytes + kNoise);
  }
  EXPECT_EQ(sum, kBytes / 512 * 'x');
  EXPECT_LT(Use().shared_bytes, before.shared_bytes + kNoise);
  std::filesystem::remove(path);
}

TEST(MemoryUse, PeakIsWhatWasThereForAWhile) {
  TrimMemory();  // what other tests have freed would be used again
  const size_t before = Use().private_bytes;
  MemoryPeak peak;
  {
    const std::unique_ptr<uint8_t[]> bytes = Written();
    const size_t looks = peak.looks();
    while (peak.looks() < looks + 2) usleep(1000);  // one may have begun before
  }
  TrimMemory();
  EXPECT_GT(peak.private_bytes(), before + kBytes - kNoise);
  EXPECT_LT(Use().private_bytes, before + kNoise);
}

TEST(MemoryUse, CountsWhatIsSwapped) {
  const std::optional<MemoryUse> use = ParseMemoryUse(
      "55d0-7ffe ---p 00000000 00:00 0  [rollup]\nRss:  1000 kB\nPss:  700 kB\nPss_Anon: 1 kB\nAnonymous:  600 kB\n"
      "Swap:  50 kB\nSwapPss:  40 kB\n");
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->private_bytes, 650U * 1024);
  EXPECT_EQ(use->shared_bytes, 400U * 1024);
  EXPECT_EQ(use->proportional_bytes, 740U * 1024);
  EXPECT_FALSE(ParseMemoryUse("").has_value());
}

TEST(MemoryUse, SaysWhatItTakesWhereThereIsNoSuchProcess) {
  const Status status = ReadMemoryUse(0x7FFFFFFF).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("Linux"), std::string::npos);
}

}  // namespace
}  // namespace qkvshare
