// The boundary of the C API: versions, errors, options that grow, what is NULL.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "api/api_support.h"
#include "qkvshare/qkvshare.h"
#include "qkvshare/version.h"
#include "tests/api_fixture.h"

namespace qkvshare {
namespace {

TEST_F(ApiTest, VersionAndNames) {
  EXPECT_STREQ(qkv_version(), kVersionText);
  EXPECT_STREQ(qkv_status_name(QKV_MISMATCH), "mismatch");
  // NOLINTBEGIN(clang-analyzer-optin.core.EnumCastOutOfRange): what callers in C may pass
  EXPECT_STREQ(qkv_status_name(static_cast<qkv_status>(99)), "unknown");
  // NOLINTEND(clang-analyzer-optin.core.EnumCastOutOfRange)
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

}  // namespace
}  // namespace qkvshare
