#include "eval/hop_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "card/card_chain.h"
#include "eval/hop_header.h"
#include "runtime/model_store.h"
#include "runtime/prompt.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class HopRunnerTest : public SessionTest {
 protected:
  void SetUp() override {
    real_model_ = ResolveModel("smollm2-135m");  // before the cache folder is another
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
  }

  static HopRequest Request(size_t chains, size_t hops) {
    HopRequest request;
    for (size_t i = 0; i < chains; ++i) {
      HopChain& chain = request.chains.emplace_back();
      chain.id = "chain-" + std::to_string(i);
      if (i % 2 == 0) {
        chain.messages = {{"system", "You count."}, {"user", "The cat has " + std::to_string(i) + " legs."}};
      } else {
        chain.tokens = SomeTokens(40 + i);
      }
      for (size_t hop = 1; hop < hops; ++hop) chain.turns.push_back("And " + std::to_string(hop + i) + "?");
    }
    request.hops = hops;
    request.context = 400;
    request.generate.predict = 12;
    request.generate.sampling.temp = 0;
    request.session = SmallOptions();
    return request;
  }
  Result<std::vector<HopRecord>> Run(const HopRequest& request) {
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeHopSession(*model_, request));
    return RunHops(session.get(), request);
  }
  // But for the times.
  static std::vector<HopRecord> Timeless(std::vector<HopRecord> records) {
    for (HopRecord& record : records) record.stages.clear();
    return records;
  }
  static std::string LineOf(const HopRecord& record) {
    return HopJson(record).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  std::vector<std::string> Lines(const std::string& name) const {
    std::ifstream file(Path(name));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::ordered_json::parse(line);
      if (json.contains("produced_by")) continue;
      json.erase("stages_us");
      lines.push_back(json.dump());
    }
    return lines;
  }
  std::string Text(const std::string& name) const { return Take(ReadText(Path(name), 1 << 20)); }
  void WriteText(const std::string& name, const std::string& text) const { std::ofstream(Path(name)) << text; }
  void CheckFiveHops();

  Result<std::string> real_model_ = Status(StatusCode::kNotFound, "");
  std::unique_ptr<Model> model_;
};

// The conversation of one chain, prefilled as text in the pieces in which the run decoded it: each prompt but for its
// last token, that, and each token that was generated.
class Replay {
 public:
  // anew: for each hop from its first token on; else it goes on.
  Replay(const Model& model, SessionOptions options, const HopChain& chain, bool anew = true)
      : model_(model), session_(Take(Session::Create(model, options))), chain_(chain), anew_(anew) {}

  // Compares the answer of this hop with what the model says here. tolerance: how much less likely (logits) than the
  // most likely token the one that was taken may be, since attention over a card is rounded in another way.
  void Check(const HopRecord& record, float tolerance) {
    SCOPED_TRACE(record.chain + " hop " + std::to_string(record.hop));
    std::vector<int32_t> prompt = PromptOf(record.hop);
    ASSERT_EQ(record.read_tokens, prompt.size());
    if (anew_) {
      session_->Clear();
      for (const std::vector<int32_t>& piece : pieces_) Feed(piece);
    }
    EXPECT_EQ(record.taken_tokens, session_->tokens().size());
    FeedAndKeep({prompt.begin(), prompt.end() - 1});
    FeedAndKeep({prompt.back()});
    said_ = prompt;
    std::vector<int32_t> sampled = record.tokens;
    if (record.end_token >= 0) sampled.push_back(record.end_token);
    for (const int32_t token : sampled) {
      const std::span logits(session_->logits(), static_cast<size_t>(model_.vocab_size()));
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      ++compared_;
      if (best == token) ++same_;
      EXPECT_GE(logits[static_cast<size_t>(token)], logits[static_cast<size_t>(best)] - tolerance);
      FeedAndKeep({token});
      said_.push_back(token);
    }
  }
  size_t compared() const { return compared_; }
  size_t same() const { return same_; }

 private:
  std::vector<int32_t> PromptOf(size_t hop) const {
    if (hop > 0) {
      const std::string turn = Take(NextUserTurn(model_, chain_.turns[hop - 1], model_.Detokenize(said_)));
      return model_.Tokenize(turn, /*add_special=*/false);
    }
    if (!chain_.tokens.empty()) return chain_.tokens;
    return model_.Tokenize(Take(model_.ApplyChatTemplate(chain_.messages, true)), /*add_special=*/true);
  }
  void Feed(const std::vector<int32_t>& piece) { ASSERT_TRUE(session_->Prefill(piece, {}).ok()); }
  void FeedAndKeep(const std::vector<int32_t>& piece) {
    Feed(piece);
    pieces_.push_back(piece);
  }

  const Model& model_;
  std::unique_ptr<Session> session_;
  const HopChain& chain_;
  const bool anew_;
  std::vector<std::vector<int32_t>> pieces_;
  std::vector<int32_t> said_;  // prompt and answer of the last hop
  size_t compared_ = 0, same_ = 0;
};

// Logits of tiny models have a standard deviation of 3.
constexpr float kNear = 0.05f;

void HopRunnerTest::CheckFiveHops() {
  HopRequest request = Request(4, 5);
  for (const int parallel : {1, 3}) {
    for (const HandOver hand_over : {HandOver::kCards, HandOver::kSequence}) {
      request.parallel = parallel;
      request.hand_over = hand_over;
      const bool cards = hand_over == HandOver::kCards;
      request.packs[0].code_bits = 16;
      const std::vector<HopRecord> records = Take(Run(request));
      ASSERT_EQ(records.size(), 4u * 5u);
      size_t compared = 0, same = 0;
      for (size_t i = 0; i < request.chains.size(); ++i) {
        Replay replay(*model_, SmallOptions(), request.chains[i]);
        for (size_t hop = 0; hop < 5; ++hop) {
          const HopRecord& record = records[i * 5 + hop];
          ASSERT_EQ(record.chain, request.chains[i].id);
          ASSERT_EQ(record.hop, hop);
          replay.Check(record, kNear);
          EXPECT_EQ(record.card_bytes > 0, cards && hop < 4);
        }
        compared += replay.compared();
        same += replay.same();
      }
      EXPECT_GT(compared, 100u);
      // One at a time the calls are the same, so that only attention over cards is rounded differently.
      if (parallel == 1 && !cards) {
        EXPECT_EQ(same, compared);
      }
      EXPECT_GE(same * 100, compared * 97);
    }
  }
}

TEST_F(HopRunnerTest, FiveHopsGiveWhatTheSameConversationGivesAsText) { CheckFiveHops(); }

TEST_F(HopRunnerTest, FiveHopsThroughASlidingWindowToo) {
  TinyModelSpec spec;
  spec.architecture = "gemma3";
  spec.sliding_window = 24;
  spec.half_matrices = false;
  model_ = LoadTiny(spec, "window.gguf");
  CheckFiveHops();
}

TEST_F(HopRunnerTest, AsTextTheConversationIsReadAgainInEachHop) {
  HopRequest request = Request(3, 3);
  request.hand_over = HandOver::kText;
  request.parallel = 2;
  EXPECT_NE(RunHops(Take(MakeHopSession(*model_, request)).get(), request).status().message().find("needs messages"),
            std::string::npos);
  request.chains.erase(request.chains.begin() + 1);
  const std::vector<HopRecord> records = Take(Run(request));
  for (size_t i = 0; i < request.chains.size(); ++i) {
    std::vector<ChatMessage> messages = request.chains[i].messages;
    for (size_t hop = 0; hop < 3; ++hop) {
      const HopRecord& record = records[i * 3 + hop];
      const std::string text = Take(model_->ApplyChatTemplate(messages, /*add_generation_prompt=*/true));
      EXPECT_EQ(record.read_tokens, model_->Tokenize(text, /*add_special=*/true).size());
      EXPECT_EQ(record.taken_tokens, 0u);
      EXPECT_EQ(record.card_bytes, 0u);
      EXPECT_FALSE(record.tokens.empty());
      if (hop == 2) continue;
      // What a file would have: bytes that are no character are replaced.
      const std::string said = nlohmann::json::parse(LineOf(record)).at("text");
      messages.push_back({"assistant", said});
      messages.push_back({"user", request.chains[i].turns[hop]});
    }
  }
}

TEST_F(HopRunnerTest, RepackedCardsHoldAllThatCameBefore) {
  HopRequest request = Request(3, 4);
  request.parallel = 2;
  request.hand_over = HandOver::kSequence;
  const std::vector<HopRecord> sequence = Timeless(Take(Run(request)));
  // At 16 bits nothing is rounded: the tokens are those of the sequence that goes on.
  request.hand_over = HandOver::kRepacked;
  request.packs[0].code_bits = 16;
  request.card_folder = Path("cards");
  const std::vector<HopRecord> exact = Take(Run(request));
  ASSERT_EQ(exact.size(), sequence.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(exact[i].tokens, sequence[i].tokens) << i;
    EXPECT_EQ(exact[i].taken_tokens, sequence[i].taken_tokens) << i;
    if (exact[i].hop == 3) continue;
    const Card card = Take(Card::Open(request.CardPath(exact[i].chain, exact[i].hop)));
    EXPECT_EQ(card.first_token(), 0u);
    EXPECT_EQ(card.tokens(), exact[i + 1].taken_tokens);
    EXPECT_EQ(exact[i].card_tokens, card.tokens());
    EXPECT_EQ(exact[i].total_bits, card.average_total_bits());
  }
  // A run that goes on finds them.
  request.results = Path("r.jsonl");
  Take(Run(request));
  EXPECT_TRUE(Run(request).has_value());
  // Packed again and again at few bits, they are not what they were.
  request.results.clear();
  request.packs[0].code_bits = 2;
  const std::vector<HopRecord> rough = Take(Run(request));
  EXPECT_FALSE(std::equal(rough.begin(), rough.end(), exact.begin(),
                          [](const HopRecord& a, const HopRecord& b) { return a.tokens == b.tokens; }));
}

TEST_F(HopRunnerTest, AProbeTellsThePolicyOfTheNextTurn) {
  HopRequest request = Request(4, 3);
  request.parallel = 2;
  request.card_folder = Path("cards");
  request.packs[0].policy = Policy::kTopology;
  request.packs[0].code_bits = 3;
  const std::vector<HopRecord> without = Take(Run(request));
  request.probe = true;
  const std::vector<HopRecord> with = Take(Run(request));
  bool differs = false;
  for (size_t i = 0; i < with.size(); ++i) {
    const auto probed = [](const HopRecord& record) {
      return std::any_of(record.stages.begin(), record.stages.end(),
                         [](const auto& stage) { return stage.first == "probe"; });
    };
    EXPECT_EQ(probed(with[i]), with[i].hop < 2);
    EXPECT_FALSE(probed(without[i]));
    differs = differs || with[i].tokens != without[i].tokens;
    if (with[i].hop == 2) continue;
    const Card card = Take(Card::Open(request.CardPath(with[i].chain, with[i].hop)));
    EXPECT_NE(card.info().policy.find("topology"), std::string::npos);
    const std::vector<std::string>& features = card.info().features;
    EXPECT_NE(std::find(features.begin(), features.end(), "probe"), features.end());
  }
  EXPECT_TRUE(differs);
  // The groups do not touch each other: the second gives what it gives alone.
  HopRequest second = request;
  second.chains.erase(second.chains.begin(), second.chains.begin() + 2);
  const std::vector<HopRecord> alone = Take(Run(second));
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].tokens, with[6 + i].tokens);
}

TEST_F(HopRunnerTest, LinesSayWhatTheyAreWorth) {
  HopRequest request = Request(2, 2);
  request.results = Path("r.jsonl");
  request.add_to_header = [](nlohmann::ordered_json* header) { (*header)["task"] = "legs"; };
  request.add_to_line = [](const HopRecord& record, nlohmann::ordered_json* line) {
    (*line)["length"] = record.text.size();
  };
  const std::vector<HopRecord> records = Take(Run(request));
  const std::vector<std::string> lines = Lines("r.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(nlohmann::json::parse(lines[0]).at("task"), "legs");
  for (size_t i = 0; i < records.size(); ++i)
    EXPECT_EQ(nlohmann::json::parse(lines[i + 1]).at("length"), records[i].text.size());
  EXPECT_EQ(Take(Run(request)).size(), records.size());
  request.add_to_header = [](nlohmann::ordered_json* header) { (*header)["task"] = "arms"; };
  EXPECT_NE(Run(request).status().message().find("\"task\" differs"), std::string::npos);
}

TEST_F(HopRunnerTest, OnARealModelToo) {
  if (!real_model_) GTEST_SKIP() << real_model_.status().message();
  model_ = Take(Model::Load(*real_model_, {}));
  HopRequest request = Request(2, 5);
  for (HopChain& chain : request.chains) {
    chain.tokens.clear();
    chain.messages = {{"user", "A mill has three wheels, and each has " + std::to_string(chain.turns[0].size()) +
                                   " blades. How many blades are there?"}};
    chain.turns = {"Are you sure?", "And with one wheel less?", "What is a mill for?", "Say it in one word."};
  }
  request.packs[0].code_bits = 16;
  request.generate.predict = 16;
  request.parallel = 2;
  const std::vector<HopRecord> records = Take(Run(request));
  for (size_t i = 0; i < request.chains.size(); ++i) {
    Replay replay(*model_, request.session, request.chains[i], /*anew=*/false);
    for (size_t hop = 0; hop < 5; ++hop) replay.Check(records[i * 5 + hop], 0.15f);
    EXPECT_GT(replay.compared(), 40u);
    EXPECT_GE(replay.same() * 100, replay.compared() * 95);
  }
}

TEST_F(HopRunnerTest, ARunThatGoesOnGivesWhatItWouldHaveGivenAtOnce) {
  HopRequest request = Request(7, 3);
  request.parallel = 2;
  request.generate.sampling.temp = 0.7f;
  request.generate.sampling.seed = 5;
  request.packs[0].code_bits = 4;
  request.results = Path("whole.jsonl");
  const std::vector<HopRecord> whole = Take(Run(request));
  request.results = Path("parts.jsonl");
  const std::unique_ptr<Session> session = Take(MakeHopSession(*model_, request));
  request.on_hop = [&](size_t chains, size_t hop) {
    if (chains == 4 && hop == 1) session->Cancel();
  };
  EXPECT_EQ(RunHops(session.get(), request).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Lines("parts.jsonl").size(), 1u + 4 * 3);
  // Stopped while it was writing a group, in the middle of a line.
  WriteText("parts.jsonl", Text("parts.jsonl") + LineOf(whole[12]) + "\n" + LineOf(whole[13]).substr(0, 20));
  std::vector<size_t> groups;
  request.on_hop = [&](size_t chains, size_t hop) {
    if (hop == 0) groups.push_back(chains);
  };
  const std::vector<HopRecord> rest = Take(Run(request));
  EXPECT_EQ(groups, (std::vector<size_t>{4, 6}));
  EXPECT_EQ(Lines("parts.jsonl"), Lines("whole.jsonl"));
  EXPECT_EQ(Timeless(rest).size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(LineOf(Timeless(rest)[i]), LineOf(Timeless(whole)[i]));
  // Another time there is nothing left to do, and nothing changes.
  groups.clear();
  const std::string before = Text("parts.jsonl");
  EXPECT_EQ(Take(Run(request)).size(), whole.size());
  EXPECT_TRUE(groups.empty());
  EXPECT_EQ(Text("parts.jsonl"), before);
}

TEST_F(HopRunnerTest, ResultsOfSomethingElseAreRefusedAndStay) {
  HopRequest request = Request(3, 2);
  request.results = Path("r.jsonl");
  Take(Run(request));
  const std::string whole = Text("r.jsonl");
  const auto expect_refused = [&](const HopRequest& changed, StatusCode code, const std::string& part) {
    const std::string before = Text("r.jsonl");
    const Status status = Run(changed).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("remove it"), std::string::npos) << status.message();
    EXPECT_EQ(Text("r.jsonl"), before);
  };
  HopRequest other = request;
  other.chains[1].turns[0] += "!";
  expect_refused(other, StatusCode::kInvalidArgument, "\"input\" differs");
  other = request;
  other.packs[0].code_bits = 5;
  expect_refused(other, StatusCode::kInvalidArgument, "\"packs\" differs");
  other = request;
  other.hand_over = HandOver::kSequence;
  expect_refused(other, StatusCode::kInvalidArgument, "differs");
  // A line that is no record.
  const size_t text = whole.find("\"stop\"", whole.find("\"chain\":"));
  WriteText("r.jsonl", whole.substr(0, text) + "\"stoq\"" + whole.substr(text + 6));
  expect_refused(request, StatusCode::kCorrupt, "line 3 is damaged");
}

TEST_F(HopRunnerTest, ARunThatGoesOnKeepsTheCardsOfAllThatIsDone) {
  HopRequest request = Request(2, 3);
  request.chains[0].messages.clear();
  request.chains[0].tokens = SomeTokens(40);
  request.results = Path("r.jsonl");
  Take(Run(request));
  // All of the first chain, and nothing of the second.
  const std::string whole = Text("r.jsonl");
  size_t end = 0;
  for (int line = 0; line < 5; ++line) end = whole.find('\n', end) + 1;
  const std::string half = whole.substr(0, end);
  const auto go_on = [&](const std::string& folder) {
    WriteText("r.jsonl", half);
    HopRequest next = request;
    next.card_folder = folder.empty() ? "" : Path(folder);
    return Run(next).status();
  };
  const auto expect_refused = [&](const std::string& folder, const std::string& part) {
    const Status status = go_on(folder);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    for (const std::string& words : {part, std::string("of chain chain-0 is done"), Path("r.jsonl")})
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(Text("r.jsonl"), half);
  };
  expect_refused("cards", Path("cards/chain-0.0.card"));
  EXPECT_FALSE(std::filesystem::exists(Path("cards")));
  EXPECT_TRUE(go_on("").ok());
  // A run that kept them, with other results, so that they are all made.
  HopRequest keeps = request;
  keeps.results.clear();
  keeps.card_folder = Path("cards");
  Take(Run(keeps));
  std::filesystem::remove(Path("cards/chain-1.0.card"));
  ASSERT_TRUE(go_on("cards").ok());
  EXPECT_TRUE(std::filesystem::exists(Path("cards/chain-1.0.card")));
  EXPECT_EQ(Lines("r.jsonl").size(), 7u);
  std::filesystem::copy_file(Path("cards/chain-0.0.card"), Path("cards/chain-0.1.card"),
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused("cards", "chain-0.1.card is another");
  // As large, and of as many tokens that come as late, but of another chain's answer.
  keeps.chains[0].tokens = SomeTokens(40, 7);
  keeps.card_folder = Path("others");
  Take(Run(keeps));
  EXPECT_EQ(std::filesystem::file_size(Path("others/chain-0.0.card")),
            std::filesystem::file_size(Path("cards/chain-0.0.card")));
  expect_refused("others", "chain-0.0.card is another");
}

TEST_F(HopRunnerTest, ChainsThatEndEarlyAreRecordedAndTheOthersGoOn) {
  HopRequest request = Request(3, 4);
  request.parallel = 3;
  const std::vector<HopRecord> usual = Take(Run(request));
  // One fills its context with its first prompt, to the token; another has no room for its second turn.
  request.chains[1].tokens = SomeTokens(400);
  request.chains[2].turns[1] = std::string(400, 'x');
  for (const HandOver hand_over : {HandOver::kCards, HandOver::kSequence}) {
    request.hand_over = hand_over;
    const bool cards = hand_over == HandOver::kCards;
    const std::vector<HopRecord> records = Take(Run(request));
    EXPECT_EQ(records[4].read_tokens, 400u);
    EXPECT_EQ(records[4].stop, "context");
    EXPECT_TRUE(records[4].tokens.empty());
    EXPECT_EQ(records[4].card_bytes > 0, cards);
    for (const size_t i : {5, 6, 7, 10, 11}) {
      EXPECT_EQ(records[i].read_tokens, 0u) << i;
      EXPECT_EQ(records[i].stop, "context");
      EXPECT_EQ(records[i].card_bytes, 0u);
    }
    EXPECT_GT(records[9].read_tokens, 0u);
    for (const size_t i : {0, 1, 2, 3}) EXPECT_GT(records[i].tokens.size() + 1, 1u) << i;
    EXPECT_EQ(records[0].tokens, usual[0].tokens);
  }
  // An answer that the context cuts.
  request = Request(1, 2);
  request.context = static_cast<uint32_t>(usual[0].read_tokens) + 5;
  const std::vector<HopRecord> cut = Take(Run(request));
  EXPECT_EQ(cut[0].tokens.size(), 5u);
  EXPECT_EQ(cut[0].stop, "context");
  EXPECT_EQ(cut[1].read_tokens, 0u);
}

TEST_F(HopRunnerTest, AnswersThatAreNoneAreHandedOnAllTheSame) {
  HopRequest request = Request(2, 3);
  request.parallel = 2;
  request.generate.predict = 0;
  for (const HopRecord& record : Take(Run(request))) {
    EXPECT_EQ(record.stop, "length");
    EXPECT_TRUE(record.tokens.empty());
    EXPECT_EQ(record.card_bytes > 0, record.hop < 2);
    EXPECT_GT(record.read_tokens, 0u);
  }
  // Stopped by the first text.
  request.generate.predict = 12;
  const std::string text = Take(Run(request))[0].text;
  ASSERT_FALSE(text.empty());
  request.generate.stop = {text.substr(0, 1)};
  const std::vector<HopRecord> stopped = Take(Run(request));
  EXPECT_EQ(stopped[0].stop, "stop");
  EXPECT_TRUE(stopped[0].text.empty());
  EXPECT_FALSE(stopped[0].tokens.empty());
  EXPECT_EQ(stopped[1].taken_tokens, stopped[0].read_tokens + stopped[0].tokens.size());
}

TEST_F(HopRunnerTest, CardsAreKeptAndPackedByEachHopsOptions) {
  HopRequest request = Request(2, 4);
  request.parallel = 2;
  request.packs.resize(3);
  request.packs[0].code_bits = 8;
  request.packs[1].policy = Policy::kLocal;
  request.packs[1].code_bits = 5;
  request.packs[2].policy = Policy::kTopology;
  request.packs[2].code_bits = 5;
  request.generate.predict = 60;
  const std::vector<HopRecord> dropped = Take(Run(request));
  request.card_folder = Path("cards");
  const std::vector<HopRecord> kept = Take(Run(request));
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(LineOf(Timeless(kept)[i]), LineOf(Timeless(dropped)[i]));
    const HopRecord& record = kept[i];
    if (record.hop == 3) continue;
    const Card card = Take(Card::Open(Path("cards/" + record.chain + "." + std::to_string(record.hop) + ".card")));
    EXPECT_EQ(card.file_bytes(), record.card_bytes);
    EXPECT_EQ(card.first_token(), record.taken_tokens);
    EXPECT_EQ(card.hop(), record.hop);
    EXPECT_EQ(card.info().policy.find("uniform") == std::string::npos, record.hop > 0) << card.info().policy;
    const std::vector<Segment>& segments = card.info().segments;
    EXPECT_EQ(segments.back().role, "generated");
    EXPECT_EQ(segments.front().readers.size(), 3 - record.hop);
    // What all hops work on is nearer than what one is asked.
    EXPECT_EQ(segments.back().readers.front().distance, 1U);
    EXPECT_EQ(segments[segments.size() - 2].readers.front().distance, record.hop == 0 ? 1U : 2U);
    const bool only_problem = record.hop == 0 && segments.size() == 2;
    EXPECT_EQ(segments.front().readers.front().distance, only_problem ? 1U : 2U);
  }
  EXPECT_EQ(Take(OpenWithParents({Path("cards/chain-1.2.card")})).size(), 3u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Path("cards")), {}), 6);
}

// The same conversation twice.
TEST_F(HopRunnerTest, RandomShufflesAnewForEachChain) {
  HopRequest request = Request(1, 2);
  request.chains.push_back(request.chains[0]);
  request.chains[1].id = "chain-1";
  request.packs.resize(1);
  request.card_folder = Path("cards");
  const auto levels = [&](Policy policy) {
    std::filesystem::remove_all(request.card_folder);
    request.packs[0].policy = policy;
    request.packs[0].code_bits = 5;
    EXPECT_TRUE(Run(request).has_value());
    std::vector<std::vector<uint8_t>> of_chain;
    for (const char* name : {"cards/chain-0.0.card", "cards/chain-1.0.card"})
      of_chain.push_back(Take(Card::Open(Path(name))).plan().level_of_token);
    return of_chain;
  };
  const auto random = levels(Policy::kRandom), local = levels(Policy::kLocal);
  EXPECT_NE(random[0], random[1]);
  EXPECT_EQ(local[0], local[1]);
}

TEST_F(HopRunnerTest, RefusesRequestsThatCannotRun) {
  const auto expect_invalid = [&](const std::function<void(HopRequest*)>& change, const std::string& part) {
    HopRequest request = Request(2, 3);
    const std::unique_ptr<Session> session = Take(MakeHopSession(*model_, request));
    change(&request);
    const Status status = RunHops(session.get(), request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect_invalid([](HopRequest* r) { r->hops = 0; }, "at least one hop");
  expect_invalid([](HopRequest* r) { r->hops = 4; }, "chain-0 has 2 turns");
  expect_invalid([](HopRequest* r) { r->parallel = 2; }, "the session has 1 sequences");
  expect_invalid([](HopRequest* r) { r->context = 401; }, "do not fit");
  expect_invalid([](HopRequest* r) { r->chains[1].id = "chain-0"; }, "two chains");
  expect_invalid([](HopRequest* r) { r->chains[1].id = "../x"; }, "letters");
  expect_invalid([](HopRequest* r) { r->chains[0].tokens = {1}; }, "messages or tokens");
  expect_invalid([](HopRequest* r) { r->packs.resize(3); }, "3 pack options");
  expect_invalid([](HopRequest* r) { r->packs[0].code_bits = 1; }, "2 to 16");
  expect_invalid([](HopRequest* r) { r->probe = true; }, "policy topology");
  expect_invalid([](HopRequest* r) { r->generate.sampling.temp = 1; }, "random seed");
}

}  // namespace
}  // namespace qkvshare
