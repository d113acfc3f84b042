// The seam between a card and the text that follows it.
#include "runtime/prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class PromptTest : public SessionTest {
 protected:
  // A card of `head`, joined with `tail`, must have the whole text's tokens, and keep what both share.
  static void ExpectWholePrompt(const Model& model, const std::string& head, const std::string& tail) {
    const std::vector<int32_t> card = model.Tokenize(head, true);
    const std::vector<int32_t> whole = model.Tokenize(head + tail, true);
    const JoinedPrompt joined = JoinPrompt(model, card, tail);
    EXPECT_EQ(joined.tokens, whole) << head << "|" << tail;
    EXPECT_EQ(joined.seam, "joined");
    size_t common =
        static_cast<size_t>(std::mismatch(card.begin(), card.end(), whole.begin(), whole.end()).first - card.begin());
    if (common == whole.size()) --common;
    EXPECT_EQ(joined.cached, common);
  }
};

TEST_F(PromptTest, CutsInsideAWordAnEmojiAndCjkText) {
  TinyModelSpec spec;
  for (const bool add_bos : {false, true}) {
    spec.add_bos = add_bos;
    const auto model = LoadTiny(spec);
    const std::vector<std::pair<std::string, std::string>> cuts = {
        {"the cut", "ting of the string"},
        {"the c", "utting"},
        {"a th", "e"},
        {"the ", " end"},
        {"family \U0001F468\u200D", "\U0001F469\u200D\U0001F467 at home"},  // inside a joined emoji
        {"\U0001F44D", "\U0001F3FD good"},                                  // before a skin tone
        {"\u4F60\u597D", "\u4E16\u754C"},
        {"\u65E5\u672C", "\u8A9E\u3067"},
        {"line\n", "\nnext"},
        {"text", ""}};
    for (const auto& [head, tail] : cuts) ExpectWholePrompt(*model, head, tail);
  }
}

TEST_F(PromptTest, SpacesBeforePunctuationStay) {
  TinyModelSpec spec;
  spec.pre = "llama-bpe";  // llama.cpp's own detokenizer drops them for this one
  const auto model = LoadTiny(spec);
  ExpectWholePrompt(*model, "wait , what ? the c", "utting");
  ExpectWholePrompt(*model, "it 's . ", "done !");
}

TEST_F(PromptTest, ACardThatEndsInsideACharacterIsJoined) {
  const auto model = LoadTiny({});
  const std::string text = "hello \U0001F600 world";
  const std::vector<int32_t> whole = model->Tokenize(text, true);
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    // The first tokens of a longer prompt; the rest of its text follows.
    const std::vector<int32_t> card(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut));
    const std::string head = model->Detokenize(card);
    ASSERT_EQ(text.compare(0, head.size(), head), 0);
    const JoinedPrompt joined = JoinPrompt(*model, card, text.substr(head.size()));
    EXPECT_EQ(joined.tokens, whole) << cut;
    EXPECT_EQ(joined.cached, cut);
  }
}

TEST_F(PromptTest, TheResultEqualsTheWholePrompts) {
  const auto model = LoadTiny({});
  const std::string head = "the string of the c";
  const std::string tail = "utting in the end";
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), model->Tokenize(head, true));
  const Card card = PackCard(*sender, 16);
  const JoinedPrompt joined = JoinPrompt(*model, card.token_ids(), tail);
  ASSERT_LT(joined.cached, card.tokens());  // the cut word's tokens go
  const auto receiver = MakeSession(*model);
  ASSERT_TRUE(Restore(card, joined.cached, receiver.get()).ok());
  const auto rest = joined.tokens.begin() + static_cast<ptrdiff_t>(joined.cached);
  Prefill(receiver.get(), {rest, joined.tokens.end()});

  const auto plain = MakeSession(*model);
  Prefill(plain.get(), {joined.tokens.begin(), rest});
  Prefill(plain.get(), {rest, joined.tokens.end()});
  EXPECT_EQ(receiver->tokens(), model->Tokenize(head + tail, true));
  EXPECT_EQ(Logits(*receiver), Logits(*plain));
}

TEST_F(PromptTest, NoSecondBos) {
  TinyModelSpec spec;
  spec.add_bos = true;
  const auto model = LoadTiny(spec);
  const std::vector<int32_t> card = model->Tokenize("the string", true);
  const int32_t bos = card[0];
  EXPECT_EQ(std::count(card.begin(), card.end(), bos), 1);
  const JoinedPrompt joined = JoinPrompt(*model, card, " and more");
  EXPECT_EQ(joined.tokens[0], bos);
  EXPECT_EQ(std::count(joined.tokens.begin(), joined.tokens.end(), bos), 1);
  const std::vector<int32_t> written_out = model->Tokenize("<|endoftext|>the string", true);
  EXPECT_EQ(written_out, card);
}

TEST_F(PromptTest, APromptThatTheCardCoversKeepsOneTokenToDecode) {
  const std::vector<int32_t> card = {1, 2, 3, 4, 5};
  EXPECT_EQ(MatchPrompt(card, {1, 2, 3, 4, 5}).cached, 4u);     // empty suffix
  EXPECT_EQ(MatchPrompt(card, {1, 2, 3}).cached, 2u);           // shorter than the card
  EXPECT_EQ(MatchPrompt(card, {1, 2, 3, 4, 5, 6}).cached, 5u);  // longer
  EXPECT_EQ(MatchPrompt(card, {1, 2, 9, 4, 5, 6}).cached, 2u);  // differs
  EXPECT_EQ(MatchPrompt(card, {9, 2}).cached, 0u);
  EXPECT_EQ(MatchPrompt(card, {1}).cached, 0u);
  EXPECT_EQ(MatchPrompt({}, {1, 2}).cached, 0u);
}

TEST_F(PromptTest, GeneratedTokensThatNoTextGivesAreKept) {
  const auto model = LoadTiny({});
  std::vector<int32_t> card = model->Tokenize("some words", true);
  // " the" spelled letter by letter, as sampling may do.
  for (int i = 0; i < 12; ++i) {
    for (const char* letter : {" ", "t", "h", "e"}) {
      const std::vector<int32_t> token = model->Tokenize(letter, false);
      card.insert(card.end(), token.begin(), token.end());
    }
  }
  const JoinedPrompt joined = JoinPrompt(*model, card, " end");
  EXPECT_EQ(joined.seam, "appended");
  EXPECT_EQ(joined.cached, card.size());
  EXPECT_TRUE(std::equal(card.begin(), card.end(), joined.tokens.begin()));
}

TEST_F(PromptTest, NextUserTurnFollowsAConversation) {
  const auto model = LoadTiny({});
  const std::string turn = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(Take(NextUserTurn(*model, "Why?", "")), turn);
  EXPECT_EQ(Take(NextUserTurn(*model, "Why?", "so far")), "<|im_end|>\n" + turn);
  EXPECT_EQ(Take(NextUserTurn(*model, "Why?", "all<|im_end|>")), "\n" + turn);
  EXPECT_EQ(Take(NextUserTurn(*model, "Why?", "all<|im_end|>\n")), turn);
}

TEST_F(PromptTest, ModelsWithoutAUsableChatTemplateLoadAndRefuseToChat) {
  TinyModelSpec spec;
  spec.chat_template = "";
  EXPECT_EQ(LoadTiny(spec)->ApplyChatTemplate({{"user", "Hi"}}, true).status().code(), StatusCode::kUnsupported);
  spec.chat_template = "{% for message in messages %}";
  EXPECT_EQ(LoadTiny(spec)->ApplyChatTemplate({{"user", "Hi"}}, true).status().code(), StatusCode::kUnsupported);
}

TEST(Utf8Test, AcceptsTextAndNamesTheFirstWrongByte) {
  EXPECT_TRUE(CheckUtf8("").ok());
  EXPECT_TRUE(CheckUtf8("a\u00E9\u4F60\U0001F600").ok());
  for (const std::string wrong :
       {"abc\xF0\x9F\x98", "abc\xC0\xAF", "abc\xED\xA0\x80", "abc\xF5\x80\x80\x80", "abc\x80"}) {
    const Status status = CheckUtf8(wrong);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("byte 3;"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace qkvshare
