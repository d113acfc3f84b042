// Several sequences in one session know nothing of each other; and a restore that fails leaves no trace.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/file.h"
#include "card/card_test_util.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

enum Sequence : int { kFirst, kSecond, kThird };

class SequenceTest : public SessionTest, public testing::WithParamInterface<int> {
 protected:
  // With a sliding window of so many tokens, or none.
  std::unique_ptr<Model> Load() {
    TinyModelSpec spec;
    if (GetParam() > 0) spec.architecture = "gemma3";
    spec.sliding_window = GetParam();
    return LoadTiny(spec);
  }
  static SessionOptions Options(int sequences = 3) {
    SessionOptions options = SmallOptions();
    options.sequences = sequences;
    return options;
  }
  static void PrefillIn(Session* session, const std::vector<int32_t>& tokens, int sequence) {
    const Status status = session->Prefill(tokens, {}, sequence);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static std::vector<float> LogitsAfter(Session* session, const std::vector<int32_t>& tokens, int sequence) {
    PrefillIn(session, tokens, sequence);
    const float* logits = session->logits(sequence);
    EXPECT_NE(logits, nullptr);
    return {logits, logits + session->model().vocab_size()};
  }
  static Status RestoreIn(const Card& card, size_t tokens, Session* session, int sequence) {
    RestoreTimes times;
    return RestoreCard(card, tokens, session, &times, sequence);
  }
  // Opens, but its last values are out of range: found when the rest is restored.
  static Card CorruptCard(const Session& sender) {
    PackTimes times;
    card_test::Parts parts(Take(PackSession(sender, {}, &times)).Bytes());
    std::fill(parts.sections.back().end() - 128, parts.sections.back().end(), uint8_t{0xFF});
    return Take(Card::FromBytes(parts.Assemble()));
  }
  static std::vector<std::vector<Half>> Rows(const Session& session, int sequence) {
    const KvState state = Take(session.TakeKv(sequence));
    std::vector<std::vector<Half>> rows;
    for (const LayerRows& layer : state.view().layers) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const Half* first = side == Side::kKeys ? layer.keys : layer.values;
        rows.emplace_back(first, first + state.tokens() * layer.shape.row_values(side));
      }
    }
    return rows;
  }
};

// What is done to one sequence while another waits. Undone or not, the other goes on as if nothing had been.
TEST_P(SequenceTest, WhatHappensToOneChangesNothingInTheOthers) {
  const auto model = Load();
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(90));
  const Card card = PackCard(*sender, 16);
  const std::vector<std::function<void(Session*)>> disturbances = {
      [&](Session* session) { ASSERT_TRUE(RestoreIn(card, 90, session, kThird).ok()); },
      [&](Session* session) { ASSERT_TRUE(RestoreIn(card, 20, session, kThird).ok()); },
      [&](Session* session) { ASSERT_TRUE(session->Truncate(7, kThird).ok()); },
      [&](Session* session) { session->Clear(kThird); },
      [&](Session* session) { EXPECT_FALSE(RestoreIn(card, 91, session, kThird).ok()); },
      [&](Session* session) { PrefillIn(session, SomeTokens(40, 9), kThird); },
  };
  // The last is none: what the others give then is what they give always, to the bit.
  std::vector<std::vector<float>> first_logits, second_logits;
  for (size_t i = 0; i <= disturbances.size(); ++i) {
    const auto session = MakeSession(*model, Options());
    PrefillIn(session.get(), SomeTokens(100, 2), kFirst);
    PrefillIn(session.get(), SomeTokens(80, 3), kSecond);
    PrefillIn(session.get(), SomeTokens(60, 4), kThird);
    const std::vector<std::vector<Half>> first = Rows(*session, kFirst);
    const std::vector<std::vector<Half>> second = Rows(*session, kSecond);
    if (i < disturbances.size()) disturbances[i](session.get());
    EXPECT_EQ(session->tokens(kFirst), SomeTokens(100, 2));
    EXPECT_EQ(session->tokens(kSecond), SomeTokens(80, 3));
    EXPECT_EQ(Rows(*session, kFirst), first);
    EXPECT_EQ(Rows(*session, kSecond), second);
    second_logits.push_back(LogitsAfter(session.get(), {7, 8}, kSecond));
    first_logits.push_back(LogitsAfter(session.get(), {7, 8}, kFirst));
  }
  for (size_t i = 0; i < disturbances.size(); ++i) {
    EXPECT_EQ(first_logits[i], first_logits.back()) << i;
    EXPECT_EQ(second_logits[i], second_logits.back()) << i;
  }
}

// Sequences take turns, so that their cells alternate; then one goes, and its holes are filled.
TEST_P(SequenceTest, AFragmentedCacheTakesACardAndGivesItBack) {
  const auto model = Load();
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(150));
  const Card card = PackCard(*sender, 16);
  SessionOptions options = Options();
  options.context = 256;
  const auto session = MakeSession(*model, options);
  for (int turn = 0; turn < 10; ++turn) {
    for (const int sequence : {kFirst, kSecond, kThird}) PrefillIn(session.get(), SomeTokens(8, turn), sequence);
  }
  const std::vector<std::vector<Half>> before = Rows(*session, kThird);
  session->Clear(kFirst);
  // 256 - 2 * 80 cells are free.
  const Status status = RestoreIn(card, 97, session.get(), kFirst);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("97 tokens needed, 96 available beside 160 of other sequences"), std::string::npos)
      << status.message();
  EXPECT_TRUE(session->tokens(kFirst).empty());
  ASSERT_TRUE(RestoreIn(card, 96, session.get(), kFirst).ok());
  EXPECT_FALSE(session->CheckRoom(81, kSecond).ok());
  const std::vector<std::vector<Half>> sent = Rows(*sender, kFirst), restored = Rows(*session, kFirst);
  for (size_t i = 0; i < sent.size(); ++i)
    EXPECT_TRUE(std::equal(restored[i].begin(), restored[i].end(), sent[i].begin()));
  EXPECT_EQ(Rows(*session, kThird), before);
  // The full context takes no token more; room that is made can be used, whatever its place.
  EXPECT_EQ(session->Prefill({{1}}, {}, kThird).code(), StatusCode::kOutOfRange);
  ASSERT_TRUE(session->Truncate(30, kSecond).ok());
  PrefillIn(session.get(), SomeTokens(50, 6), kThird);
  EXPECT_EQ(Take(session->TakeKv(kThird)).tokens(), 130u);
  EXPECT_EQ(Take(session->TakeKv(kSecond)).tokens(), 30u);
}

TEST_P(SequenceTest, EachGeneratesAndIsPackedForItself) {
  const auto model = Load();
  const auto session = MakeSession(*model, Options(2));
  PrefillIn(session.get(), SomeTokens(100, 2), kFirst);
  PrefillIn(session.get(), SomeTokens(70, 3), kSecond);
  EXPECT_EQ(session->logits(kFirst), nullptr);  // the other's turn came after
  GenerateOptions options;
  options.sampling.temp = 0;
  options.predict = 8;
  EXPECT_EQ(Generate(session.get(), options, kFirst).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(Generate(session.get(), options, kSecond)).tokens.size(), 8u);
  EXPECT_EQ(session->tokens(kSecond).size(), 77u);
  EXPECT_EQ(session->tokens(kFirst).size(), 100u);
  PackTimes times;
  const Card card = Take(Card::FromBytes(Take(PackSession(*session, {}, &times, kSecond)).Bytes()));
  EXPECT_EQ(card.tokens(), 77u);
  EXPECT_EQ(card.token_ids()[0], SomeTokens(70, 3)[0]);
}

TEST_P(SequenceTest, SequencesThatAreNotThereAreRefused) {
  const auto model = Load();
  const auto session = MakeSession(*model, Options(2));
  for (const int sequence : {-1, 2}) {
    EXPECT_EQ(session->Prefill({{1}}, {}, sequence).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->TakeKv(sequence).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->SaveState(sequence).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->Truncate(0, sequence).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->CheckRoom(1, sequence).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->SetState({}, {}, sequence).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(session->logits(sequence), nullptr);
  }
  for (const int sequences : {0, -1, kMaxSequences + 1}) {
    EXPECT_EQ(Session::Create(*model, Options(sequences)).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(SequenceTest, AsManyAsThereMayBeAndInBatchesOfOneToken) {
  const auto model = Load();
  SessionOptions options = Options(kMaxSequences);
  options.batch = 1;
  const auto session = MakeSession(*model, options);
  PrefillIn(session.get(), {1, 2, 3}, kMaxSequences - 1);
  EXPECT_EQ(Take(session->TakeKv(kMaxSequences - 1)).tokens(), 3u);
}

// llama.cpp aborts on contexts of fewer tokens than sequences.
TEST_P(SequenceTest, ContextsOfOneToken) {
  const auto model = Load();
  for (const int sequences : {1, 5}) {
    SessionOptions options = Options(sequences);
    options.context = 1;
    const auto session = MakeSession(*model, options);
    EXPECT_EQ(session->context(), 1u);
    PrefillIn(session.get(), {7}, sequences - 1);
    const std::vector<int32_t> more = {8};
    EXPECT_EQ(session->Prefill(more, {}, sequences - 1).code(), StatusCode::kOutOfRange);
  }
}

// After each kind of refusal, this session and another of the process go on as one does that never saw the card.
TEST_P(SequenceTest, ARefusedCardOrStateLeavesNoTrace) {
  const auto model = Load();
  TinyModelSpec other_spec;
  other_spec.seed = 2;
  const auto stranger = LoadTiny(other_spec, "other.gguf");
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(200));
  const Card card = PackCard(*sender, 4);
  const Card corrupt = CorruptCard(*sender);
  const auto stranger_sender = MakeSession(*stranger);
  Prefill(stranger_sender.get(), SomeTokens(20));
  const Card strange = PackCard(*stranger_sender, 4);
  const std::vector<uint8_t> state = Take(sender->SaveState());
  std::vector<uint8_t> cut = state, shifted = state;
  cut.pop_back();
  for (size_t cell = 0; cell < 200; ++cell) shifted[16 + 12 * cell + 1] += 1;

  SessionOptions options = Options(2);
  options.context = 256;
  const auto make = [&] {
    auto session = MakeSession(*model, options);
    PrefillIn(session.get(), SomeTokens(60, 5), kFirst);
    PrefillIn(session.get(), SomeTokens(40, 6), kSecond);
    return session;
  };
  const auto go_on = [&](Session* session) {
    std::vector<float> logits = LogitsAfter(session, {7, 8, 9}, kFirst);
    const std::vector<float> more = LogitsAfter(session, {7, 8, 9}, kSecond);
    logits.insert(logits.end(), more.begin(), more.end());
    return logits;
  };
  const std::vector<float> expected = go_on(make().get());
  const std::vector<std::pair<StatusCode, std::function<Status(Session*)>>> refusals = {
      {StatusCode::kMismatch, [&](Session* s) { return RestoreIn(strange, 20, s, kFirst); }},
      {StatusCode::kCorrupt, [&](Session* s) { return RestoreIn(corrupt, 200, s, kFirst); }},
      {StatusCode::kInvalidArgument, [&](Session* s) { return RestoreIn(card, 201, s, kFirst); }},
      // The context has 256 cells, and the other sequence 60 of them.
      {StatusCode::kOutOfRange, [&](Session* s) { return RestoreIn(card, 200, s, kSecond); }},
      {StatusCode::kOutOfRange, [&](Session* s) { return s->RestoreState(state, sender->tokens(), kSecond); }},
      {StatusCode::kUnsupported, [&](Session* s) { return s->RestoreState(cut, sender->tokens(), kFirst); }},
      {StatusCode::kUnsupported, [&](Session* s) { return s->RestoreState(shifted, sender->tokens(), kFirst); }},
      {StatusCode::kInvalidArgument, [&](Session* s) { return s->RestoreState(state, SomeTokens(199), kFirst); }},
      {StatusCode::kInvalidArgument,
       [&](Session* s) { return s->RestoreState(state, std::vector<int32_t>(200, -1), kFirst); }},
  };
  for (size_t i = 0; i < refusals.size(); ++i) {
    const auto session = make();
    const auto bystander = make();
    const Status status = refusals[i].second(session.get());
    EXPECT_EQ(status.code(), refusals[i].first) << i << ": " << status.message();
    EXPECT_EQ(session->tokens(kFirst), SomeTokens(60, 5)) << i;
    EXPECT_EQ(session->tokens(kSecond), SomeTokens(40, 6)) << i;
    EXPECT_EQ(go_on(session.get()), expected) << i;
    EXPECT_EQ(go_on(bystander.get()), expected) << i;
  }
}

// Runs this test again in a new program, with the variable set. Returns whether it passed.
bool PassesInAFreshProcess(const char* variable, const std::string& value) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  const pid_t child = fork();
  if (child == 0) {
    setenv(variable, value.c_str(), 1);
    execl("/proc/self/exe", "cross_test", filter.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

// Nor in the process: one that never saw a card gives the same.
TEST_P(SequenceTest, ARefusedCardLeavesNoTraceInTheProcess) {
  constexpr const char* kVariable = "QKV_TEST_FRESH_LOGITS";  // the file for them; set in the fresh process only
  const auto model = Load();
  const auto session = MakeSession(*model);
  PrefillIn(session.get(), SomeTokens(60, 5), kFirst);
  if (const char* path = std::getenv(kVariable); path != nullptr) {
    const std::vector<float> logits = LogitsAfter(session.get(), {7, 8, 9}, kFirst);
    const auto* bytes = reinterpret_cast<const uint8_t*>(logits.data());
    ASSERT_TRUE(WriteFileAtomic(path, {{bytes, logits.size() * sizeof(float)}}).ok());
    return;
  }
  if (!std::filesystem::exists("/proc/self/exe")) GTEST_SKIP() << "the program does not know its own path here";
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(200));
  EXPECT_EQ(RestoreIn(CorruptCard(*sender), 200, session.get(), kFirst).code(), StatusCode::kCorrupt);
  const std::vector<float> logits = LogitsAfter(session.get(), {7, 8, 9}, kFirst);

  ASSERT_TRUE(PassesInAFreshProcess(kVariable, Path("logits")));
  const MappedFile file = Take(MappedFile::Open(Path("logits")));
  ASSERT_EQ(file.bytes().size(), logits.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(file.bytes().data(), logits.data(), file.bytes().size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Windows, SequenceTest, testing::Values(0, 24));

}  // namespace
}  // namespace qkvshare
