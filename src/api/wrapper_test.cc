// The C++ wrapper of the C API.
#include <gtest/gtest.h>

#include "qkvshare/qkvshare.hpp"
#include "tests/session_fixture.h"
#include "tests/tiny_model.h"

namespace qkvshare {
namespace {

class WrapperTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    ASSERT_TRUE(WriteTinyModel({}, Path("model.gguf")).ok());
  }
  static qkv::SessionOptions Small() {
    qkv::SessionOptions options;
    options.context = 512;
    options.batch = 16;
    options.threads = 1;
    return options;
  }
};

TEST_F(WrapperTest, HandOver) {
  const qkv::Model model = Take(qkv::Model::Load(Path("model.gguf")));
  EXPECT_STREQ(model.info().architecture, "llama");
  const std::vector<qkv::Message> messages = {{"user", "The cat sleeps on the mill stone in the winter."}};
  const std::string text = Take(model.ChatTemplate(messages, false));
  const std::vector<int32_t> tokens = Take(model.Tokenize(text, true));
  EXPECT_EQ(Take(model.Detokenize(tokens)), text);

  qkv::Session sender = Take(qkv::Session::Create(model, Small()));
  qkv::PrefillOptions prefill;
  size_t calls = 0;
  prefill.on_progress = [&](size_t done, size_t total) {
    EXPECT_LE(done, total);
    ++calls;
    return true;
  };
  ASSERT_TRUE(sender.PrefillText(text, prefill).ok());
  EXPECT_GT(calls, 1U);
  EXPECT_EQ(Take(sender.Tokens()), tokens);
  qkv::PackOptions pack;
  pack.bits = 16;
  pack.conversation = messages;
  ASSERT_TRUE(sender.PackFile(Path("x.card"), pack).ok());
  EXPECT_GT(Take(sender.PackMemory(pack)).size(), 1000U);

  const qkv::Card card = Take(qkv::Card::Open(Path("x.card")));
  EXPECT_TRUE(card.Verify().ok());
  EXPECT_EQ(card.info().tokens, tokens.size());
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), card.token_ids().begin(), card.token_ids().end()));
  EXPECT_EQ(card.positions().back(), static_cast<int32_t>(tokens.size()) - 1);
  EXPECT_EQ(Take(card.TokenBits(0, QKV_KEYS)).back(), 16);
  EXPECT_NE(std::string(card.info().info_json).find("\"role\":\"user\""), std::string::npos);
  const qkv_layer_shape shape = Take(card.Shape(0));
  std::vector<float> rows(tokens.size() * shape.kv_heads * shape.key_dim);
  EXPECT_TRUE(card.Unpack(0, QKV_KEYS, tokens.size(), rows).ok());
  std::vector<uint16_t> halves(rows.size());
  EXPECT_TRUE(card.Unpack(0, QKV_KEYS, tokens.size(), halves).ok());

  qkv::Session receiver = Take(qkv::Session::Create(model, Small()));
  ASSERT_TRUE(receiver.Restore(card).ok());
  ASSERT_TRUE(receiver.PrefillText(Take(model.ChatNextTurn("Where?"))).ok());
  qkv::GenerateOptions generate;
  generate.temp = 0;
  generate.predict = 5;
  std::string streamed;
  generate.on_piece = [&](std::string_view piece) {
    streamed += piece;
    return true;
  };
  const qkv::Generation answer = Take(receiver.Generate(generate));
  EXPECT_EQ(answer.text, streamed);
  EXPECT_EQ(answer.tokens.size(), 5U);
  EXPECT_EQ(receiver.info().tokens, Take(receiver.Tokens()).size());
  EXPECT_TRUE(receiver.Truncate(3).ok());
  EXPECT_TRUE(receiver.Prefill(tokens).ok());
  EXPECT_EQ(receiver.info().tokens, 3 + tokens.size());
}

TEST_F(WrapperTest, PackOptionsBindReadersAndCards) {
  const qkv::Model model = Take(qkv::Model::Load(Path("model.gguf")));
  qkv::Session session = Take(qkv::Session::Create(model, Small()));
  qkv::PrefillOptions prefill;
  prefill.keep_attention = true;
  ASSERT_TRUE(session.PrefillText("The cat sleeps on the mill stone in the winter, and the ice is cut.", prefill).ok());
  qkv::PackOptions pack;
  pack.policy = "local";
  pack.bits = 3;
  const qkv::Card earlier = Take(qkv::Card::FromBytes(Take(session.PackMemory(pack))));
  pack.policy = "topology";
  pack.receivers = {{"B"}, {"C", 2}};
  pack.receiver_cards = {&earlier};
  const qkv::Card card = Take(qkv::Card::FromBytes(Take(session.PackMemory(pack))));
  const std::string json = card.info().info_json;
  for (const char* part : {"\"anchors\"", "{\"agent\":\"B\",\"distance\":1}", "{\"agent\":\"C\",\"distance\":2}"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " is not in " << json;
  }
  pack.receivers[0].role = "tool";
  EXPECT_EQ(session.PackMemory(pack).status().code(), StatusCode::kInvalidArgument);
  pack.receiver_cards = {nullptr};
  EXPECT_EQ(session.PackMemory(pack).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(WrapperTest, CardsAreInjected) {
  const qkv::Model model = Take(qkv::Model::Load(Path("model.gguf")));
  qkv::Session sender = Take(qkv::Session::Create(model, Small()));
  ASSERT_TRUE(sender.PrefillText("The cat sleeps on the mill stone.").ok());
  const qkv::Card card = Take(qkv::Card::FromBytes(Take(sender.PackMemory())));
  qkv::SessionOptions options = Small();
  options.fused = true;
  qkv::Session session = Take(qkv::Session::Create(model, options));
  const qkv::Injection done = Take(session.Inject(card));
  EXPECT_EQ(done.mode, QKV_INJECT_FUSED);
  EXPECT_EQ(done.tokens, card.info().tokens);
  EXPECT_EQ(done.reason, "the self-test passed");
  const qkv::Card* const twice[] = {&card, &card};
  EXPECT_EQ(Take(session.Inject(twice, QKV_INJECT_RESTORE)).tokens, 2 * card.info().tokens);
  EXPECT_EQ(Take(session.Inject(twice, QKV_INJECT_RESTORE, 5)).tokens, 5u);
  EXPECT_EQ(session.Inject({}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(WrapperTest, ErrorsComeAsStatus) {
  EXPECT_EQ(qkv::Model::Load(Path("none.gguf")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(qkv::Card::Open(Path("none.card")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(qkv::Card::FromBytes({}).status().code(), StatusCode::kCorrupt);
  qkv::ModelOptions options;
  options.on_progress = [](size_t, size_t) { return false; };
  EXPECT_EQ(qkv::Model::Load(Path("model.gguf"), options).status().code(), StatusCode::kCancelled);
  const qkv::Model model = Take(qkv::Model::Load(Path("model.gguf")));
  EXPECT_EQ(model.ChatTemplate({}, true).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(model.Tokenize({}, false)), std::vector<int32_t>());
  EXPECT_EQ(Take(model.Detokenize({})), "");
  qkv::Session session = Take(qkv::Session::Create(model, Small()));
  EXPECT_EQ(session.Prefill({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session.Generate().status().code(), StatusCode::kInvalidArgument);
  session.Cancel();
  EXPECT_EQ(session.PrefillText("some text").code(), StatusCode::kCancelled);
  EXPECT_TRUE(session.PrefillText("some text").ok());
}

}  // namespace
}  // namespace qkvshare
