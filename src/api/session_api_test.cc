// Sessions of the C API: prefill and generation.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "tests/api_fixture.h"

namespace qkvshare {
namespace {

TEST_F(ApiTest, SessionOptionsAreChecked) {
  qkv_session* session = nullptr;
  const auto refused = [&](void (*spoil)(qkv_session_options*), const char* says) {
    qkv_session_options options = Small();
    spoil(&options);
    Bad(qkv_session_create(model_.get(), &options, &session, &error_), QKV_INVALID_ARGUMENT, says);
  };
  refused([](qkv_session_options* o) { o->batch = 0; }, "batch");
  refused([](qkv_session_options* o) { o->batch = 1 << 20; }, "batch");
  refused([](qkv_session_options* o) { o->threads = -1; }, "threads");
  refused([](qkv_session_options* o) { o->threads = 10000; }, "threads");
  refused([](qkv_session_options* o) { o->rope_freq_base = -1; }, "rope");
  refused([](qkv_session_options* o) { o->rope_freq_scale = NAN; }, "rope");
  refused([](qkv_session_options* o) { o->cache_type_k = nullptr; }, "cache_type_k is NULL");
  refused([](qkv_session_options* o) { o->cache_type_v = nullptr; }, "cache_type_v is NULL");
  refused([](qkv_session_options* o) { o->cache_type_k = "q5_1"; }, "q5_1");
  refused(
      [](qkv_session_options* o) {
        o->cache_type_v = "q8_0";
        o->flash_attention = false;
      },
      "flash attention");
  EXPECT_EQ(session, nullptr);
}

TEST_F(ApiTest, SessionInfoHasWhatIsInEffect) {
  qkv_session_options options = Small();
  options.cache_type_k = "q8_0";
  options.cache_type_v = "bf16";
  options.flash_attention = false;
  qkv_session* session = nullptr;
  Good(qkv_session_create(model_.get(), &options, &session, &error_));
  const Handle<qkv_session> owned(session);
  qkv_session_info info{};
  Good(qkv_session_get_info(session, &info, sizeof info, &error_));
  EXPECT_STREQ(info.cache_type_k, "q8_0");
  EXPECT_STREQ(info.cache_type_v, "bf16");
  EXPECT_FALSE(info.flash_attention);
  // A caller of a version that did not have them.
  std::memset(&info, 0xAA, sizeof info);
  Good(qkv_session_get_info(session, &info, offsetof(qkv_session_info, cache_type_k), &error_));
  EXPECT_EQ(info.context, 512U);
  EXPECT_NE(info.cache_type_k, nullptr);
}

TEST_F(ApiTest, ASessionOutlivesItsModelHandle) {
  const auto session = ReadText();
  model_.reset();
  EXPECT_EQ(Greedy(session.get(), 3).tokens.size(), 3U);
}

TEST_F(ApiTest, PrefillAndTruncate) {
  const auto session = ReadText();
  qkv_session_info info{};
  Good(qkv_session_get_info(session.get(), &info, sizeof info, &error_));
  const std::vector<int32_t> tokens = TokensOf(session.get());
  EXPECT_EQ(info.tokens, tokens.size());
  EXPECT_EQ(info.context, 512U);
  EXPECT_EQ(info.threads, 1);
  EXPECT_EQ(info.restored_tokens, 0U);
  EXPECT_STREQ(info.cache_type_k, "f16");
  EXPECT_STREQ(info.cache_type_v, "f16");
  EXPECT_TRUE(info.flash_attention);
  // In two pieces, cut inside a word: the same tokens.
  const auto pieces = ReadText(kText.substr(0, 49));
  const std::string rest = kText.substr(49);
  Good(qkv_session_prefill_text(pieces.get(), rest.data(), rest.size(), nullptr, &error_));
  EXPECT_EQ(TokensOf(pieces.get()), tokens);
  const auto by_tokens = MakeSession();
  Good(qkv_session_prefill(by_tokens.get(), tokens.data(), tokens.size(), nullptr, &error_));
  EXPECT_EQ(TokensOf(by_tokens.get()), tokens);

  Bad(qkv_session_truncate(session.get(), tokens.size() + 1, &error_), QKV_INVALID_ARGUMENT, "fewer");
  Good(qkv_session_truncate(session.get(), 5, &error_));
  EXPECT_EQ(TokensOf(session.get()), std::vector<int32_t>(tokens.begin(), tokens.begin() + 5));
  Bad(qkv_session_prefill(session.get(), tokens.data(), 0, nullptr, &error_), QKV_INVALID_ARGUMENT, "no tokens");
  const int32_t unknown = 1 << 20;
  Bad(qkv_session_prefill(session.get(), &unknown, 1, nullptr, &error_), QKV_INVALID_ARGUMENT, "vocabulary");
  Bad(qkv_session_prefill_text(session.get(), "\xff", 1, nullptr, &error_), QKV_INVALID_ARGUMENT, "UTF-8");
  const std::string too_long(5000, 'x');
  Bad(qkv_session_prefill_text(session.get(), too_long.data(), too_long.size(), nullptr, &error_), QKV_OUT_OF_RANGE,
      "512 available");
  EXPECT_EQ(TokensOf(session.get()).size(), 5U);
  const auto empty = MakeSession();
  Bad(qkv_session_prefill_text(empty.get(), "", 0, nullptr, &error_), QKV_INVALID_ARGUMENT, "no tokens");
}

TEST_F(ApiTest, PrefillIsCancelled) {
  const auto session = MakeSession();
  qkv_prefill_options options;
  qkv_prefill_options_default(&options, sizeof options);
  std::vector<size_t> done;
  options.progress_data = &done;
  options.progress = [](void* data, size_t tokens, size_t) {
    static_cast<std::vector<size_t>*>(data)->push_back(tokens);
    return false;
  };
  Bad(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), &options, &error_), QKV_CANCELLED,
      "cancelled");
  EXPECT_EQ(done, std::vector<size_t>{16});
  EXPECT_EQ(TokensOf(session.get()).size(), 16U);
  // From elsewhere, before it runs; and for this call only.
  qkv_session_cancel(session.get());
  EXPECT_EQ(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), nullptr, &error_), QKV_CANCELLED);
  Good(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), nullptr, &error_));
}

TEST_F(ApiTest, Generate) {
  const auto session = ReadText();
  const std::vector<int32_t> prompt = TokensOf(session.get());
  const Answer answer = Greedy(session.get(), 6);
  EXPECT_EQ(answer.stop, QKV_STOP_LENGTH);
  EXPECT_EQ(answer.tokens.size(), 6U);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_EQ(TokensOf(session.get()), all);  // the last one too
  // Generated in two calls: the same.
  const auto again = ReadText();
  std::vector<int32_t> twice = Greedy(again.get(), 2).tokens;
  const std::vector<int32_t> more = Greedy(again.get(), 4).tokens;
  twice.insert(twice.end(), more.begin(), more.end());
  EXPECT_EQ(twice, answer.tokens);

  qkv_generate_options options;
  qkv_generate_options_default(&options, sizeof options);
  options.temp = 0;
  std::string streamed;
  options.text_data = &streamed;
  options.on_text = [](void* data, const char* text, size_t bytes) {
    static_cast<std::string*>(data)->append(text, bytes);
    return false;
  };
  const auto third = ReadText();
  qkv_generation done{};
  Good(qkv_session_generate(third.get(), &options, &done, sizeof done, &error_));
  EXPECT_EQ(done.stop, QKV_STOP_CANCELLED);
  EXPECT_EQ(done.token_count, 1U);
  EXPECT_EQ(streamed, std::string(done.text, done.text_bytes));
  EXPECT_EQ(TokensOf(third.get()).size(), prompt.size() + 1);
  qkv_free(done.text);
  qkv_free(done.tokens);
  for (const auto& [member, says] : {std::pair{&qkv_generate_options::temp, "temp"},
                                     {&qkv_generate_options::top_p, "top_p"},
                                     {&qkv_generate_options::min_p, "min_p"}}) {
    qkv_generate_options wrong;
    qkv_generate_options_default(&wrong, sizeof wrong);
    wrong.*member = NAN;
    Bad(qkv_session_generate(third.get(), &wrong, &done, sizeof done, &error_), QKV_INVALID_ARGUMENT, says);
  }
  Bad(qkv_session_generate(third.get(), nullptr, &done, 8, &error_), QKV_INVALID_ARGUMENT, "generation_size");
  const auto empty = MakeSession();
  Bad(qkv_session_generate(empty.get(), nullptr, &done, sizeof done, &error_), QKV_INVALID_ARGUMENT, "decoded");
}

TEST_F(ApiTest, TheCallbackStopsAtTheLastTokenToo) {
  qkv_generate_options options;
  qkv_generate_options_default(&options, sizeof options);
  options.temp = 0;
  options.predict = 1;
  options.on_text = [](void*, const char*, size_t) { return false; };
  const auto session = ReadText();
  const size_t before = TokensOf(session.get()).size();
  qkv_generation done{};
  Good(qkv_session_generate(session.get(), &options, &done, sizeof done, &error_));
  const Handle<char> text(done.text);
  const Handle<int32_t> tokens(done.tokens);
  EXPECT_EQ(done.stop, QKV_STOP_CANCELLED);
  EXPECT_EQ(done.token_count, 1U);
  EXPECT_EQ(TokensOf(session.get()).size(), before + 1);
}

// Cancels from another thread, again and again.
class Cancelling {
 public:
  explicit Cancelling(qkv_session* session)
      : thread_([this, session] {
          while (!stop_) {
            qkv_session_cancel(session);
            std::this_thread::sleep_for(std::chrono::microseconds(5));
          }
        }) {}
  ~Cancelling() {
    stop_ = true;
    thread_.join();
  }
  Cancelling(const Cancelling&) = delete;
  Cancelling& operator=(const Cancelling&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(ApiTest, CancelledWhileTheLastTokenIsReadTheTextIsKept) {
  const auto session = ReadText();
  const std::vector<int32_t> prompt = TokensOf(session.get());
  qkv_generate_options options;
  qkv_generate_options_default(&options, sizeof options);
  options.predict = 1;  // so that nothing but the last token is read
  for (int attempt = 0; attempt < 100; ++attempt) {
    qkv_generation done{};
    {
      const Cancelling cancelling(session.get());
      Good(qkv_session_generate(session.get(), &options, &done, sizeof done, &error_));
    }
    const Handle<char> text(done.text);
    const Handle<int32_t> tokens(done.tokens);
    ASSERT_EQ(done.token_count + (done.end_token >= 0 ? 1 : 0), 1U);
    // It came in time or it did not.
    EXPECT_EQ(TokensOf(session.get()).size(), prompt.size() + (done.stop == QKV_STOP_CANCELLED ? 0 : 1));
    Good(qkv_session_truncate(session.get(), prompt.size() - 1, &error_));
    if (qkv_session_prefill(session.get(), &prompt.back(), 1, nullptr, nullptr) == QKV_CANCELLED) {
      Good(qkv_session_prefill(session.get(), &prompt.back(), 1, nullptr, &error_));
    }
  }
}

TEST_F(ApiTest, GenerationFillsTheContext) {
  const auto session = MakeSession();
  std::vector<int32_t> tokens(510, 7);
  Good(qkv_session_prefill(session.get(), tokens.data(), tokens.size(), nullptr, &error_));
  const Answer answer = Greedy(session.get(), 50);
  EXPECT_EQ(answer.stop, QKV_STOP_CONTEXT);
  EXPECT_EQ(answer.tokens.size(), 3U);
  EXPECT_EQ(TokensOf(session.get()).size(), 512U);
}

}  // namespace
}  // namespace qkvshare
