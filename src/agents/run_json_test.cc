#include "agents/run_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

using nlohmann::json;

TurnRecord Sample() {
  TurnRecord record;
  record.turn = "critic.2";
  record.agent = "critic";
  record.outcome = Outcome::kLimit;
  record.prompt = "Say \"what\"\n\tis wrong \\ \x01 <b>, é 漢 😀";
  record.text = std::string("nul \0 within", 12);
  record.mode = "fused";
  record.reason = "";
  record.taken = {{"reader.card", "00ff", 1900}, {"writer.1.card", "12ab", 40}};
  record.gives = {{"critic.2.card", "34cd", 50}};
  record.card = {"critic.2.card", "34cd", 50};
  record.taken_tokens = 1940;
  record.read_tokens = 20;
  record.generated_tokens = UINT32_MAX;
  record.taken_bytes = UINT64_MAX;
  record.card_bytes = 123'456;
  record.code_bits = 4.0625000001;
  record.note = "without probe";
  record.policy = "topology, alpha 0.5";
  record.features = {"anchors", "prior"};
  record.stages = {{"open", 0}, {"attach", 412}, {"open", 999'999'999'999}};
  record.ttft_us = 123'456'789'012;
  record.worker = true;
  record.resumed = true;
  return record;
}

// The sample, changed.
Result<TurnRecord> Read(const std::function<void(json&)>& change) {
  json object = json::parse(TurnRecordToJson(Sample()));
  change(object);
  return TurnRecordFromJson(object.dump());
}

TEST(RunJsonTest, TurnsComeBackAsTheyWere) {
  for (const TurnRecord& record : {Sample(), TurnRecord()}) {
    const std::string text = TurnRecordToJson(record);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const Result<TurnRecord> read = TurnRecordFromJson(text);
    ASSERT_TRUE(read) << read.status().message();
    EXPECT_EQ(*read, record);
  }
  for (const Outcome outcome : {Outcome::kStopped, Outcome::kLimit, Outcome::kFull, Outcome::kEmpty, Outcome::kRead}) {
    TurnRecord record;
    record.outcome = outcome;
    EXPECT_EQ(TurnRecordFromJson(TurnRecordToJson(record)).value().outcome, outcome);
  }
}

TEST(RunJsonTest, WhatIsNoUtf8IsReplacedOnce) {
  TurnRecord record = Sample();
  record.text = "caf\xC3";                      // cut within a character
  record.prompt = "\xFF\xC0\x80 \xED\xA0\x80";  // never valid: overlong, half of a pair
  const Result<TurnRecord> read = TurnRecordFromJson(TurnRecordToJson(record));
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(read->text, "caf\uFFFD");
  EXPECT_NE(read->prompt, record.prompt);
  EXPECT_EQ(TurnRecordFromJson(TurnRecordToJson(*read)).value(), *read);
}

TEST(RunJsonTest, EachFieldIsNeededAndHasItsType) {
  const json sample = json::parse(TurnRecordToJson(Sample()));
  EXPECT_EQ(sample.size(), 23U);
  for (const auto& [key, value] : sample.items()) {
    const auto expect_error = [&, name = key](const Result<TurnRecord>& read) {
      ASSERT_FALSE(read) << name;
      EXPECT_EQ(read.status().code(), StatusCode::kCorrupt);
      EXPECT_NE(read.status().message().find("'" + name + "'"), std::string::npos) << read.status().message();
    };
    expect_error(Read([&, name = key](json& object) { object.erase(name); }));
    for (const json& wrong : {json(nullptr), json(-1), json(1.5), json("text"), json::array({1}), json::object()}) {
      const bool is_right = wrong.type() == value.type() || (wrong.is_number() && key == "code_bits");
      if (is_right && wrong != json(-1) && wrong != json::array({1}) && key != "card" && key != "outcome") continue;
      if (key == "card" && wrong.is_object()) continue;  // below
      SCOPED_TRACE(key + " " + wrong.dump());
      expect_error(Read([&, name = key](json& object) { object[name] = wrong; }));
    }
  }
}

TEST(RunJsonTest, PartsOfFieldsAreCheckedToo) {
  const auto error = [](const std::function<void(json&)>& change) {
    const Result<TurnRecord> read = Read(change);
    return read ? "none" : read.status().message();
  };
  EXPECT_EQ(error([](json& o) { o["card"].erase("id"); }), "card has no 'id' that is text");
  EXPECT_EQ(error([](json& o) { o["taken"][1]["tokens"] = -5; }),
            "an entry of 'taken' has no 'tokens' that is a whole number");
  EXPECT_EQ(error([](json& o) { o["gives"][0] = 3; }), "an entry of 'gives' is not an object");
  EXPECT_EQ(error([](json& o) { o["features"][1] = 3; }),
            "the record of a turn has an entry of 'features' that is not text");
  EXPECT_EQ(error([](json& o) { o["stages"][0] = {"open", 3}; }), "an entry of 'stages' is not an object");
  EXPECT_EQ(error([](json& o) { o["stages"][0]["us"] = "3"; }),
            "an entry of 'stages' has no 'us' that is a whole number");
  EXPECT_EQ(error([](json& o) { o["outcome"] = "READ"; }), "the record of a turn has no known 'outcome'");
  EXPECT_EQ(error([](json& o) { o["more"] = {{"deep", {1, 2}}}; }), "none");
}

TEST(RunJsonTest, NumbersAreInRange) {
  const auto error = [](const char* key, const json& value) {
    const Result<TurnRecord> read = Read([&](json& object) { object[key] = value; });
    return read ? "none" : read.status().message();
  };
  EXPECT_EQ(error("read_tokens", UINT32_MAX), "none");
  EXPECT_EQ(error("read_tokens", uint64_t{1} << 32),
            "the record of a turn has a 'read_tokens' of more than 4294967295");
  EXPECT_EQ(error("ttft_us", uint64_t{1} << 63), "the record of a turn has a 'ttft_us' of more than 1000000000000");
  EXPECT_EQ(error("code_bits", 16), "none");
  EXPECT_EQ(error("code_bits", 16.5), "the record of a turn has a 'code_bits' that is not from 0 to 16");
  EXPECT_EQ(error("code_bits", -0.5), "the record of a turn has a 'code_bits' that is not from 0 to 16");
  TurnRecord record;
  record.code_bits = std::numeric_limits<double>::quiet_NaN();  // JSON has no such number
  EXPECT_EQ(TurnRecordFromJson(TurnRecordToJson(record)).status().message(),
            "the record of a turn has no 'code_bits' that is a number");
}

TEST(RunJsonTest, WhatIsNoRecordIsRefused) {
  const std::string good = TurnRecordToJson(Sample());
  std::vector<std::string> texts = {"",
                                    "{",
                                    "null",
                                    "[]",
                                    "3",
                                    "\"text\"",
                                    good + "}",
                                    good + good,
                                    good + '\0' + "x",
                                    std::string(1'000'000, '['),
                                    good.substr(0, good.size() / 2)};
  std::string deep = "{\"turn\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  texts.push_back(deep);
  std::string not_utf8 = good;
  not_utf8.replace(not_utf8.find("critic.2"), 2, "\xFF\xFF");
  texts.push_back(not_utf8);
  for (const std::string& text : texts) {
    const Result<TurnRecord> read = TurnRecordFromJson(text);
    ASSERT_FALSE(read) << text.substr(0, 50);
    EXPECT_EQ(read.status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(read.status().message().find("the record of a turn "), 0U);
  }
}

TEST(RunJsonTest, RunsHaveTotalsAndWhatPrefillWouldHaveTaken) {
  RunRecord run;
  run.topology = "t.yaml";
  run.model = "m \xFF";
  run.folder = "t.run";
  run.turns.resize(2);
  run.turns[0].turn = "a";
  run.turns[0].read_tokens = 100;
  run.turns[0].card_bytes = 5000;
  run.turns[0].ttft_us = 7;
  run.turns[1].turn = "b";
  run.turns[1].taken_tokens = 100;
  run.turns[1].taken_bytes = 5000;
  run.turns[1].read_tokens = 10;
  run.turns[1].generated_tokens = 3;
  run.turns[1].card_bytes = 700;
  run.turns[1].ttft_us = 8;
  run.prefill_us_per_token = 2.5;
  run.total_us = 99;
  const std::string text = RunRecordToJson(run);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const json object = json::parse(text);
  EXPECT_EQ(object["topology"], "t.yaml");
  EXPECT_EQ(object["model"], "m \uFFFD");
  EXPECT_EQ(object["folder"], "t.run");
  EXPECT_EQ(object["prefill_us_per_token"], 2.5);
  EXPECT_EQ(object["total_us"], 99);
  EXPECT_EQ(object["totals"], json::parse(R"({"taken_tokens": 100, "read_tokens": 110, "generated_tokens": 3,
      "taken_bytes": 5000, "card_bytes": 5700, "ttft_us": 15, "reprefill_us": 250})"));
  ASSERT_EQ(object["turns"].size(), 2U);
  EXPECT_EQ(object["turns"][0]["reprefill_us"], 0);
  EXPECT_EQ(object["turns"][1]["reprefill_us"], 250);
  for (size_t i = 0; i < 2; ++i) {  // a turn of the run is a record of a turn
    EXPECT_EQ(TurnRecordFromJson(object["turns"][i].dump()).value(), run.turns[i]);
  }
}

}  // namespace
}  // namespace qkvshare
