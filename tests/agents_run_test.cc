// Running topologies on tiny models: what turns hand over, how they end, and how a run goes on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agents/earlier_anchors.h"
#include "agents/runner.h"
#include "agents/topology_file.h"
#include "base/file.h"
#include "base/hash.h"
#include "card/card.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr const char* kChain = R"(
context: 512
defaults: {bits: 16, predict: 6, temp: 0}
agents:
  reader: {system: You read., prompt: The cat is at the mill., predict: 0}
  writer: {prompt: Where is it}
  editor: {prompt: Say it again, bits: 4}
edges:
  - {from: reader, to: writer}
  - {from: writer, to: editor}
)";

struct Settings {
  bool resume = false;
  std::string worker{};  // a program of the shell in place of the worker; $JOB is a file with its input
  std::string folder = "run";
  std::string anchors{};
  bool cancel = false;
  int parallel = 1;
};

class AgentsRunTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    model_ = LoadTiny({});
  }

  static SessionOptions TinyOptions() {
    SessionOptions options;
    options.threads = 1;
    options.batch = 64;
    return options;
  }

  // The command line, beside this test.
  static std::string Program() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bin" / "qkvshare";
  }

  // One run, with all that it refers to.
  struct Run {
    Topology topology;
    Schedule schedule;
    std::unique_ptr<Runner> runner;
    std::vector<std::string> notes;  // why turns were done again
    Status status;
    RunRecord record;
  };

  std::unique_ptr<Run> Start(const std::string& text, const Settings& settings = {}) {
    auto run = std::make_unique<Run>();
    run->topology = Take(ParseTopology(text, "t.yaml"));
    run->schedule = Take(MakeSchedule(run->topology));
    RunOptions options;
    options.folder = Path(settings.folder);
    options.resume = settings.resume;
    options.anchors_folder = settings.anchors.empty() ? "" : Path(settings.anchors);
    options.session = TinyOptions();
    options.parallel = settings.parallel;
    options.model_path = Path("model.gguf");
    options.worker_command = {Program(), "agents", "worker"};
    if (!settings.worker.empty()) options.worker_command = {"/bin/sh", "-c", settings.worker};
    RunHooks hooks;
    hooks.start = [&run = *run](size_t, const std::string& note) { run.notes.push_back(note); };
    run->runner = std::make_unique<Runner>(run->topology, run->schedule, *model_, options, hooks);
    if (settings.cancel) run->runner->Cancel();
    run->status = run->runner->Run();
    run->record = run->runner->Record();
    return run;
  }
  std::unique_ptr<Run> Succeed(const std::string& text, const Settings& settings = {}) {
    std::unique_ptr<Run> run = Start(text, settings);
    EXPECT_TRUE(run->status.ok()) << run->status.message();
    return run;
  }
  void Fail(const std::string& text, StatusCode code, const std::vector<std::string>& says,
            const Settings& settings = {}) {
    const std::unique_ptr<Run> run = Start(text, settings);
    EXPECT_EQ(run->status.code(), code) << run->status.message();
    for (const std::string& words : says) {
      EXPECT_NE(run->status.message().find(words), std::string::npos) << run->status.message();
    }
  }
  Card Open(const std::string& file) const { return Take(Card::Open(Path("run/" + file))); }

  std::unique_ptr<Model> model_;
};

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST_F(AgentsRunTest, AChainHandsItsContextOn) {
  const auto run = Succeed(kChain);
  const std::vector<TurnRecord>& turns = run->record.turns;
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[0].outcome, Outcome::kRead);
  EXPECT_EQ(turns[0].mode, "prefill");
  EXPECT_EQ(turns[1].mode, "fused");
  uint32_t context = 0;
  std::string parent;
  for (const TurnRecord& turn : turns) {
    EXPECT_EQ(turn.taken_tokens, context);
    EXPECT_EQ(turn.card.tokens, turn.read_tokens + turn.generated_tokens);
    const Card card = Open(turn.card.path);
    EXPECT_EQ(ToHex(card.content_id()), turn.card.id);
    EXPECT_EQ(card.first_token(), context);
    EXPECT_EQ(card.has_parent() ? ToHex(card.parent()) : "", parent);
    EXPECT_EQ(turn.taken.empty() ? "" : turn.taken.back().id, parent);
    EXPECT_EQ(card.info().sender, turn.agent);
    context += turn.card.tokens;
    parent = turn.card.id;
  }
  EXPECT_EQ(turns[2].taken.size(), 2u);
  EXPECT_NEAR(turns[2].code_bits, 4, 0.01);
  EXPECT_GT(run->record.prefill_us_per_token, 0);
  EXPECT_GT(run->record.ReprefillUs(turns[2]), 0);
}

// With cards of 16 bits, a chain of five hops says, token for token, what one context says that is told the same in the
// same pieces.
TEST_F(AgentsRunTest, AChainSaysWhatOneContextSays) {
  constexpr const char* kFiveHops = R"(
context: 1024
defaults: {bits: 16, predict: 12, temp: 0}
agents:
  a: {system: You read., prompt: The cat is at the mill.}
  b: {prompt: Where is it}
  c: {prompt: Who else is there}
  d: {prompt: What is the ice like}
  e: {prompt: Say it again}
  f: {prompt: And now in one word}
edges:
  - {from: a, to: b}
  - {from: b, to: c}
  - {from: c, to: d}
  - {from: d, to: e}
  - {from: e, to: f}
)";
  const auto run = Succeed(kFiveHops);
  ASSERT_EQ(run->record.turns.size(), 6u);
  std::vector<int32_t> tokens;
  SessionOptions options = TinyOptions();
  options.context = 1024;
  const auto session = MakeSession(*model_, options);
  for (const TurnRecord& turn : run->record.turns) {
    const Card card = Open(turn.card.path);
    const std::span<const int32_t> own = card.token_ids();
    ASSERT_TRUE(session->Prefill(own.first(turn.read_tokens), {}).ok());
    for (size_t i = turn.read_tokens; i < own.size(); ++i) {
      const float* logits = session->logits();
      const auto best = std::max_element(logits, logits + model_->vocab_size()) - logits;
      EXPECT_EQ(own[i], best) << turn.turn << ", token " << i;
      ASSERT_TRUE(session->Prefill(own.subspan(i, 1), {}).ok());
    }
    tokens.insert(tokens.end(), own.begin(), own.end());
  }
  EXPECT_EQ(session->tokens(), tokens);
}

TEST_F(AgentsRunTest, OneCardServesSeveralReceivers) {
  constexpr const char* kFan = R"(
context: 512
defaults: {bits: 8, predict: 5, temp: 0}
agents:
  reader: {prompt: The cat is at the mill., predict: 0}
  a: {prompt: Where is it}
  b: {prompt: Who is it}
  c: {prompt: Where is it}
  last: {prompt: What now}
edges:
  - {from: reader, to: a}
  - {from: reader, to: b}
  - {from: reader, to: c}
  - {from: [a, b], to: last}
)";
  const auto run = Succeed(kFan);
  const std::vector<TurnRecord>& turns = run->record.turns;
  ASSERT_EQ(turns.size(), 5u);
  EXPECT_EQ(turns[1].text, turns[3].text);  // the same question over the same card
  EXPECT_EQ(turns[1].taken, turns[3].taken);
  // The reader's card once, then both answers one after the other.
  const TurnRecord& last = turns[4];
  const std::vector<HandedCard> all = {turns[0].card, turns[1].card, turns[2].card};
  EXPECT_EQ(last.taken, all);
  EXPECT_EQ(last.taken_tokens, turns[0].card.tokens + turns[1].card.tokens + turns[2].card.tokens);
  EXPECT_EQ(Open("last.card").info().context.size(), 3u);  // b lies moved, after a
}

TEST_F(AgentsRunTest, ALoopGoesOnFromWhatItsLastAgentSaid) {
  constexpr const char* kLoop = R"(
context: 512
defaults: {bits: 8, predict: 4, temp: 0}
agents:
  writer: {system: You write., prompt: Write}
  critic: {prompt: Speak}
edges:
  - {from: writer, to: critic}
  - {from: critic, to: writer, rounds: 2}
)";
  const auto run = Succeed(kLoop);
  const std::vector<TurnRecord>& turns = run->record.turns;
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[2].turn, "writer.2");
  const std::vector<HandedCard> all = {turns[0].card, turns[1].card, turns[2].card};
  EXPECT_EQ(turns[3].taken, all);
}

TEST_F(AgentsRunTest, WhoSharesPartsHandsOnNoMore) {
  constexpr const char* kParts = R"(
context: 512
defaults: {bits: 8, predict: 6, temp: 0}
agents:
  reader: {prompt: The cat is at the mill and nobody is there., shares: generated}
  writer: {prompt: Where is it}
edges:
  - {from: reader, to: writer}
)";
  const auto run = Succeed(kParts);
  const TurnRecord& reader = run->record.turns[0];
  const TurnRecord& writer = run->record.turns[1];
  // The start of the context, for the attention that it draws, and what was generated.
  ASSERT_EQ(reader.gives.size(), 2u);
  EXPECT_EQ(reader.gives[0].id, reader.card.id);
  EXPECT_EQ(reader.gives[0].tokens, 4u);
  EXPECT_EQ(writer.taken, reader.gives);
  const Card whole = Open("reader.card");
  const Card part = Open(reader.gives[1].path);
  const auto generated = whole.token_ids().subspan(whole.tokens() - part.tokens());
  // With the start of the assistant's turn.
  const std::string answer = model_->Detokenize({generated.begin(), generated.end()});
  EXPECT_TRUE(answer.starts_with("<|im_start|>assistant\n")) << answer;
  EXPECT_EQ(writer.taken_tokens, 4 + part.tokens());
  EXPECT_TRUE(std::equal(generated.begin(), generated.end(), part.token_ids().begin(), part.token_ids().end()));
}

TEST_F(AgentsRunTest, ASenderOfPartsMustHaveThem) {
  constexpr const char* kNothing = R"(
context: 512
defaults: {bits: 8, predict: 4, temp: 0}
agents:
  writer: {system: You write., prompt: Write, shares: [system]}
  critic: {prompt: Speak}
edges:
  - {from: writer, to: critic}
  - {from: critic, to: writer, rounds: 2}
)";
  Fail(kNothing, StatusCode::kInvalidArgument, {"agent 'writer', turn writer.2", "'shares'"});
}

TEST_F(AgentsRunTest, WhatIsSharedOfAUsersTurnEndsWithIt) {
  constexpr const char* kUser = R"(
context: 512
defaults: {bits: 8, predict: 6, temp: 0}
agents:
  reader: {prompt: The cat is at the mill., shares: user}
  writer: {prompt: Where is it}
edges:
  - {from: reader, to: writer}
)";
  const auto run = Succeed(kUser);
  std::string text;
  for (const HandedCard& taken : run->record.turns[1].taken) {
    const Card card = Open(taken.path);
    text += model_->Detokenize({card.token_ids().begin(), card.token_ids().begin() + taken.tokens});
  }
  EXPECT_TRUE(text.ends_with("The cat is at the mill.<|im_end|>\n")) << text;
}

TEST_F(AgentsRunTest, PartsAndWholesMeetInOneContext) {
  constexpr const char* kBoth = R"(
context: 512
defaults: {bits: 8, predict: 5, temp: 0}
agents:
  x: {prompt: The cat is at the mill., shares: generated}
  y: {prompt: The owl is in the tree.}
  both: {prompt: Who is it}
  last: {prompt: Where}
edges:
  - {from: [x, y], to: both}
  - {from: [y, both, x], to: last}
)";
  const auto run = Succeed(kBoth);
  const std::vector<TurnRecord>& turns = run->record.turns;
  ASSERT_EQ(turns.size(), 4u);
  ASSERT_EQ(turns[2].taken.size(), 3u);  // the start of x, its part, y
  EXPECT_EQ(turns[2].taken[0].tokens, 4u);
  EXPECT_EQ(turns[2].taken[2], turns[1].card);
  ASSERT_EQ(turns[3].taken.size(), 4u);  // y, then what both had besides, and its own
  EXPECT_EQ(turns[3].taken[0], turns[1].card);
  EXPECT_EQ(turns[3].taken[3], turns[2].card);
}

// What receivers attended to in an earlier run counts where the same tokens are packed again: on these, and no others.
TEST_F(AgentsRunTest, AnchorsOfAnEarlierRunCount) {
  constexpr const char* kSharing = R"(
context: 512
defaults: {bits: 5, predict: 40, temp: 0}
agents:
  reader: {prompt: The cat is at the mill., policy: topology, shares: generated}
  writer: {prompt: Where is it}
edges:
  - {from: reader, to: writer}
)";
  const auto first = Succeed(kSharing, {.folder = "first"});
  const TurnRecord& reader = first->record.turns[0];
  const Card card = Take(Card::Open(Path("first/reader.card")));
  const std::vector<Anchor> anchors = Take(EarlierAnchors(Path("first"), "reader", card.token_ids()));
  ASSERT_FALSE(anchors.empty());
  for (const Anchor& anchor : anchors) {
    EXPECT_GE(anchor.token, card.info().segments[1].first_token);  // what was not shared nobody saw, but for the start
    EXPECT_LT(anchor.token, card.tokens());
  }
  EXPECT_TRUE(Take(EarlierAnchors(Path("first"), "reader", card.token_ids().first(8))).empty());
  const auto second = Succeed(kSharing, {.anchors = "first"});
  EXPECT_NE(second->record.turns[0].features, reader.features);
  Fail(Replaced(kSharing, "policy: topology, ", ""), StatusCode::kInvalidArgument, {"policy topology"},
       {.folder = "third", .anchors = "first"});
}

TEST_F(AgentsRunTest, InstructionsOfReceiversAreProbesWhereThereIsRoom) {
  constexpr const char* kProbing = R"(
context: 512
defaults: {bits: 5, predict: 40, temp: 0}
agents:
  reader: {prompt: The cat is at the mill., policy: topology, probe: true}
  writer: {prompt: Where is it, policy: topology}
edges:
  - {from: reader, to: writer}
)";
  const auto run = Succeed(kProbing);
  const std::vector<std::string>& features = run->record.turns[0].features;
  EXPECT_NE(std::find(features.begin(), features.end(), "probe"), features.end());
  EXPECT_EQ(run->record.turns[0].note, "");
  EXPECT_NE(run->record.turns[1].note.find("policy local"), std::string::npos);
  const auto other = Succeed(Replaced(kProbing, "Where is it", "Who ate the fish in the pond"), {.folder = "other"});
  EXPECT_NE(Take(Card::Open(Path("other/reader.card"))).plan().level_of_token,
            Open("reader.card").plan().level_of_token);
  const uint32_t own = run->record.turns[0].card.tokens;
  const std::unique_ptr<Run> full =
      Start(Replaced(kProbing, "context: 512", "context: " + std::to_string(own)), {.folder = "full"});
  ASSERT_FALSE(full->record.turns.empty()) << full->status.message();
  EXPECT_NE(full->record.turns[0].note.find("without probe"), std::string::npos) << full->record.turns[0].note;
}

TEST_F(AgentsRunTest, ByteBudgets) {
  const std::string chain =
      Replaced(kChain, "editor: {prompt: Say it again, bits: 4}", "editor: {prompt: Say it again, max_bytes: 12000}");
  Succeed(chain);
  EXPECT_LE(Open("editor.card").file_bytes(), 12000u);
  // More than all need: every token is exact.
  const auto wide = Succeed(Replaced(kChain, "bits: 4}", "max_bytes: 2000000, policy: local}"), {.folder = "wide"});
  EXPECT_EQ(wide->record.turns[2].code_bits, 16);
  EXPECT_NE(wide->record.turns[2].note.find("same bits"), std::string::npos);
  Fail(Replaced(kChain, "The cat is at the mill.", std::string(2000, 'x')), StatusCode::kOutOfRange,
       {"agent 'reader'", "needed"}, {.folder = "long"});
}

TEST_F(AgentsRunTest, OutcomesAreReportedAndDoNotEndTheRun) {
  // A stop text: a letter of what is said without it.
  const std::string chain = Replaced(kChain, "predict: 6", "predict: 40");
  const auto first = Succeed(chain);
  const TurnRecord& plain = first->record.turns[1];
  EXPECT_EQ(Succeed(kChain, {.folder = "limit"})->record.turns[1].outcome, Outcome::kLimit);
  const auto letter = std::find_if(plain.text.begin(), plain.text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  ASSERT_NE(letter, plain.text.end());
  const std::string stopping = Replaced(chain, "writer: {", std::string("writer: {stop: '") + *letter + "', ");
  const auto stopped = Succeed(stopping, {.folder = "stop"});
  EXPECT_EQ(stopped->record.turns.size(), 3u);
  EXPECT_EQ(stopped->record.turns[1].outcome, Outcome::kStopped);
  EXPECT_EQ(stopped->record.turns[1].text, std::string(plain.text.begin(), letter));
  // The context ends within the answer.
  Settings other{.folder = "full"};
  const uint32_t room = first->record.turns[0].card.tokens + first->record.turns[1].read_tokens + 3;
  std::string two = Replaced(kChain, "context: 512", "context: " + std::to_string(room));
  two = Replaced(two, "  - {from: writer, to: editor}\n", "");
  two = Replaced(two, "  editor: {prompt: Say it again, bits: 4}\n", "");
  const auto full = Succeed(two, other);
  const TurnRecord& writer = full->record.turns[1];
  EXPECT_EQ(writer.outcome, Outcome::kFull);
  EXPECT_EQ(writer.generated_tokens, 3u);
  EXPECT_EQ(writer.taken_tokens + writer.read_tokens + writer.generated_tokens, room);
  // ... before it.
  other.folder = "none";
  Fail(Replaced(two, "context: " + std::to_string(room), "context: " + std::to_string(room - 3)),
       StatusCode::kOutOfRange, {"agent 'writer', which takes over from reader", "'context'"}, other);
}

TEST_F(AgentsRunTest, AnAnswerThatEndsAtOnceIsEmpty) {
  const auto session = MakeSession(*model_);
  const std::string prompt = Take(model_->ApplyChatTemplate({{"user", "Where is the cat"}}, true));
  ASSERT_TRUE(session->Prefill(model_->Tokenize(prompt, true), {}).ok());
  GenerateOptions generate;
  generate.predict = 1;
  generate.sampling = {1e5f, 0, 1, 0, 0};  // every token is as likely: some seed ends at once
  while (Take(Generate(session.get(), generate)).end_token < 0 && generate.sampling.seed < 5000) {
    ++generate.sampling.seed;
  }
  const auto run = Succeed(Replaced(kChain, "{system: You read., prompt: The cat is at the mill., predict: 0}",
                                    "{prompt: Where is the cat, temp: 100000, top_k: 0, top_p: 1, min_p: 0, seed: " +
                                        std::to_string(generate.sampling.seed) + "}"));
  const TurnRecord& reader = run->record.turns[0];
  EXPECT_EQ(reader.outcome, Outcome::kEmpty);
  EXPECT_EQ(reader.text, "");
  EXPECT_EQ(reader.generated_tokens, 1u);  // the end, which those after it need not say
  EXPECT_EQ(run->record.turns.size(), 3u);
}

TEST_F(AgentsRunTest, ARunGoesOnWhereItWasCutShort) {
  const auto first = Succeed(kChain);
  std::filesystem::remove(Path("run/editor.json"));
  const auto second = Succeed(kChain, {.resume = true});
  EXPECT_EQ(second->notes, std::vector<std::string>{""});  // only the editor
  EXPECT_TRUE(second->record.turns[1].resumed);
  EXPECT_FALSE(second->record.turns[2].resumed);
  EXPECT_EQ(second->record.turns[2].text, first->record.turns[2].text);
  // What has changed is done again, and what follows from it.
  const auto third = Succeed(Replaced(kChain, "Where is it", "Who is it"), {.resume = true});
  ASSERT_EQ(third->notes.size(), 2u);
  EXPECT_NE(third->notes[0].find("another instruction"), std::string::npos) << third->notes[0];
  EXPECT_TRUE(third->record.turns[0].resumed);
}

TEST_F(AgentsRunTest, ADamagedCardIsMadeAgain) {
  Succeed(kChain);
  {
    std::fstream file(Path("run/writer.card"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-100, std::ios::end);
    file.put('\x55');
    file.put('\x55');
  }
  const auto run = Succeed(kChain, {.resume = true});
  ASSERT_GE(run->notes.size(), 1u);
  EXPECT_NE(run->notes[0].find("writer.card"), std::string::npos) << run->notes[0];
  EXPECT_TRUE(run->record.turns[0].resumed);
  EXPECT_FALSE(run->record.turns[1].resumed);
}

TEST_F(AgentsRunTest, RecordsThatWereChangedDoNotCount) {
  Succeed(kChain);
  const std::string path = Path("run/writer.json");
  const std::string record = Take(ReadText(path, 1 << 20));
  const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
  for (const std::string& changed :
       {Replaced(record, "Where", "There"), std::string(200000, '['),
        R"({"key": "", "digest": "", "turn": )" + std::string(200000, '['), std::string("{}"), std::string()}) {
    write(changed);
    const auto run = Succeed(kChain, {.resume = true});
    ASSERT_FALSE(run->notes.empty());
    EXPECT_NE(run->notes[0].find("writer.json"), std::string::npos) << run->notes[0];
  }
}

TEST_F(AgentsRunTest, FoldersOfOthersAreLeftAlone) {
  Succeed(kChain);
  Fail(kChain, StatusCode::kInvalidArgument, {"--resume"});
  std::filesystem::create_directories(Path("other"));
  std::ofstream(Path("other/letter.txt")) << "dear";
  for (const bool resume : {false, true}) {
    Fail(kChain, StatusCode::kInvalidArgument, {"other files"}, {.resume = resume, .folder = "other"});
  }
  {
    const auto held = Take(RunRecords::Open(Path("run"), true));
    Fail(kChain, StatusCode::kIo, {"another run"}, {.resume = true});
  }
  // Also of a run that has not done anything yet.
  const auto held = Take(RunRecords::Open(Path("new"), false));
  for (int i = 0; i < 2; ++i) Fail(kChain, StatusCode::kIo, {"another run"}, {.folder = "new"});
}

TEST_F(AgentsRunTest, ACancelledRunKeepsWhatIsDone) {
  Fail(kChain, StatusCode::kCancelled, {"agent 'reader'"}, {.cancel = true});
  Succeed(kChain, {.resume = true});
}

class AgentsWorkerTest : public AgentsRunTest {
 protected:
  const std::string chain_ =
      Replaced(kChain, "{prompt: Where is it}", "{prompt: Where is it, placement: worker, timeout: 30}");
  // What the true worker says, with `change` in the shell after it.
  static std::string True(const std::string& change) { return "'" + Program() + "' agents worker" + change; }
};

TEST_F(AgentsWorkerTest, AWorkerSaysTheSame) {
  const auto here = Succeed(kChain, {.folder = "here"});
  const auto there = Succeed(chain_);
  EXPECT_TRUE(there->record.turns[1].worker);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(here->record.turns[i].text, there->record.turns[i].text);
}

TEST_F(AgentsWorkerTest, WorkersOfOneLevelMayWorkAtTheSameTime) {
  constexpr const char* kFan = R"(
context: 512
defaults: {bits: 8, predict: 5, temp: 0, placement: worker, timeout: 60}
agents:
  reader: {prompt: The cat is at the mill.}
  a: {prompt: Where is it}
  b: {prompt: Who is it}
  c: {prompt: What is it}
edges:
  - {from: reader, to: a}
  - {from: reader, to: b}
  - {from: reader, to: c}
)";
  const auto one = Succeed(kFan, {.folder = "one"});
  const auto three = Succeed(kFan, {.parallel = 3});
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(one->record.turns[i].text, three->record.turns[i].text);
}

TEST_F(AgentsWorkerTest, WorkersThatFailAreNamed) {
  const std::vector<std::string> whose = {"agent 'writer', which takes over from reader: "};
  const auto fails = [&](StatusCode code, const std::string& says, const std::string& program) {
    std::vector<std::string> all = whose;
    all.push_back(says);
    Fail(chain_, code, all, {.resume = true, .worker = program});
    EXPECT_TRUE(std::filesystem::exists(Path("run/reader.json")));  // what is done is kept
    EXPECT_FALSE(std::filesystem::exists(Path("run/writer.json")));
  };
  fails(StatusCode::kInternal, "signal 9", "kill -9 $$");
  fails(StatusCode::kInternal, "code 7", "echo worn out >&2; exit 7");
  fails(StatusCode::kInternal, "worn out", "echo worn out >&2; exit 7");
  fails(StatusCode::kCorrupt, "without a result", "cat > /dev/null");
  fails(StatusCode::kCorrupt, "no worker says", "echo '{\"turn\": 5'");
  fails(StatusCode::kCorrupt, "no worker says", "head -c 300000 /dev/zero | tr '\\0' '['; echo");
  fails(StatusCode::kOutOfRange, "too long",
        R"(echo '{"error": {"code": "out_of_range", "message": "too long"}}'; exit 5)");
}

TEST_F(AgentsWorkerTest, AWorkerThatHangsIsEnded) {
  Fail(Replaced(chain_, "timeout: 30", "timeout: 1"), StatusCode::kInternal, {"agent 'writer'", "1 second"},
       {.worker = "sleep 100"});
}

TEST_F(AgentsWorkerTest, DamagedCardsOfWorkersDoNotCount) {
  const std::string card = Path("run/writer.card");
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"; printf x | dd of='" + card + "' bs=1 seek=5000 conv=notrunc 2>/dev/null", "damaged"},
      {"; cp '" + Path("run/reader.card") + "' '" + card + "'", "writer.card is not the card"},
      {"; rm '" + card + "'", "writer.card"},
      {" | sed 's/\"tokens\":[0-9]*/\"tokens\":1/g'", "damaged"},
      {" | sed 's/\"taken_tokens\":[0-9]*/\"taken_tokens\":1/g'", "continue"},
      {" | sed 's/reader.card/..\\/reader.card/'", "another turn"},
  };
  for (const auto& [damage, says] : damages) {
    SCOPED_TRACE(damage);
    const StatusCode code = damage.starts_with("; rm") ? StatusCode::kNotFound : StatusCode::kCorrupt;
    Fail(chain_, code, {"agent 'writer'", says}, {.resume = true, .worker = True(damage)});
  }
  Succeed(chain_, {.resume = true});
}

}  // namespace
}  // namespace qkvshare
