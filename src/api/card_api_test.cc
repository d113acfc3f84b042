// Cards of the C API: facts, rows, and a hand-over by it alone.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "api/api_support.h"
#include "qkvshare/qkvshare.h"
#include "tests/api_fixture.h"
#include "tests/tiny_model.h"

namespace qkvshare {
namespace {

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
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): what callers in C may pass
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
