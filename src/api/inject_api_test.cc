// Sessions of the C API that take several cards, attached or restored.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "tests/api_fixture.h"

namespace qkvshare {
namespace {

class InjectApiTest : public ApiTest {
 protected:
  Handle<qkv_session> FusedSession(void (*change)(qkv_session_options*) = nullptr) {
    qkv_session_options options = Small();
    options.fused = true;
    if (change != nullptr) change(&options);
    qkv_session* session = nullptr;
    Good(qkv_session_create(model_.get(), &options, &session, &error_));
    return Handle<qkv_session>(session);
  }
  qkv_injection Inject(qkv_session* session, const std::vector<const qkv_card*>& cards, qkv_inject mode,
                       size_t tokens = 0) {
    qkv_injection done{};
    Good(qkv_session_inject(session, cards.data(), cards.size(), tokens, mode, &done, sizeof done, &error_));
    return done;
  }
  qkv_session_info InfoOf(const qkv_session* session) {
    qkv_session_info info{};
    Good(qkv_session_get_info(session, &info, sizeof info, &error_));
    return info;
  }
  Answer AnswerAfter(qkv_session* session, const std::string& text) {
    Good(qkv_session_prefill_text(session, text.data(), text.size(), nullptr, &error_));
    return Greedy(session, 8);
  }
};

TEST_F(InjectApiTest, TheModeInEffectAndItsReasonAreReported) {
  const Handle<qkv_session> sender = ReadText();
  const Handle<qkv_card> card = OpenCard(Pack(sender.get(), 16));
  const size_t tokens = TokensOf(sender.get()).size();

  const Handle<qkv_session> plain = MakeSession();
  EXPECT_FALSE(InfoOf(plain.get()).fused);
  EXPECT_STREQ(InfoOf(plain.get()).fused_reason, "attention over cards was not asked for");
  const qkv_injection fallback = Inject(plain.get(), {card.get()}, QKV_INJECT_AUTO);
  EXPECT_EQ(fallback.mode, QKV_INJECT_RESTORE);
  EXPECT_EQ(fallback.tokens, tokens);
  EXPECT_STREQ(fallback.reason, "attention over cards was not asked for");
  EXPECT_EQ(InfoOf(plain.get()).restored_tokens, tokens);
  const qkv_card* const cards[] = {card.get()};
  Bad(qkv_session_inject(plain.get(), cards, 1, 0, QKV_INJECT_FUSED, nullptr, 0, &error_), QKV_UNSUPPORTED,
      "was not asked for");

  const Handle<qkv_session> fused = FusedSession();
  EXPECT_TRUE(InfoOf(fused.get()).fused);
  EXPECT_STREQ(InfoOf(fused.get()).fused_reason, "");
  EXPECT_STREQ(Inject(fused.get(), {card.get()}, QKV_INJECT_AUTO).reason, "the self-test passed");
  EXPECT_EQ(InfoOf(fused.get()).attached_tokens, tokens);
  EXPECT_EQ(InfoOf(fused.get()).restored_tokens, 0u);
  EXPECT_EQ(TokensOf(fused.get()), TokensOf(sender.get()));
  EXPECT_EQ(AnswerAfter(fused.get(), " In the winter").tokens, AnswerAfter(plain.get(), " In the winter").tokens);

  EXPECT_EQ(Inject(fused.get(), {card.get()}, QKV_INJECT_AUTO, 7).tokens, 7u);
  EXPECT_EQ(InfoOf(fused.get()).tokens, 7u);
  EXPECT_EQ(Inject(fused.get(), {card.get()}, QKV_INJECT_RESTORE).mode, QKV_INJECT_RESTORE);
  EXPECT_EQ(InfoOf(fused.get()).attached_tokens, 0u);
}

TEST_F(InjectApiTest, AttachedCardsTakeNoRoomAndOutliveTheirHandle) {
  const Handle<qkv_session> sender = ReadText();
  Handle<qkv_card> card = OpenCard(Pack(sender.get(), 8));
  const Handle<qkv_session> session = FusedSession([](qkv_session_options* options) {
    options->context = 64;
    options->card_tokens = 40;
  });
  Inject(session.get(), {card.get()}, QKV_INJECT_FUSED);
  card.reset();
  EXPECT_FALSE(AnswerAfter(session.get(), " In the winter").tokens.empty());
}

TEST_F(InjectApiTest, TokensAfterAttachedCardsBecomeADeltaCard) {
  const Handle<qkv_session> sender = ReadText();
  const Handle<qkv_card> first = OpenCard(Pack(sender.get(), 8));
  const size_t tokens = TokensOf(sender.get()).size();
  const Handle<qkv_session> middle = FusedSession();
  Inject(middle.get(), {first.get()}, QKV_INJECT_FUSED);
  uint8_t* bytes = nullptr;
  size_t count = 0;
  Bad(qkv_session_pack_memory(middle.get(), nullptr, &bytes, &count, &error_), QKV_INVALID_ARGUMENT, "after the cards");
  const Answer said = AnswerAfter(middle.get(), " In the winter");
  const Handle<qkv_card> delta = OpenCard(Pack(middle.get(), 8));
  qkv_card_info info{};
  Good(qkv_card_get_info(delta.get(), &info, sizeof info, &error_));
  EXPECT_EQ(info.tokens, TokensOf(middle.get()).size() - tokens);

  const Handle<qkv_session> last = FusedSession();
  EXPECT_EQ(Inject(last.get(), {first.get(), delta.get()}, QKV_INJECT_AUTO).mode, QKV_INJECT_FUSED);
  EXPECT_EQ(TokensOf(last.get()), TokensOf(middle.get()));
  const Handle<qkv_session> restored = MakeSession();
  Inject(restored.get(), {first.get(), delta.get()}, QKV_INJECT_RESTORE);
  EXPECT_EQ(TokensOf(restored.get()), TokensOf(middle.get()));
  Bad(qkv_session_pack_memory(restored.get(), nullptr, &bytes, &count, &error_), QKV_UNSUPPORTED, "quantized twice");
}

// What two agents made of one card lies side by side, and what a third makes of both names all of it.
TEST_F(InjectApiTest, CardsThatContinueOneLieSideBySide) {
  const Handle<qkv_session> sender = ReadText();
  const Handle<qkv_card> root = OpenCard(Pack(sender.get(), 16));
  const auto continued = [&](const std::vector<const qkv_card*>& cards, const std::string& text) {
    Handle<qkv_session> session = FusedSession();
    Inject(session.get(), cards, QKV_INJECT_FUSED);
    AnswerAfter(session.get(), text);
    return session;
  };
  const Handle<qkv_card> left = OpenCard(Pack(continued({root.get()}, " In the winter").get(), 16));
  const Handle<qkv_card> right = OpenCard(Pack(continued({root.get()}, " The keeper").get(), 16));
  const Handle<qkv_session> both = continued({root.get(), left.get(), right.get()}, " And so");
  const Handle<qkv_card> joined = OpenCard(Pack(both.get(), 16));
  qkv_card_info info{};
  Good(qkv_card_get_info(joined.get(), &info, sizeof info, &error_));
  EXPECT_NE(std::string(info.info_json).find("\"context\":["), std::string::npos) << info.info_json;

  const std::vector<const qkv_card*> all = {root.get(), left.get(), right.get(), joined.get()};
  const Handle<qkv_session> reader = FusedSession();
  Inject(reader.get(), all, QKV_INJECT_FUSED);
  EXPECT_EQ(TokensOf(reader.get()), TokensOf(both.get()));
  EXPECT_EQ(AnswerAfter(reader.get(), " Then").tokens, AnswerAfter(both.get(), " Then").tokens);
  const qkv_card* const some[] = {root.get(), right.get(), joined.get()};
  Bad(qkv_session_inject(reader.get(), some, 3, 0, QKV_INJECT_AUTO, nullptr, 0, &error_), QKV_MISMATCH,
      "give that card before it");
}

TEST_F(InjectApiTest, MessagesOfADeltaCardAreThoseOfItsTokens) {
  const qkv_message turns[] = {{"user", "The cat sleeps."}, {"assistant", "On the mill stone."}};
  const auto render = [&](size_t count) {
    char* text = nullptr;
    size_t text_bytes = 0;
    Good(qkv_chat_template(model_.get(), turns, count, false, &text, &text_bytes, &error_));
    const Handle<char> owned(text);
    return std::string(text, text_bytes);
  };
  const Handle<qkv_session> sender = ReadText(render(1));
  const Handle<qkv_card> first = OpenCard(Pack(sender.get(), 8));
  const Handle<qkv_session> session = FusedSession();
  Inject(session.get(), {first.get()}, QKV_INJECT_FUSED);
  const std::string rest = render(2).substr(render(1).size());
  Good(qkv_session_prefill_text(session.get(), rest.data(), rest.size(), nullptr, &error_));
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  options.messages = turns;
  options.message_count = 2;
  uint8_t* bytes = nullptr;
  size_t count = 0;
  Good(qkv_session_pack_memory(session.get(), &options, &bytes, &count, &error_));
  const Handle<uint8_t> owned(bytes);
  const Handle<qkv_card> delta = OpenCard({bytes, bytes + count});
  qkv_card_info info{};
  Good(qkv_card_get_info(delta.get(), &info, sizeof info, &error_));
  const std::string says = info.info_json;
  EXPECT_NE(says.find("assistant"), std::string::npos) << says;
  EXPECT_EQ(says.find("\"user\""), std::string::npos) << says;
  const qkv_card* const anchors[] = {first.get()};
  options.policy = "topology";
  options.anchor_cards = anchors;
  options.anchor_card_count = 1;
  Bad(qkv_session_pack_memory(session.get(), &options, &bytes, &count, &error_), QKV_UNSUPPORTED, "anchor_cards");
}

TEST_F(InjectApiTest, WrongListsAreRefusedAndChangeNothing) {
  const Handle<qkv_session> sender = ReadText();
  const Handle<qkv_card> card = OpenCard(Pack(sender.get(), 8));
  const Handle<qkv_session> session = FusedSession();
  const std::string text = "Cutting the ice";
  Good(qkv_session_prefill_text(session.get(), text.data(), text.size(), nullptr, &error_));
  const std::vector<int32_t> before = TokensOf(session.get());
  const qkv_card* const cards[] = {card.get(), nullptr};
  const auto inject = [&](size_t count, size_t tokens, qkv_inject mode) {
    return qkv_session_inject(session.get(), cards, count, tokens, mode, nullptr, 0, &error_);
  };
  Bad(inject(0, 0, QKV_INJECT_AUTO), QKV_INVALID_ARGUMENT, "there is no card");
  IsNull(inject(2, 0, QKV_INJECT_AUTO));
  Bad(inject(1, 1000, QKV_INJECT_AUTO), QKV_INVALID_ARGUMENT, "token_count");
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): what callers in C may pass
  Bad(inject(1, 0, static_cast<qkv_inject>(7)), QKV_INVALID_ARGUMENT, "mode");
  IsNull(qkv_session_inject(nullptr, cards, 1, 0, QKV_INJECT_AUTO, nullptr, 0, &error_));
  IsNull(qkv_session_inject(session.get(), nullptr, 1, 0, QKV_INJECT_AUTO, nullptr, 0, &error_));
  ASSERT_TRUE(WriteTinyModel(
                  [] {
                    TinyModelSpec spec;
                    spec.seed = 2;
                    return spec;
                  }(),
                  Path("other.gguf"))
                  .ok());
  const Handle<qkv_model> other = LoadModel("other.gguf");
  const Handle<qkv_session> elsewhere = MakeSession(other.get());
  Good(qkv_session_prefill_text(elsewhere.get(), text.data(), text.size(), nullptr, &error_));
  const Handle<qkv_card> foreign = OpenCard(Pack(elsewhere.get(), 8));
  const qkv_card* const foreigners[] = {foreign.get()};
  for (const qkv_inject mode : {QKV_INJECT_FUSED, QKV_INJECT_RESTORE}) {
    Bad(qkv_session_inject(session.get(), foreigners, 1, 0, mode, nullptr, 0, &error_), QKV_MISMATCH, "another model");
  }
  EXPECT_EQ(TokensOf(session.get()), before);
}

}  // namespace
}  // namespace qkvshare
