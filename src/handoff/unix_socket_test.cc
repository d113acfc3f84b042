#include "handoff/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "handoff/card_stream.h"
#include "handoff/handoff_test_util.h"

namespace qkvshare {
namespace {

constexpr uid_t kNobody = 65534;

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "qkv_socket_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }
  static WireOptions Idle(int64_t us) {
    WireOptions options;
    options.idle_us = us;
    return options;
  }

  std::filesystem::path folder_;
};

TEST_F(UnixSocketTest, ACardGoesFromOneProcessToAnother) {
  const auto card = handoff_test::SomeCard(1);
  const std::string path = Path("s");
  const pid_t child = fork();
  if (child == 0) {
    Result<UnixListener> listener = UnixListener::Bind(path);
    if (!listener) _exit(1);
    Result<UnixConnection> connection = listener->Accept(false, Idle(20'000'000));
    if (!connection || !connection->own) _exit(2);
    CardStreamWriter writer(*Wire::Take(std::move(connection->fd), "the receiver", {}), /*share=*/true);
    _exit(writer.Send(card).ok() && writer.Finish().ok() ? 0 : 3);
  }
  Result<UnixConnection> connection = ConnectUnix(path, false, Idle(20'000'000));  // before there is a listener
  ASSERT_TRUE(connection.has_value()) << connection.status().message();
  EXPECT_TRUE(connection->own);
  {
    CardStreamReader reader(*Wire::Take(std::move(connection->fd), "the sender", {}), connection->own);
    const auto next = reader.Next();
    ASSERT_TRUE(next.has_value()) << next.status().message();
    EXPECT_TRUE(std::ranges::equal((*next)->bytes(), card->bytes()));
    EXPECT_EQ(*reader.Next(), nullptr);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(UnixSocketTest, TheSocketIsItsOwnersAlone) {
  const std::string path = Path("s");
  {
    const UnixListener listener = *UnixListener::Bind(path);
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    EXPECT_EQ(UnixListener::Bind(path).status().code(), StatusCode::kInvalidArgument);  // somebody listens
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(UnixSocketTest, WhatADeadProcessLeftIsReplacedAndNothingElse) {
  const std::string path = Path("s");
  {
    const Descriptor dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(UnixListener::Bind(path).has_value());
  std::ofstream(Path("file")) << "mine";
  EXPECT_EQ(UnixListener::Bind(Path("file")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(Path("file")), 4U);
  std::filesystem::create_symlink(Path("file"), Path("link"));
  EXPECT_EQ(UnixListener::Bind(Path("link")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(UnixSocketTest, AListenerTakesOnlyItsOwnSocketAway) {
  const std::string path = Path("s");
  {
    const UnixListener listener = *UnixListener::Bind(path);
    std::filesystem::remove(path);
    std::ofstream(path) << "mine";
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(UnixSocketTest, BadNamesAreRefused) {
  for (const std::string& path : {std::string(), std::string("a\0b", 3)})
    EXPECT_EQ(UnixListener::Bind(path).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Bind(Path(std::string(200, 'x'))).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(UnixListener::Bind(Path("no/folder/s")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ConnectUnix(Path("none"), false, Idle(50'000)).status().code(), StatusCode::kNotFound);
}

TEST_F(UnixSocketTest, ProcessesOfAnotherUserAreTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string path = Path("s");
  UnixListener listener = *UnixListener::Bind(path);
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  std::filesystem::permissions(path, std::filesystem::perms::all);
  const auto connect_as_nobody = [&] {
    const pid_t child = fork();
    if (child == 0) {
      if (setuid(kNobody) != 0) _exit(1);
      const Result<UnixConnection> theirs = ConnectUnix(path, true, Idle(5'000'000));
      char byte = 0;
      _exit(theirs.has_value() && !theirs->own && read(theirs->fd.get(), &byte, 1) >= 0 ? 0 : 2);
    }
    return child;
  };
  pid_t child = connect_as_nobody();
  EXPECT_EQ(listener.Accept(false, Idle(1'000'000)).status().code(), StatusCode::kIo);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  child = connect_as_nobody();
  {
    const Result<UnixConnection> connection = listener.Accept(true, Idle(5'000'000));
    ASSERT_TRUE(connection.has_value());
    EXPECT_FALSE(connection->own);
  }
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace qkvshare
