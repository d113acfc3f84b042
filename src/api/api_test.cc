// The C API: every function, what it refuses, and a hand-over by it alone.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "api/api_support.h"
#include "qkvshare/qkvshare.h"
#include "qkvshare/version.h"
#include "tests/session_fixture.h"
#include "tests/tiny_model.h"

namespace qkvshare {
namespace {

const std::string kText = "The cat of the farmer sleeps on the mill stone, and it is cutting the ice in the winter.";

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

TEST_F(ApiTest, VersionAndNames) {
  EXPECT_STREQ(qkv_version(), kVersionText);
  EXPECT_STREQ(qkv_status_name(QKV_MISMATCH), "mismatch");
  EXPECT_STREQ(qkv_status_name(static_cast<qkv_status>(99)), "unknown");
  EXPECT_STREQ(qkv_status_name(static_cast<qkv_status>(-1)), "unknown");
  // The codes are those of the C++ library, name by name.
  for (int code = 0; code <= QKV_INTERNAL; ++code) {
    EXPECT_STREQ(qkv_status_name(static_cast<qkv_status>(code)), StatusCodeName(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(static_cast<int>(QKV_INTERNAL), static_cast<int>(StatusCode::kInternal));
  qkv_free(nullptr);
  qkv_model_free(nullptr);
  qkv_session_free(nullptr);
  qkv_card_free(nullptr);
  qkv_session_cancel(nullptr);
}

TEST_F(ApiTest, WhatIsThrownBecomesAStatus) {
  EXPECT_EQ(api::Call(&error_, []() -> Status { throw std::bad_alloc(); }), QKV_OUT_OF_RANGE);
  EXPECT_STREQ(error_.message, "out of memory");
  EXPECT_EQ(api::Call(&error_, []() -> Status { throw std::runtime_error("why"); }), QKV_INTERNAL);
  EXPECT_STREQ(error_.message, "why");
  EXPECT_EQ(api::Call(nullptr, []() -> Status { throw 5; }), QKV_INTERNAL);
}

TEST_F(ApiTest, LongMessagesAreCutBetweenCharacters) {
  std::string text(QKV_ERROR_MESSAGE_BYTES - 3, 'x');
  text += "\u20ac\u20ac";  // 3 bytes each; 2 are left
  api::Report({StatusCode::kIo, text}, &error_);
  EXPECT_EQ(error_.message, std::string(QKV_ERROR_MESSAGE_BYTES - 3, 'x'));
}

TEST_F(ApiTest, OptionsGrow) {
  qkv_generate_options options;
  std::memset(&options, 0xAA, sizeof options);
  EXPECT_EQ(qkv_generate_options_default(&options, offsetof(qkv_generate_options, top_k)), QKV_OK);
  EXPECT_EQ(options.struct_size, offsetof(qkv_generate_options, top_k));
  EXPECT_EQ(options.predict, 128U);
  EXPECT_EQ(options.top_k, static_cast<int32_t>(0xAAAAAAAA));  // not the caller's
  options.predict = 2;
  const auto session = ReadText();
  qkv_generation done{};
  Good(qkv_session_generate(session.get(), &options, &done, sizeof done, &error_));  // the rest: defaults
  EXPECT_LE(done.token_count, 2U);
  qkv_free(done.text);
  qkv_free(done.tokens);
  options.struct_size = sizeof options + 8;
  Bad(qkv_session_generate(session.get(), &options, &done, sizeof done, &error_), QKV_UNSUPPORTED, "later version");
  options.struct_size = 0;
  Bad(qkv_session_generate(session.get(), &options, &done, sizeof done, &error_), QKV_INVALID_ARGUMENT, "_default");
  EXPECT_EQ(qkv_generate_options_default(nullptr, sizeof options), QKV_INVALID_ARGUMENT);
  EXPECT_EQ(qkv_model_options_default(nullptr, 8), QKV_INVALID_ARGUMENT);
  EXPECT_EQ(qkv_session_options_default(nullptr, 8), QKV_INVALID_ARGUMENT);
  EXPECT_EQ(qkv_prefill_options_default(nullptr, 8), QKV_INVALID_ARGUMENT);
  EXPECT_EQ(qkv_pack_options_default(nullptr, 8), QKV_INVALID_ARGUMENT);
  qkv_model_info info;
  std::memset(&info, 0xAA, sizeof info);
  Good(qkv_model_get_info(model_.get(), &info, sizeof(const char*), &error_));
  EXPECT_STREQ(info.name, "tiny random model");
  EXPECT_EQ(info.vocab_size, static_cast<int32_t>(0xAAAAAAAA));
}

TEST_F(ApiTest, NullIsRefused) {
  const auto session = ReadText();
  const auto card = OpenCard(Pack(session.get(), 4));
  const qkv_model* m = model_.get();
  qkv_session* s = session.get();
  qkv_model* model = nullptr;
  qkv_session* made = nullptr;
  qkv_card* opened = nullptr;
  int32_t* tokens = nullptr;
  const int32_t* ids = nullptr;
  char* text = nullptr;
  uint8_t* bytes = nullptr;
  size_t n = 0;
  const qkv_message message = {"user", "x"};
  const qkv_message no_role = {nullptr, "x"};
  const qkv_message no_content = {"user", nullptr};
  std::array<char, 64> out{};
  qkv_error* e = &error_;
  IsNull(qkv_model_load(nullptr, nullptr, &model, e));
  IsNull(qkv_model_load("x", nullptr, nullptr, e));
  IsNull(qkv_model_get_info(nullptr, reinterpret_cast<qkv_model_info*>(out.data()), sizeof(qkv_model_info), e));
  IsNull(qkv_model_get_info(m, nullptr, sizeof(qkv_model_info), e));
  IsNull(qkv_tokenize(nullptr, "x", 1, true, &tokens, &n, e));
  IsNull(qkv_tokenize(m, nullptr, 1, true, &tokens, &n, e));
  IsNull(qkv_tokenize(m, "x", 1, true, nullptr, &n, e));
  IsNull(qkv_tokenize(m, "x", 1, true, &tokens, nullptr, e));
  const int32_t token = 5;
  IsNull(qkv_detokenize(nullptr, &token, 1, &text, &n, e));
  IsNull(qkv_detokenize(m, nullptr, 1, &text, &n, e));
  IsNull(qkv_detokenize(m, &token, 1, nullptr, &n, e));
  IsNull(qkv_detokenize(m, &token, 1, &text, nullptr, e));
  IsNull(qkv_chat_template(nullptr, &message, 1, true, &text, &n, e));
  IsNull(qkv_chat_template(m, nullptr, 1, true, &text, &n, e));
  IsNull(qkv_chat_template(m, &no_role, 1, true, &text, &n, e));
  IsNull(qkv_chat_template(m, &no_content, 1, true, &text, &n, e));
  IsNull(qkv_chat_template(m, &message, 1, true, nullptr, &n, e));
  IsNull(qkv_chat_template(m, &message, 1, true, &text, nullptr, e));
  Bad(qkv_chat_template(m, &message, 0, true, &text, &n, e), QKV_INVALID_ARGUMENT, "no messages");
  IsNull(qkv_chat_next_turn(nullptr, "x", 1, "", 0, &text, &n, e));
  IsNull(qkv_chat_next_turn(m, nullptr, 1, "", 0, &text, &n, e));
  IsNull(qkv_chat_next_turn(m, "x", 1, nullptr, 0, &text, &n, e));
  IsNull(qkv_chat_next_turn(m, "x", 1, "", 0, nullptr, &n, e));
  IsNull(qkv_chat_next_turn(m, "x", 1, "", 0, &text, nullptr, e));
  IsNull(qkv_session_create(nullptr, nullptr, &made, e));
  IsNull(qkv_session_create(m, nullptr, nullptr, e));
  IsNull(qkv_session_get_info(nullptr, reinterpret_cast<qkv_session_info*>(out.data()), sizeof(qkv_session_info), e));
  IsNull(qkv_session_get_info(s, nullptr, sizeof(qkv_session_info), e));
  IsNull(qkv_session_get_tokens(nullptr, &tokens, &n, e));
  IsNull(qkv_session_get_tokens(s, nullptr, &n, e));
  IsNull(qkv_session_get_tokens(s, &tokens, nullptr, e));
  IsNull(qkv_session_prefill(nullptr, &token, 1, nullptr, e));
  IsNull(qkv_session_prefill(s, nullptr, 1, nullptr, e));
  IsNull(qkv_session_prefill_text(nullptr, "x", 1, nullptr, e));
  IsNull(qkv_session_prefill_text(s, nullptr, 1, nullptr, e));
  IsNull(qkv_session_truncate(nullptr, 0, e));
  IsNull(
      qkv_session_generate(nullptr, nullptr, reinterpret_cast<qkv_generation*>(out.data()), sizeof(qkv_generation), e));
  IsNull(qkv_session_generate(s, nullptr, nullptr, sizeof(qkv_generation), e));
  IsNull(qkv_session_pack_file(nullptr, nullptr, "x", e));
  IsNull(qkv_session_pack_file(s, nullptr, nullptr, e));
  IsNull(qkv_session_pack_memory(nullptr, nullptr, &bytes, &n, e));
  IsNull(qkv_session_pack_memory(s, nullptr, nullptr, &n, e));
  IsNull(qkv_session_pack_memory(s, nullptr, &bytes, nullptr, e));
  IsNull(qkv_session_restore(nullptr, card.get(), 0, e));
  IsNull(qkv_session_restore(s, nullptr, 0, e));
  IsNull(qkv_card_open(nullptr, &opened, e));
  IsNull(qkv_card_open("x", nullptr, e));
  const uint8_t byte = 0;
  IsNull(qkv_card_from_bytes(nullptr, 1, &opened, e));
  IsNull(qkv_card_from_bytes(&byte, 1, nullptr, e));
  IsNull(qkv_card_verify(nullptr, e));
  qkv_card_info info;
  IsNull(qkv_card_get_info(nullptr, &info, sizeof info, e));
  IsNull(qkv_card_get_info(card.get(), nullptr, sizeof info, e));
  IsNull(qkv_card_get_token_ids(nullptr, &ids, &n, e));
  IsNull(qkv_card_get_token_ids(card.get(), nullptr, &n, e));
  IsNull(qkv_card_get_token_ids(card.get(), &ids, nullptr, e));
  IsNull(qkv_card_get_positions(nullptr, &ids, &n, e));
  IsNull(qkv_card_get_positions(card.get(), nullptr, &n, e));
  IsNull(qkv_card_get_positions(card.get(), &ids, nullptr, e));
  qkv_layer_shape shape;
  IsNull(qkv_card_get_layer_shape(nullptr, 0, &shape, e));
  IsNull(qkv_card_get_layer_shape(card.get(), 0, nullptr, e));
  uint8_t bits = 0;
  IsNull(qkv_card_get_token_bits(nullptr, 0, QKV_KEYS, &bits, 1, e));
  IsNull(qkv_card_get_token_bits(card.get(), 0, QKV_KEYS, nullptr, 1, e));
  IsNull(qkv_card_unpack(nullptr, 0, QKV_KEYS, 1, QKV_F16, out.data(), 1, e));
  IsNull(qkv_card_unpack(card.get(), 0, QKV_KEYS, 1, QKV_F16, nullptr, 1, e));
  // Without an error to fill in the code is all there is.
  EXPECT_EQ(qkv_card_open(nullptr, &opened, nullptr), QKV_INVALID_ARGUMENT);
  for (const void* untouched : {static_cast<void*>(model), static_cast<void*>(made), static_cast<void*>(opened),
                                static_cast<void*>(tokens), static_cast<void*>(text), static_cast<void*>(bytes)}) {
    EXPECT_EQ(untouched, nullptr);
  }
}

TEST_F(ApiTest, Model) {
  qkv_model_info info{};
  Good(qkv_model_get_info(model_.get(), &info, sizeof info, &error_));
  EXPECT_STREQ(info.architecture, "llama");
  EXPECT_EQ(std::strlen(info.fingerprint), 64U);
  EXPECT_EQ(info.training_context, 2048U);
  EXPECT_GT(info.vocab_size, 256);
  qkv_model* model = nullptr;
  Bad(qkv_model_load(Path("none.gguf").c_str(), nullptr, &model, &error_), QKV_NOT_FOUND, "none.gguf");
  std::filesystem::copy_file(Path("model.gguf"), Path("cut.gguf"));
  std::filesystem::resize_file(Path("cut.gguf"), 1000);
  Bad(qkv_model_load(Path("cut.gguf").c_str(), nullptr, &model, &error_), QKV_CORRUPT, "cut.gguf");
  qkv_model_options options;
  qkv_model_options_default(&options, sizeof options);
  size_t calls = 0;
  options.progress_data = &calls;
  options.progress = [](void* data, size_t done, size_t total) {
    EXPECT_LE(done, total);
    ++*static_cast<size_t*>(data);
    return false;
  };
  Bad(qkv_model_load(Path("model.gguf").c_str(), &options, &model, &error_), QKV_CANCELLED, "cancelled");
  EXPECT_EQ(calls, 1U);
  EXPECT_EQ(model, nullptr);
}

TEST_F(ApiTest, TokensAndTemplates) {
  int32_t* tokens = nullptr;
  char* text = nullptr;
  size_t count = 0;
  size_t bytes = 0;
  Good(qkv_tokenize(model_.get(), kText.data(), kText.size(), true, &tokens, &count, &error_));
  Good(qkv_detokenize(model_.get(), tokens, count, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes), kText);
  EXPECT_EQ(text[bytes], '\0');
  qkv_free(tokens);
  qkv_free(text);
  Good(qkv_tokenize(model_.get(), "", 0, false, &tokens, &count, &error_));
  EXPECT_EQ(count, 0U);
  qkv_free(tokens);
  Bad(qkv_tokenize(model_.get(), "caf\xe9", 4, true, &tokens, &count, &error_), QKV_INVALID_ARGUMENT, "byte 3");
  const std::array<qkv_message, 2> messages = {qkv_message{"system", "Be brief."}, {"user", "Who?"}};
  Good(qkv_chat_template(model_.get(), messages.data(), 2, true, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
  qkv_free(text);
  Good(qkv_chat_next_turn(model_.get(), "Why?", 4, "", 0, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes), "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  qkv_free(text);
  Good(qkv_chat_next_turn(model_.get(), "Why?", 4, "an answer", 9, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes).find("<|im_end|>\n<|im_start|>user"), 0U);
  qkv_free(text);
  TinyModelSpec plain;
  plain.chat_template = "";
  ASSERT_TRUE(WriteTinyModel(plain, Path("plain.gguf")).ok());
  const auto model = LoadModel("plain.gguf");
  Bad(qkv_chat_template(model.get(), messages.data(), 2, true, &text, &bytes, &error_), QKV_UNSUPPORTED, "template");
}

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

TEST_F(ApiTest, ACardGoesIntoACacheOfAnotherType) {
  const auto card = OpenCard(Pack(ReadText().get(), 8));
  qkv_session_options options = Small();
  options.cache_type_k = options.cache_type_v = "q8_0";
  qkv_session* session = nullptr;
  Good(qkv_session_create(model_.get(), &options, &session, &error_));
  const Handle<qkv_session> owned(session);
  Good(qkv_session_restore(session, card.get(), 0, &error_));
  Good(qkv_session_prefill_text(session, "", 0, nullptr, &error_));
  EXPECT_EQ(Greedy(session, 2).tokens.size(), 2U);
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

TEST_F(ApiTest, GenerationFillsTheContext) {
  const auto session = MakeSession();
  std::vector<int32_t> tokens(510, 7);
  Good(qkv_session_prefill(session.get(), tokens.data(), tokens.size(), nullptr, &error_));
  const Answer answer = Greedy(session.get(), 50);
  EXPECT_EQ(answer.stop, QKV_STOP_CONTEXT);
  EXPECT_EQ(answer.tokens.size(), 3U);
  EXPECT_EQ(TokensOf(session.get()).size(), 512U);
}

TEST_F(ApiTest, PackOptions) {
  const auto session = ReadText();
  uint8_t* bytes = nullptr;
  size_t count = 0;
  const auto pack = [&](const qkv_pack_options& options) {
    return qkv_session_pack_memory(session.get(), &options, &bytes, &count, &error_);
  };
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  options.bits = 1;
  Bad(pack(options), QKV_INVALID_ARGUMENT, "to 16");
  options.bits = 5;
  options.policy = "oracle";
  Bad(pack(options), QKV_INVALID_ARGUMENT, "oracle");
  options.policy = nullptr;
  IsNull(pack(options));
  options.policy = "local";
  EXPECT_EQ(pack(options), QKV_INVALID_ARGUMENT);  // nothing was kept
  qkv_prefill_options prefill;
  qkv_prefill_options_default(&prefill, sizeof prefill);
  prefill.keep_attention = true;
  Good(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), &prefill, &error_));
  Good(pack(options));
  qkv_free(bytes);
  options.max_bytes = 10;
  Bad(pack(options), QKV_OUT_OF_RANGE, "available");
  Bad(qkv_session_pack_file(session.get(), nullptr, Path("none/x.card").c_str(), &error_), QKV_NOT_FOUND, "none");
  const auto empty = MakeSession();
  Bad(qkv_session_pack_file(empty.get(), nullptr, Path("x.card").c_str(), &error_), QKV_INVALID_ARGUMENT, "empty");
}

TEST_F(ApiTest, CardFacts) {
  const std::array<qkv_message, 2> messages = {qkv_message{"system", "Be brief."}, {"user", kText.c_str()}};
  char* rendered = nullptr;
  size_t rendered_bytes = 0;
  Good(qkv_chat_template(model_.get(), messages.data(), 2, false, &rendered, &rendered_bytes, &error_));
  const auto session = ReadText(std::string(rendered, rendered_bytes));
  qkv_free(rendered);
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  options.agent = "archivist";
  options.messages = messages.data();
  options.message_count = 2;
  options.profile = "no such profile";
  EXPECT_EQ(qkv_session_pack_file(session.get(), &options, Path("x.card").c_str(), &error_), QKV_NOT_FOUND);
  options.profile = nullptr;
  Good(qkv_session_pack_file(session.get(), &options, Path("x.card").c_str(), &error_));
  qkv_card* opened = nullptr;
  Good(qkv_card_open(Path("x.card").c_str(), &opened, &error_));
  const Handle<qkv_card> card(opened);
  Good(qkv_card_verify(card.get(), &error_));
  const std::vector<int32_t> tokens = TokensOf(session.get());
  qkv_card_info info{};
  Good(qkv_card_get_info(card.get(), &info, sizeof info, &error_));
  EXPECT_EQ(info.tokens, tokens.size());
  EXPECT_EQ(info.layers, 2U);
  EXPECT_EQ(std::strlen(info.content_id), 64U);
  qkv_model_info model{};
  Good(qkv_model_get_info(model_.get(), &model, sizeof model, &error_));
  EXPECT_STREQ(info.model_fingerprint, model.fingerprint);
  EXPECT_STREQ(info.model_name, model.name);
  EXPECT_STREQ(info.agent, "archivist");
  EXPECT_STREQ(info.policy, "uniform");
  EXPECT_NE(std::string(info.info_json).find("\"role\":\"system\""), std::string::npos) << info.info_json;
  EXPECT_EQ(info.card_bytes, std::filesystem::file_size(Path("x.card")));
  EXPECT_EQ(info.f16_bytes, tokens.size() * 2 * 2 * 128 * 2);
  EXPECT_GT(info.code_bits, 4);
  EXPECT_GT(info.total_bits, info.code_bits);

  const int32_t* ids = nullptr;
  size_t count = 0;
  Good(qkv_card_get_token_ids(card.get(), &ids, &count, &error_));
  EXPECT_EQ(std::vector<int32_t>(ids, ids + count), tokens);
  Good(qkv_card_get_positions(card.get(), &ids, &count, &error_));
  EXPECT_EQ(count, tokens.size());
  EXPECT_EQ(ids[count - 1], static_cast<int32_t>(count) - 1);
  qkv_layer_shape shape{};
  Good(qkv_card_get_layer_shape(card.get(), 1, &shape, &error_));
  EXPECT_EQ(shape.kv_heads, 2U);
  EXPECT_EQ(shape.key_dim, 64U);
  EXPECT_EQ(shape.value_dim, 64U);
  Bad(qkv_card_get_layer_shape(card.get(), 2, &shape, &error_), QKV_INVALID_ARGUMENT, "layer");
  std::vector<uint8_t> bits(count);
  Good(qkv_card_get_token_bits(card.get(), 0, QKV_VALUES, bits.data(), bits.size(), &error_));
  EXPECT_EQ(bits[0], 16);  // the first 4 are exact
  EXPECT_EQ(bits[count - 1], 4);
  Bad(qkv_card_get_token_bits(card.get(), 0, QKV_KEYS, bits.data(), count - 1, &error_), QKV_INVALID_ARGUMENT,
      "bit_count");
  Bad(qkv_card_get_token_bits(card.get(), 9, QKV_KEYS, bits.data(), count, &error_), QKV_INVALID_ARGUMENT, "layer");
  Bad(qkv_card_get_token_bits(card.get(), 0, static_cast<qkv_side>(2), bits.data(), count, &error_),
      QKV_INVALID_ARGUMENT, "side");
}

TEST_F(ApiTest, CardsThatAreNone) {
  const auto session = ReadText();
  std::vector<uint8_t> bytes = Pack(session.get(), 4);
  qkv_card* card = nullptr;
  Bad(qkv_card_open(Path("none.card").c_str(), &card, &error_), QKV_NOT_FOUND, "none.card");
  Bad(qkv_card_from_bytes(bytes.data(), 0, &card, &error_), QKV_CORRUPT, "");
  bytes[bytes.size() / 2] ^= 1;
  Bad(qkv_card_from_bytes(bytes.data(), bytes.size(), &card, &error_), QKV_CORRUPT, "rule");
  EXPECT_EQ(card, nullptr);
}

TEST_F(ApiTest, UnpackGivesTheRowsOfTheCache) {
  const auto session = ReadText();
  const auto card = OpenCard(Pack(session.get(), 16));  // exact
  const KvState state = Take(session->session->TakeKv());
  const KvView kv = state.view();
  for (const qkv_side side : {QKV_KEYS, QKV_VALUES}) {
    const size_t tokens = kv.tokens - 3;
    const size_t values = tokens * 128;
    std::vector<Half> rows(values);
    Good(qkv_card_unpack(card.get(), 1, side, tokens, QKV_F16, rows.data(), values * 2, &error_));
    const Half* wanted = side == QKV_KEYS ? kv.layers[1].keys : kv.layers[1].values;
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), wanted));
    std::vector<float> floats(values);
    Good(qkv_card_unpack(card.get(), 1, side, tokens, QKV_F32, floats.data(), values * 4, &error_));
    EXPECT_TRUE(std::equal(floats.begin(), floats.end(), wanted, [](float x, Half h) { return x == HalfToFloat(h); }));
  }
  std::array<uint16_t, 128> row{};
  const auto refuse = [&](size_t layer, int side, size_t tokens, int dtype, size_t bytes, const char* says) {
    Bad(qkv_card_unpack(card.get(), layer, static_cast<qkv_side>(side), tokens, static_cast<qkv_dtype>(dtype),
                        row.data(), bytes, &error_),
        QKV_INVALID_ARGUMENT, says);
  };
  refuse(2, QKV_KEYS, 1, QKV_F16, 256, "layer");
  refuse(0, 7, 1, QKV_F16, 256, "side");
  refuse(0, QKV_KEYS, 0, QKV_F16, 0, "token_count");
  refuse(0, QKV_KEYS, kv.tokens + 1, QKV_F16, 256, "token_count");
  refuse(0, QKV_KEYS, 1, 3, 256, "dtype");
  refuse(0, QKV_KEYS, 1, QKV_F16, 255, "256 are needed");
  refuse(0, QKV_KEYS, 1, QKV_F32, 256, "512 are needed");
}

TEST_F(ApiTest, HandOver) {
  const std::string question = " And who is cutting the ice?";
  const auto whole = ReadText(kText + question);
  const Answer wanted = Greedy(whole.get(), 8);

  const auto sender = ReadText();
  const std::vector<uint8_t> bytes = Pack(sender.get(), 16);
  const auto card = OpenCard(bytes);
  const auto receiver = MakeSession();
  Good(qkv_session_restore(receiver.get(), card.get(), 0, &error_));
  Good(qkv_session_prefill_text(receiver.get(), question.data(), question.size(), nullptr, &error_));
  qkv_session_info info{};
  Good(qkv_session_get_info(receiver.get(), &info, sizeof info, &error_));
  EXPECT_GE(info.restored_tokens + 2, TokensOf(sender.get()).size());
  EXPECT_LE(info.restored_tokens, TokensOf(sender.get()).size());
  EXPECT_EQ(TokensOf(receiver.get()).size(), info.tokens);
  EXPECT_EQ(Greedy(receiver.get(), 8).text, wanted.text);

  uint8_t* again = nullptr;
  size_t count = 0;
  Bad(qkv_session_pack_memory(receiver.get(), nullptr, &again, &count, &error_), QKV_UNSUPPORTED, "quantized twice");
  Good(qkv_session_truncate(receiver.get(), 0, &error_));
  Good(qkv_session_prefill_text(receiver.get(), kText.data(), kText.size(), nullptr, &error_));
  EXPECT_EQ(Pack(receiver.get(), 4).size(), Pack(sender.get(), 4).size());  // nothing of the card is left

  // A part of the card, gone on from without more text.
  Good(qkv_session_restore(receiver.get(), card.get(), 10, &error_));
  Good(qkv_session_prefill_text(receiver.get(), "", 0, nullptr, &error_));
  EXPECT_EQ(TokensOf(receiver.get()).size(), 10U);
  EXPECT_EQ(Greedy(receiver.get(), 2).tokens.size(), 2U);
}

TEST_F(ApiTest, RestoreIsRefusedBeforeTheSessionIsChanged) {
  const auto sender = ReadText();
  const auto card = OpenCard(Pack(sender.get(), 4));
  TinyModelSpec other;
  other.seed = 2;
  ASSERT_TRUE(WriteTinyModel(other, Path("other.gguf")).ok());
  const auto stranger = LoadModel("other.gguf");
  const auto session = MakeSession(stranger.get());
  const std::vector<int32_t> before = {5, 6, 7};
  Good(qkv_session_prefill(session.get(), before.data(), before.size(), nullptr, &error_));
  Bad(qkv_session_restore(session.get(), card.get(), 0, &error_), QKV_MISMATCH, "another model");
  EXPECT_EQ(TokensOf(session.get()), before);
  Pack(session.get(), 4);  // still its own
  const auto same = MakeSession();
  Bad(qkv_session_restore(same.get(), card.get(), 10000, &error_), QKV_INVALID_ARGUMENT, "10000");
}

}  // namespace
}  // namespace qkvshare
