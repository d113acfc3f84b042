// Cards as files: mapping, refusals, and writers that fail, are killed, or run at once.
#include <gtest/gtest.h>
#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "card/card.h"
#include "card/card_test_util.h"
#include "card/card_writer.h"

namespace qkvshare {
namespace {

using card_test::Content;
using card_test::MixedPlan;
using card_test::SyntheticKv;

std::vector<Half> UnpackKeys(const Card& card) {
  std::vector<Half> out(card.tokens() * card.shape(0).row_values(Side::kKeys));
  const Status status = card.Unpack(ScalarKernels(), 0, Side::kKeys, card.tokens(), out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

// How a child process ends: what it found, or that it cannot do the test here.
enum ChildExit : int { kAsExpected = 7, kNotAsExpected = 8, kNotPermitted = 9 };

class CardFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "qkv_card_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder_ + "/a.card";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Cards that differ by their seed.
  static PackedCard Packed(uint32_t seed) {
    const SyntheticKv kv(20, {{1, 64, 64}}, seed);
    const KvView view = kv.view();
    return *PackCard(view, MixedPlan(20), MeasureKeyProfiles(view, 4, 1), Content(20), 1);
  }
  // The seed of the whole card that is at path_; 0 where there is none.
  uint32_t SeedAtPath(uint32_t seeds) const {
    const Result<Card> card = Card::Open(path_);
    if (!card || !card->VerifyDigests().ok()) return 0;
    for (uint32_t seed = 1; seed <= seeds; ++seed) {
      if (Card::FromBytes(Packed(seed).Bytes())->content_id() == card->content_id()) return seed;
    }
    return 0;
  }
  ChildExit RefusedAsIo(const Status& status) const {
    const bool names_file = status.message().find(path_) != std::string::npos;
    return status.code() == StatusCode::kIo && names_file ? kAsExpected : kNotAsExpected;
  }
  size_t FilesInFolder() const {
    const auto files = std::filesystem::directory_iterator(folder_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  std::string folder_, path_;
  PackedCard packed_ = Packed(1);
};

TEST_F(CardFileTest, WrittenFilesOpenByMapping) {
  ASSERT_TRUE(packed_.Write(path_).ok());
  EXPECT_EQ(std::filesystem::file_size(path_), packed_.file_bytes());
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const Result<Card> card = Card::Open(path_);
  ASSERT_TRUE(card) << card.status().message();
  EXPECT_TRUE(card->VerifyDigests().ok());
  EXPECT_EQ(UnpackKeys(*card), UnpackKeys(*Card::FromBytes(packed_.Bytes())));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(card->block(0, Side::kKeys, 0).data()) % 64, 0u);
}

TEST_F(CardFileTest, WhatIsNoCardIsRefused) {
  const auto refused = [&](StatusCode code, const std::string& text) {
    const Status status = Card::Open(path_).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(path_), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    std::filesystem::remove_all(path_);
  };
  refused(StatusCode::kNotFound, "cannot open");
  std::ofstream(path_).close();
  refused(StatusCode::kCorrupt, "(rule 1): 0 bytes");
  std::filesystem::create_directory(path_);
  refused(StatusCode::kInvalidArgument, "not a regular file");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  refused(StatusCode::kInvalidArgument, "not a regular file");
}

// A card is not written over what is no file, and never half: the old card or the new one is there, whole.
TEST_F(CardFileTest, FailedWritesKeepTheOldCard) {
  std::filesystem::create_directory(path_);
  EXPECT_EQ(packed_.Write(path_).code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(packed_.Write(path_).code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(path_);
  EXPECT_EQ(packed_.Write(folder_ + "/none/a.card").code(), StatusCode::kNotFound);
  ASSERT_TRUE(packed_.Write(path_).ok());
  EXPECT_EQ(SeedAtPath(2), 1u);
  EXPECT_EQ(FilesInFolder(), 1u);
}

// The parent waits for `work` in a process of its own and returns how that ended.
int InChild(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

// Root may write anywhere: so the child becomes a user that may not.
TEST_F(CardFileTest, AFolderThatMayNotBeWrittenKeepsTheOldCard) {
  ASSERT_TRUE(packed_.Write(path_).ok());
  const PackedCard other = Packed(2);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(chmod(folder_.c_str(), 0555), 0);
  const int status = InChild([&] {
    if (geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(kNotPermitted);
    _exit(RefusedAsIo(other.Write(path_)));
  });
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "cannot become another user here";
  EXPECT_EQ(WEXITSTATUS(status), kAsExpected);
  EXPECT_EQ(SeedAtPath(2), 1u);
  EXPECT_EQ(FilesInFolder(), 1u);
}

void LimitFileSize(size_t bytes) {
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

// At any byte.
TEST_F(CardFileTest, WritesThatRunOutOfRoomKeepTheOldCard) {
  ASSERT_TRUE(packed_.Write(path_).ok());
  const PackedCard other = Packed(2);
  for (size_t i = 0; i < 20; ++i) {
    const int status = InChild([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      LimitFileSize(other.file_bytes() * i / 20);
      _exit(RefusedAsIo(other.Write(path_)));
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), kAsExpected) << i;
    EXPECT_EQ(SeedAtPath(2), 1u) << i;
    EXPECT_EQ(FilesInFolder(), 1u) << "a temporary file is left";
  }
}

// A process that is killed cannot clean up, but the card is the old one or the new one.
TEST_F(CardFileTest, AWriterKilledAtAnyPointLeavesAWholeCard) {
  ASSERT_TRUE(packed_.Write(path_).ok());
  const PackedCard other = Packed(2);
  for (size_t i = 0; i <= 20; ++i) {
    const int status = InChild([&] {
      std::signal(SIGXFSZ, SIG_DFL);  // kills
      if (i < 20) LimitFileSize(other.file_bytes() * i / 20);
      (void)other.Write(path_);
    });
    EXPECT_EQ(WIFSIGNALED(status), i < 20) << i;
    EXPECT_EQ(SeedAtPath(2), i < 20 ? 1u : 2u) << i;
  }
}

#ifdef __linux__
// A full disk: a small file system that only the child sees.
TEST_F(CardFileTest, AFullDiskKeepsTheOldCard) {
  const PackedCard old = Packed(1);
  const PackedCard other = Packed(2);
  const int status = InChild([&] {
    const std::string size = "size=" + std::to_string(AlignUp(old.file_bytes(), 4096) + 4096);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", folder_.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      _exit(kNotPermitted);
    }
    const bool wrote = old.Write(path_).ok();
    const Status written = other.Write(path_);
    const bool refused = written.message().find("No space left") != std::string::npos;
    const bool kept = SeedAtPath(2) == 1 && FilesInFolder() == 1;
    _exit(wrote && refused && kept ? RefusedAsIo(written) : kNotAsExpected);
  });
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "cannot mount a file system here";
  EXPECT_EQ(WEXITSTATUS(status), kAsExpected);
}

// From now on the process is killed (SIGSYS, which none can catch) where it makes one of these system calls.
bool KillAt(std::initializer_list<int> calls) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<uint16_t>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// After the last byte is written too: before the sync, the close and the rename.
TEST_F(CardFileTest, AWriterKilledBeforeTheRenameLeavesTheOldCard) {
  ASSERT_TRUE(packed_.Write(path_).ok());
  const PackedCard other = Packed(2);
#ifdef SYS_rename
  const std::initializer_list<int> renames = {SYS_rename, SYS_renameat, SYS_renameat2};
#else
  const std::initializer_list<int> renames = {SYS_renameat, SYS_renameat2};
#endif
  const std::initializer_list<int> points[] = {{SYS_fsync}, {SYS_close}, renames};
  for (size_t i = 0; i < std::size(points); ++i) {
    const int status = InChild([&] {
      if (!KillAt(points[i])) _exit(kNotPermitted);
      (void)other.Write(path_);
    });
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "no filter of system calls here";
    EXPECT_TRUE(WIFSIGNALED(status)) << i;
    EXPECT_EQ(SeedAtPath(2), 1u) << i;
    EXPECT_EQ(FilesInFolder(), i + 2) << i;  // a whole temporary file stays behind
  }
}
#endif

TEST_F(CardFileTest, OfConcurrentWritersOneWinsWhole) {
  constexpr uint32_t kWriters = 4;
  const auto write = [&](uint32_t seed) {
    const PackedCard card = Packed(seed);
    for (int i = 0; i < 20; ++i) {
      if (!card.Write(path_).ok()) return false;
    }
    return true;
  };
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (uint32_t seed = 1; seed <= kWriters; ++seed) {
    threads.emplace_back([&, seed] { failures += write(seed) ? 0 : 1; });
  }
  int partial = 0;
  for (int i = 0; i < 50; ++i) {
    const Result<Card> card = Card::Open(path_);
    partial += card || card.status().code() == StatusCode::kNotFound ? 0 : 1;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(partial, 0);
  EXPECT_NE(SeedAtPath(kWriters), 0u);

  std::filesystem::remove(path_);
  std::vector<pid_t> children;
  for (uint32_t seed = 1; seed <= kWriters; ++seed) {
    const pid_t child = fork();
    if (child == 0) _exit(write(seed) ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_NE(SeedAtPath(kWriters), 0u);
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(CardFileTest, ErrorsNameTheFile) {
  std::ofstream(folder_ + "/text") << "not a card";
  const Status status = Card::Open(folder_ + "/text").status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find(folder_ + "/text: not a valid card (rule 1)"), std::string::npos) << status.message();
}

// Checksums are no protection against intent: the file of another user must have right digests too.
TEST_F(CardFileTest, DigestsOfAnotherUsersFileAreChecked) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  std::vector<uint8_t> bytes = packed_.Bytes();
  bytes[offsetof(card_format::FileHeader, content_id)] ^= 1;
  const uint64_t table_bytes = uint64_t{card_format::kSingleSections + 2} * sizeof(card_format::SectionEntry);
  std::vector<uint8_t> checked(bytes.begin(), bytes.begin() + offsetof(card_format::FileHeader, checksum));
  const auto table = bytes.begin() + sizeof(card_format::FileHeader);
  checked.insert(checked.end(), table, table + static_cast<std::ptrdiff_t>(table_bytes));
  card_test::Patch(&bytes, offsetof(card_format::FileHeader, checksum), Xxh3(checked));
  std::ofstream(path_, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(Card::Open(path_));
  ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_NE(Card::Open(path_).status().message().find("(rule 14)"), std::string::npos);
}

}  // namespace
}  // namespace qkvshare
