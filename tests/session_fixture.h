// Sessions on tiny models, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "card/card.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/restore.h"
#include "runtime/sender.h"
#include "runtime/session.h"
#include "tests/tiny_model.h"

namespace qkvshare {

// Expects ok, and returns the value.
template <typename T>
T Take(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << result.status().message();
  if (!result.has_value()) std::abort();  // the test cannot go on; its message is above
  return std::move(result).value();
}

// Gives each test a folder of its own, which is also the cache folder.
class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');  // of parameterized tests
    folder_ = std::filesystem::temp_directory_path() / ("qkv_session_" + std::to_string(getpid()) + "_" + name);
    std::filesystem::create_directories(folder_);
    if (const char* cache = std::getenv("QKV_CACHE"); cache != nullptr) cache_before_ = cache;
    setenv("QKV_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    if (cache_before_.empty()) {
      unsetenv("QKV_CACHE");
    } else {
      setenv("QKV_CACHE", cache_before_.c_str(), 1);
    }
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::unique_ptr<Model> LoadTiny(const TinyModelSpec& spec, const std::string& name = "model.gguf") {
    const Status status = WriteTinyModel(spec, Path(name));
    EXPECT_TRUE(status.ok()) << status.message();
    return Take(Model::Load(Path(name), {}));
  }

  // One thread and small batches: the tests' prompts take several.
  static SessionOptions SmallOptions() {
    SessionOptions options;
    options.context = 512;
    options.batch = 64;
    options.threads = 1;
    return options;
  }
  static std::unique_ptr<Session> MakeSession(const Model& model, SessionOptions options = SmallOptions()) {
    return Take(Session::Create(model, options));
  }

  // Tokens that look like text to no one, but differ from each other.
  static std::vector<int32_t> SomeTokens(size_t count, int32_t first = 5) {
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((static_cast<size_t>(first) + i * 7919) % 251);
    return tokens;
  }

  static Card PackCard(const Session& session, double bits) {
    PackOptions options;
    options.code_bits = bits;
    PackTimes times;
    return Take(Card::FromBytes(Take(PackSession(session, options, &times)).Bytes()));
  }
  static Status Restore(const Card& card, size_t tokens, Session* session) {
    RestoreTimes times;
    return RestoreCard(card, tokens, session, &times);
  }

  // Attaches the first `tokens` tokens of a card; it lies where it was packed.
  static PlacedCard Place(Card card, size_t tokens = 0, uint32_t offset = 0) {
    PlacedCard placed;
    placed.card = Take(AttachedCard::Make(std::make_shared<const Card>(std::move(card))));
    placed.offset = offset;
    placed.tokens = tokens > 0 ? static_cast<uint32_t>(tokens) : placed.card->card().tokens();
    return placed;
  }
  static SessionOptions FusedOptions() {
    SessionOptions options = SmallOptions();
    options.fused = true;
    return options;
  }

  static void Prefill(Session* session, const std::vector<int32_t>& tokens) {
    const Status status = session->Prefill(tokens, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static Generation Greedy(Session* session, size_t count) {
    GenerateOptions options;
    options.sampling.temp = 0;
    options.predict = count;
    return Take(Generate(session, options));
  }
  static std::vector<float> Logits(const Session& session) {
    const float* logits = session.logits();
    EXPECT_NE(logits, nullptr);
    return {logits, logits + session.model().vocab_size()};
  }

  std::filesystem::path folder_;
  std::string cache_before_;
};

}  // namespace qkvshare
