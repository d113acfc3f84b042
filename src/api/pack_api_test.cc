// Packing by the C API: what its options do and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "tests/api_fixture.h"

namespace qkvshare {
namespace {

const std::string kQuestion = "Who sleeps there, and where? And who is cutting the ice? ";

// A session that has read a conversation as a policy needs it, and ways to pack it.
class PackApiTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    char* text = nullptr;
    size_t bytes = 0;
    Good(qkv_chat_template(model_.get(), messages_.data(), messages_.size(), false, &text, &bytes, &error_));
    const Handle<char> owned(text);
    session_ = MakeSession();
    qkv_prefill_options prefill;
    qkv_prefill_options_default(&prefill, sizeof prefill);
    prefill.keep_attention = true;
    Good(qkv_session_prefill_text(session_.get(), text, bytes, &prefill, &error_));
  }
  void TearDown() override {
    session_.reset();
    ApiTest::TearDown();
  }

  qkv_pack_options Options(const char* policy) const {
    qkv_pack_options options;
    qkv_pack_options_default(&options, sizeof options);
    options.bits = 3;
    options.policy = policy;
    options.messages = messages_.data();
    options.message_count = messages_.size();
    return options;
  }
  Handle<qkv_card> PackWith(const qkv_pack_options& options) {
    uint8_t* bytes = nullptr;
    size_t count = 0;
    Good(qkv_session_pack_memory(session_.get(), &options, &bytes, &count, &error_));
    const Handle<uint8_t> owned(bytes);
    return OpenCard({bytes, bytes + count});
  }
  void Refused(const qkv_pack_options& options, const char* says, qkv_status status = QKV_INVALID_ARGUMENT) {
    uint8_t* bytes = nullptr;
    size_t count = 0;
    Bad(qkv_session_pack_memory(session_.get(), &options, &bytes, &count, &error_), status, says);
    EXPECT_EQ(bytes, nullptr);
  }
  static qkv_card_info InfoOf(const Handle<qkv_card>& card) {
    qkv_card_info info{};
    EXPECT_EQ(qkv_card_get_info(card.get(), &info, sizeof info, nullptr), QKV_OK);
    return info;
  }
  std::vector<uint8_t> KeyBits(const Handle<qkv_card>& card, size_t layer) {
    std::vector<uint8_t> bits(InfoOf(card).tokens);
    Good(qkv_card_get_token_bits(card.get(), layer, QKV_KEYS, bits.data(), bits.size(), &error_));
    return bits;
  }

  const std::array<qkv_message, 2> messages_ = {qkv_message{"system", kText.c_str()}, {"user", kQuestion.c_str()}};
  Handle<qkv_session> session_;
};

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
  qkv_prefill_options prefill;
  qkv_prefill_options_default(&prefill, sizeof prefill);
  prefill.keep_attention = false;
  Good(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), &prefill, &error_));
  EXPECT_EQ(pack(options), QKV_INVALID_ARGUMENT);  // nothing was kept
  options.rounding = "queries";
  options.policy = "uniform";
  Bad(pack(options), QKV_INVALID_ARGUMENT, "nearest");
  options.rounding = "up";
  Bad(pack(options), QKV_INVALID_ARGUMENT, "rounding 'up'");
  options.rounding = nullptr;
  options.policy = "local";
  prefill.keep_attention = true;
  Good(qkv_session_prefill_text(session.get(), kText.data(), kText.size(), &prefill, &error_));
  Good(pack(options));
  qkv_free(bytes);
  options.max_bytes = 10;
  Bad(pack(options), QKV_OUT_OF_RANGE, "available");
  Bad(qkv_session_pack_file(session.get(), nullptr, Path("none/x.card").c_str(), &error_), QKV_NOT_FOUND, "none");
  std::ofstream(Path("notes.txt")) << "mine";
  Bad(qkv_session_pack_file(session.get(), nullptr, Path("notes.txt").c_str(), &error_), QKV_INVALID_ARGUMENT,
      "is not a card");
  EXPECT_EQ(std::filesystem::file_size(Path("notes.txt")), 4u);
  for (int i = 0; i < 2; ++i) Good(qkv_session_pack_file(session.get(), nullptr, Path("twice.card").c_str(), &error_));
  const auto empty = MakeSession();
  Bad(qkv_session_pack_file(empty.get(), nullptr, Path("x.card").c_str(), &error_), QKV_INVALID_ARGUMENT, "empty");
}

TEST_F(ApiTest, QueriesAreKeptThroughGenerationAndFurtherText) {
  const auto session = ReadText();
  qkv_generate_options generate;
  qkv_generate_options_default(&generate, sizeof generate);
  generate.predict = 4;
  qkv_generation generation{};
  Good(qkv_session_generate(session.get(), &generate, &generation, sizeof generation, &error_));
  qkv_free(generation.text);
  qkv_free(generation.tokens);
  Good(qkv_session_prefill_text(session.get(), " And then", 9, nullptr, &error_));
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  options.rounding = "queries";
  options.policy = "local";
  options.bits = 3;
  uint8_t* bytes = nullptr;
  size_t count = 0;
  Good(qkv_session_pack_memory(session.get(), &options, &bytes, &count, &error_));
  qkv_free(bytes);
}

TEST_F(PackApiTest, ControlsHaveTheLevelsOfTheirPolicy) {
  const auto local = PackWith(Options("local"));
  EXPECT_STREQ(InfoOf(local).policy, "local");
  std::vector<uint8_t> wanted = KeyBits(local, 0);
  qkv_pack_options random = Options("random");
  random.control_of = "local";
  random.seed = 7;
  for (const qkv_pack_options& options : {random, Options("inverted")}) {
    const auto control = PackWith(options);
    EXPECT_EQ(InfoOf(control).code_bits, InfoOf(local).code_bits);
    EXPECT_NE(std::string(InfoOf(control).policy).find("of local"), std::string::npos) << InfoOf(control).policy;
    std::vector<uint8_t> bits = KeyBits(control, 0);
    EXPECT_NE(bits, wanted);
    EXPECT_TRUE(std::is_permutation(bits.begin(), bits.end(), wanted.begin(), wanted.end()));
  }
  qkv_pack_options other = random;
  other.seed = 8;
  EXPECT_NE(KeyBits(PackWith(other), 0), KeyBits(PackWith(random), 0));
}

TEST_F(PackApiTest, TopologyCountsReadersAndAnchors) {
  const auto earlier = PackWith(Options("local"));
  qkv_pack_options options = Options("topology");
  Refused(options, "knows nothing of the receivers");
  const std::array<qkv_reader, 2> readers = {qkv_reader{"B", 1, "user"}, {"C", 3, "system"}};
  const std::array<const qkv_card*, 1> cards = {earlier.get()};
  options.readers = readers.data();
  options.reader_count = readers.size();
  options.anchor_cards = cards.data();
  options.anchor_card_count = cards.size();
  options.alpha = 0.25;
  const auto card = PackWith(options);
  EXPECT_STREQ(InfoOf(card).policy, "topology, alpha 0.25");
  const std::string json = InfoOf(card).info_json;
  for (const char* part : {"\"features\":[\"attention\",\"prior\",\"anchors\"]", "{\"agent\":\"B\",\"distance\":1}",
                           "{\"agent\":\"C\",\"distance\":3}"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " is not in " << json;
  }
  options.features = "default,-anchors";
  EXPECT_NE(KeyBits(PackWith(options), 0), KeyBits(card, 0));
  options.policy = "random";
  options.control_of = "topology";
  EXPECT_STREQ(InfoOf(PackWith(options)).policy, "random of topology, alpha 0.25, seed 1");
}

TEST_F(PackApiTest, ReadersAreKeptByEveryPolicy) {
  qkv_pack_options options = Options("uniform");
  options.messages = nullptr;
  options.message_count = 0;
  const qkv_reader reader = {"next", 2, nullptr};
  options.readers = &reader;
  options.reader_count = 1;
  const std::string json = InfoOf(PackWith(options)).info_json;
  EXPECT_NE(json.find("{\"agent\":\"next\",\"distance\":2}"), std::string::npos) << json;
}

TEST_F(PackApiTest, LevelsLayersAndLastTokens) {
  qkv_pack_options options = Options("local");
  options.bits = 4.5;
  options.levels = "K8V4,K4V4";
  options.layer_bits = "1:k=-1";
  options.protect_last = 9;
  const auto card = PackWith(options);
  const std::vector<uint8_t> first = KeyBits(card, 0);
  const std::vector<uint8_t> second = KeyBits(card, 1);
  const size_t tokens = first.size();
  for (size_t t = 4; t + 9 < tokens; ++t) {
    EXPECT_TRUE(first[t] == 4 || first[t] == 8) << t;
    EXPECT_EQ(second[t], first[t] / 2) << t;
  }
  EXPECT_EQ(std::count(first.end() - 9, first.end(), 16), 9);
  EXPECT_EQ(std::count(second.end() - 9, second.end(), 16), 9);
}

TEST_F(PackApiTest, WhatCannotBeIsRefusedByName) {
  const auto earlier = PackWith(Options("local"));
  const qkv_card* const card = earlier.get();
  const auto refused = [&](const char* policy, const std::function<void(qkv_pack_options*)>& spoil, const char* says,
                           qkv_status status = QKV_INVALID_ARGUMENT) {
    qkv_pack_options options = Options(policy);
    spoil(&options);
    Refused(options, says, status);
  };
  refused("local", [](auto* o) { o->levels = "K4V4,K3V3"; }, "unknown level 'K3V3'");
  refused("local", [](auto* o) { o->layer_bits = "2:k=1"; }, "layers 0 to 1");
  refused("local", [](auto* o) { o->layer_bits = "0:k=1,k=2"; }, "each side of a layer once");
  refused("local", [](auto* o) { o->layer_bits = "0-1:v=1;1:k=1,v=1"; }, "'1:k=1,v=1'");
  refused("local", [](auto* o) { o->messages = nullptr; }, "messages is NULL");
  refused("local", [](auto* o) { o->features = "mood"; }, "unknown feature 'mood'");
  refused("local", [](auto* o) { o->features = nullptr; }, "features is NULL");
  refused("local", [](auto* o) { o->features = "full"; }, "next_entropy", QKV_UNSUPPORTED);
  refused("local", [](auto* o) { o->control_of = "local"; }, "control_of counts");
  refused("inverted", [](auto* o) { o->control_of = "uniform"; }, "no control of uniform");
  refused("inverted", [](auto* o) { o->seed = 2; }, "seed counts");
  refused("local", [](auto* o) { o->alpha = 0.4; }, "alpha counts");
  refused("topology", [](auto* o) { o->alpha = NAN; }, "alpha");
  const auto give_card = [&](qkv_pack_options* o) {
    o->anchor_cards = &card;
    o->anchor_card_count = 1;
  };
  refused("local", give_card, "anchor_cards counts");
  refused("inverted", give_card, "anchor_cards counts");
  refused("topology", [](auto* o) { o->anchor_card_count = 1; }, "anchor_cards is NULL");
  refused("topology", [](auto* o) { o->reader_count = 1; }, "readers is NULL");
  const qkv_card* const none = nullptr;
  refused(
      "topology",
      [&](auto* o) {
        o->anchor_cards = &none;
        o->anchor_card_count = 1;
      },
      "a card of anchor_cards is NULL");
  const auto without = OpenCard(Pack(ReadText().get(), 4));
  const qkv_card* const no_anchors = without.get();
  refused(
      "topology",
      [&](auto* o) {
        o->anchor_cards = &no_anchors;
        o->anchor_card_count = 1;
      },
      "anchor_cards[0] has no anchors");
  for (const auto& [reader, says] : {std::pair{qkv_reader{nullptr, 1, nullptr}, "agent of a reader is NULL"},
                                     {qkv_reader{"B", 0, nullptr}, "distance of 1 or more"},
                                     {qkv_reader{"B", 1, "tool"}, "no segment of role 'tool'"},
                                     {qkv_reader{"\xff", 1, nullptr}, "UTF-8"}}) {
    const qkv_reader given = reader;
    refused(
        "uniform",
        [&](auto* o) {
          o->readers = &given;
          o->reader_count = 1;
        },
        says);
  }
}

TEST_F(PackApiTest, CallersOfAnEarlierVersionGetTheDefaults) {
  qkv_pack_options options = Options("local");
  const auto wanted = PackWith(options);
  options.struct_size = offsetof(qkv_pack_options, levels);
  options.features = nullptr;  // not the caller's
  options.alpha = NAN;
  EXPECT_EQ(KeyBits(PackWith(options), 0), KeyBits(wanted, 0));
}

}  // namespace
}  // namespace qkvshare
