// The C API on a tiny model, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "tests/session_fixture.h"
#include "tests/tiny_model.h"

namespace qkvshare {

inline const std::string kText =
    "The cat of the farmer sleeps on the mill stone, and it is cutting the ice in the winter.";

struct Free {
  void operator()(void* pointer) const { qkv_free(pointer); }
  void operator()(qkv_model* model) const { qkv_model_free(model); }
  void operator()(qkv_session* session) const { qkv_session_free(session); }
  void operator()(qkv_card* card) const { qkv_card_free(card); }
};
template <typename T>
using Handle = std::unique_ptr<T, Free>;

class ApiTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    ASSERT_TRUE(WriteTinyModel({}, Path("model.gguf")).ok());
    model_ = LoadModel("model.gguf");
  }
  void TearDown() override {
    model_.reset();
    SessionTest::TearDown();
  }

  void Good(qkv_status status) const {
    EXPECT_EQ(status, QKV_OK) << error_.message;
    EXPECT_EQ(error_.status, QKV_OK);
    EXPECT_STREQ(error_.message, "");
  }
  // The code, in the error too, and a word of its message.
  void Bad(qkv_status status, qkv_status wanted, const std::string& says) const {
    EXPECT_EQ(status, wanted) << error_.message;
    EXPECT_EQ(error_.status, wanted);
    EXPECT_NE(std::string(error_.message).find(says), std::string::npos) << error_.message;
  }
  void IsNull(qkv_status status) { Bad(status, QKV_INVALID_ARGUMENT, "is NULL"); }

  Handle<qkv_model> LoadModel(const std::string& name) {
    qkv_model* model = nullptr;
    Good(qkv_model_load(Path(name).c_str(), nullptr, &model, &error_));
    return Handle<qkv_model>(model);
  }
  static qkv_session_options Small() {
    qkv_session_options options;
    qkv_session_options_default(&options, sizeof options);
    options.context = 512;
    options.batch = 16;
    options.threads = 1;
    return options;
  }
  Handle<qkv_session> MakeSession(const qkv_model* model = nullptr) {
    const qkv_session_options options = Small();
    qkv_session* session = nullptr;
    Good(qkv_session_create(model == nullptr ? model_.get() : model, &options, &session, &error_));
    return Handle<qkv_session>(session);
  }
  Handle<qkv_session> ReadText(const std::string& text = kText) {
    Handle<qkv_session> session = MakeSession();
    Good(qkv_session_prefill_text(session.get(), text.data(), text.size(), nullptr, &error_));
    return session;
  }
  std::vector<uint8_t> Pack(const qkv_session* session, double bits) {
    qkv_pack_options options;
    qkv_pack_options_default(&options, sizeof options);
    options.bits = bits;
    uint8_t* bytes = nullptr;
    size_t count = 0;
    Good(qkv_session_pack_memory(session, &options, &bytes, &count, &error_));
    const Handle<uint8_t> owned(bytes);
    return {bytes, bytes + count};
  }
  Handle<qkv_card> OpenCard(const std::vector<uint8_t>& bytes) {
    qkv_card* card = nullptr;
    Good(qkv_card_from_bytes(bytes.data(), bytes.size(), &card, &error_));
    return Handle<qkv_card>(card);
  }
  std::vector<int32_t> TokensOf(const qkv_session* session) {
    int32_t* tokens = nullptr;
    size_t count = 0;
    Good(qkv_session_get_tokens(session, &tokens, &count, &error_));
    const Handle<int32_t> owned(tokens);
    return {tokens, tokens + count};
  }
  struct Answer {
    std::string text;
    std::vector<int32_t> tokens;
    qkv_stop stop;
  };
  Answer Greedy(qkv_session* session, size_t predict) {
    qkv_generate_options options;
    qkv_generate_options_default(&options, sizeof options);
    options.temp = 0;
    options.predict = predict;
    qkv_generation done{};
    Good(qkv_session_generate(session, &options, &done, sizeof done, &error_));
    const Handle<char> text(done.text);
    const Handle<int32_t> tokens(done.tokens);
    return {{done.text, done.text_bytes}, {done.tokens, done.tokens + done.token_count}, done.stop};
  }

  qkv_error error_{};
  Handle<qkv_model> model_;
};

}  // namespace qkvshare
