#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace qkvshare {
namespace {

namespace fs = std::filesystem;

ByteSpan Bytes(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

mode_t ModeOf(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777u : 0;
}

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (fs::temp_directory_path() / "qkv_file_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Text(const std::string& name) const {
    const Result<std::string> text = ReadText(Path(name), 1 << 20);
    return text ? *text : text.status().message();
  }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }

  std::string folder_;
};

TEST_F(FileTest, AtomicWriteJoinsPiecesAndLeavesNoTemporary) {
  const mode_t mask = umask(0);
  const Status status = WriteFileAtomic(Path("a"), {Bytes("one "), {}, Bytes("two")});
  umask(mask);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Text("a"), "one two");
  EXPECT_EQ(ModeOf(Path("a")), 0600u);
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(FileTest, OnlyAFileOfItsKindOrNoneAtAllIsReplaced) {
  const std::string magic = "\xD8KIND";  // bytes above 127 too
  EXPECT_TRUE(CheckKind(Path("none"), magic, "a thing").ok());
  for (const auto& [text, good] : {std::pair{std::string(), true},
                                   {magic, true},
                                   {magic + " and more", true},
                                   {std::string("\xD8KIN"), false},
                                   {" " + magic, false}}) {
    std::ofstream(Path("a")) << text;
    const Status status = CheckKind(Path("a"), magic, "a thing");
    EXPECT_EQ(status.code(), good ? StatusCode::kOk : StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message().find("is not a thing") == std::string::npos, good) << status.message();
  }
}

TEST_F(FileTest, AtomicWriteReplacesTheOldFileAndItsMode) {
  std::ofstream(Path("a")) << "old and longer";
  fs::permissions(Path("a"), fs::perms::all);
  ASSERT_TRUE(WriteFileAtomic(Path("a"), {Bytes("new")}).ok());
  EXPECT_EQ(Text("a"), "new");
  EXPECT_EQ(ModeOf(Path("a")), 0600u);
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(FileTest, WriteThatRunsOutOfSpaceLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), {Bytes("old")}).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string big(5000, 'x');
  const Status status = WriteFileAtomic(Path("a"), {Bytes(big)});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find(Path("a")), std::string::npos) << status.message();
  EXPECT_EQ(Text("a"), "old");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(FileTest, WriteIntoAMissingFolderFails) {
  const Status status = WriteFileAtomic(Path("missing/a"), {Bytes("x")});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(Entries(), 0u);
}

TEST_F(FileTest, WriteOverWhatIsNoRegularFileIsRefusedAndLeavesItThere) {
  fs::create_directory(Path("a"));
  EXPECT_EQ(WriteFileAtomic(Path("a"), {Bytes("x")}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_directory(Path("a")));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(WriteFileAtomic(Path("pipe"), {Bytes("x")}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(Entries(), 2u);
}

TEST_F(FileTest, ReadTextHasALimit) {
  const std::string text(200000, 'q');
  std::ofstream(Path("a")) << text;
  EXPECT_EQ(*ReadText(Path("a"), text.size()), text);
  EXPECT_EQ(ReadText(Path("a"), text.size() - 1).status().code(), StatusCode::kOutOfRange);
  std::ofstream(Path("empty")) << "";
  EXPECT_EQ(*ReadText(Path("empty"), 0), "");
  EXPECT_EQ(ReadText(Path("missing"), 10).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadText(folder_, 10).status().code(), StatusCode::kIo);
}

TEST_F(FileTest, MappedFileShowsTheBytes) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), {Bytes("mapped")}).ok());
  Result<MappedFile> file = MappedFile::Open(Path("a"));
  ASSERT_TRUE(file);
  const MappedFile moved = *std::move(file);
  EXPECT_EQ(std::string(moved.bytes().begin(), moved.bytes().end()), "mapped");
  // A replaced file stays readable where it was mapped.
  ASSERT_TRUE(WriteFileAtomic(Path("a"), {Bytes("other!")}).ok());
  EXPECT_EQ(std::string(moved.bytes().begin(), moved.bytes().end()), "mapped");
}

TEST_F(FileTest, MappingWhatIsNoFileFails) {
  EXPECT_EQ(MappedFile::Open(Path("missing")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open(folder_).status().code(), StatusCode::kInvalidArgument);
  std::ofstream(Path("empty")) << "";
  const Result<MappedFile> empty = MappedFile::Open(Path("empty"));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
}

TEST_F(FileTest, MakeFoldersCreatesParentsForTheOwnerOnly) {
  ASSERT_TRUE(MakeFolders(Path("a/b/c")).ok());
  EXPECT_TRUE(fs::is_directory(Path("a/b/c")));
  EXPECT_EQ(ModeOf(Path("a/b")), 0700u);
  EXPECT_TRUE(MakeFolders(Path("a/b/c/")).ok());
}

TEST_F(FileTest, MakeFoldersRefusesAFileInTheWay) {
  std::ofstream(Path("file")) << "x";
  EXPECT_FALSE(MakeFolders(Path("file")).ok());
  EXPECT_FALSE(MakeFolders(Path("file/b")).ok());
}

// A path that cannot even be looked at is an error, not an exception.
TEST_F(FileTest, MakeFoldersReportsAnImpossibleName) {
  EXPECT_EQ(MakeFolders(Path(std::string(5000, 'n'))).code(), StatusCode::kIo);
}

TEST_F(FileTest, CacheFolderFollowsTheEnvironment) {
  const auto restore = [](const char* name) {
    const char* value = std::getenv(name);
    return [name, had = value != nullptr, old = std::string(value == nullptr ? "" : value)] {
      had ? setenv(name, old.c_str(), 1) : unsetenv(name);
    };
  };
  const auto qkv = restore("QKV_CACHE");
  const auto xdg = restore("XDG_CACHE_HOME");
  const auto home = restore("HOME");
  setenv("QKV_CACHE", "/q", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(CacheFolder(), "/q");
  setenv("QKV_CACHE", "", 1);
  EXPECT_EQ(CacheFolder(), "/x/qkvshare");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CacheFolder(), "/h/.cache/qkvshare");
  qkv();
  xdg();
  home();
}

}  // namespace
}  // namespace qkvshare
