#include "eval/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plain_context.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

// Whether memory is what the program asks for: sanitizers keep what was freed, and more beside it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kPlainMemory = false;
#else
constexpr bool kPlainMemory = true;
#endif

MemoryLine SomeLine(const char* shape) {
  MemoryLine line;
  line.shape = shape;
  line.content = "card";
  line.number = 4;
  line.tokens = 2048;
  line.taken_bytes = 5;
  line.private_bytes = 6;
  line.peak_private_bytes = 7;
  line.model_private_bytes = 1;
  line.shared_bytes = 9;
  line.proportional_bytes = 10;
  return line;
}

TEST(MemoryLine, ReadsWhatItWrites) {
  MemoryLine hop = SomeLine(kHopShape);
  hop.handed_bytes = 11;
  for (const MemoryLine& line : {SomeLine(kProcessesShape), hop}) {
    const nlohmann::ordered_json json = MemoryJson(line);
    EXPECT_EQ(MemoryJson(*ParseMemory(json)), json);
    EXPECT_EQ(ParseMemory(json)->number, 4u);
  }
  EXPECT_TRUE(MemoryJson(hop).contains("hop"));
  EXPECT_FALSE(MemoryJson(hop).contains("agents"));
  nlohmann::ordered_json lacking = MemoryJson(hop);
  lacking.erase("handed_bytes");
  EXPECT_EQ(ParseMemory(lacking).status().code(), StatusCode::kCorrupt);
}

TEST(MemoryCase, ReadsWhatItWrites) {
  MemoryCase memory_case;
  memory_case.model = "model.gguf";
  memory_case.content = MemoryContent::kCards;
  memory_case.agents = 3;
  memory_case.one_context = true;
  memory_case.depth = 100;
  memory_case.cards = {"a.card", "b.card"};
  memory_case.tokens = {1, 2};
  memory_case.output = "c.card";
  memory_case.code_bits = 3.5;
  memory_case.session.threads = 2;
  memory_case.session.rope_freq_base = 20000;
  const nlohmann::ordered_json json = MemoryCaseJson(memory_case);
  EXPECT_EQ(MemoryCaseJson(*ParseMemoryCase(json)), json);
  nlohmann::ordered_json other = json;
  other["content"] = "F15";
  EXPECT_EQ(ParseMemoryCase(other).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ParseMemoryCase(nlohmann::ordered_json()).status().code(), StatusCode::kCorrupt);
}

// Cases run in this process, one after the other.
class AgentMemoryTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    model_ = LoadTiny({});
  }

  MemoryRequest Request() {
    MemoryRequest request;
    request.text = "The water of the spring is cold, and nobody grinds corn there now.";
    request.depth = 1900;
    request.agents = {1, 4};
    request.hops = {3, 1};
    request.suffix = 8;
    request.hop_tokens = 16;
    request.session = SmallOptions();
    request.model = Path("model.gguf");
    request.folder = Path("bench");
    request.run = [this](const MemoryCase& memory_case, size_t processes) -> Result<std::vector<MemoryCaseResult>> {
      cases_.push_back(memory_case);
      std::vector<MemoryCaseResult> results;
      for (size_t i = 0; i < processes; ++i) {
        QKV_RETURN_IF_ERROR(RunMemoryCase(*model_, memory_case, [&](const MemoryCaseResult& result) {
          results.push_back(result);
          return Status();
        }));
      }
      return results;
    };
    return request;
  }
  Result<MemoryReport> Measure(const MemoryRequest& request) {
    return MeasureAgentMemory(Take(Model::Load(request.model, {})), request);
  }

  std::unique_ptr<Model> model_;
  std::vector<MemoryCase> cases_;
};

// The context's rows, times those that have them for themselves, worked out from the model's shapes.
TEST_F(AgentMemoryTest, IsWhatTheRowsTake) {
  const MemoryRequest request = Request();
  const MemoryReport report = Take(Measure(request));
  ASSERT_EQ(report.lines.size(), 2u * 9 + 2 * 2);
  const double rows = 1900.0 * 2 * 2 * 128 * 2;  // tokens, layers, KV heads, keys and values, bytes
  EXPECT_EQ(report.context_bytes, rows);
  // Private memory beside that of agents without the context, in contexts' rows.
  const auto contexts_of = [&](const char* shape, const char* content, size_t agents) {
    const MemoryLine &line = *report.Find(shape, content, agents), &empty = *report.Find(shape, "empty", agents);
    const auto beside_model = [](const MemoryLine& l) {
      return static_cast<double>(l.private_bytes) - static_cast<double>(l.model_private_bytes);
    };
    return (beside_model(line) - beside_model(empty)) / rows;
  };
  for (const size_t agents : {1, 4}) {
    const auto n = static_cast<double>(agents);
    EXPECT_GT(contexts_of(kContextsShape, "F16", agents), 0.8 * n);
    EXPECT_GT(contexts_of(kProcessesShape, "F16", agents), 0.8 * n);
    EXPECT_GT(contexts_of(kSequencesShape, "F16", agents), 0.8);
    if (!kPlainMemory) continue;
    EXPECT_LT(contexts_of(kContextsShape, "F16", agents), 1.2 * n + 0.2);
    EXPECT_LT(contexts_of(kSequencesShape, "F16", agents), 1.5);
    for (const char* shape : {kContextsShape, kSequencesShape, kProcessesShape})
      EXPECT_LT(contexts_of(shape, "card", agents), 0.5 * n) << shape;
  }
  for (const MemoryLine& line : report.lines) {
    EXPECT_GE(line.peak_private_bytes, line.model_private_bytes);
    EXPECT_GT(line.shared_bytes, 0u);
  }
}

TEST_F(AgentMemoryTest, HopsTakeWhatThoseBeforeHaveHandedOn) {
  MemoryRequest request = Request();
  request.agents = {};
  const MemoryReport report = Take(Measure(request));
  ASSERT_EQ(report.lines.size(), 4u);
  for (const char* content : {"F16", "card"}) {
    EXPECT_EQ(report.Find(kHopShape, content, 1)->tokens, 1900u);
    EXPECT_EQ(report.Find(kHopShape, content, 2), nullptr);  // run, but not asked for
    EXPECT_EQ(report.Find(kHopShape, content, 3)->tokens, 1932u);
  }
  const MemoryLine &state = *report.Find(kHopShape, "F16", 3), &card = *report.Find(kHopShape, "card", 3);
  EXPECT_GT(state.handed_bytes, 1948u * 1024);  // all of it in F16
  EXPECT_GT(state.handed_bytes, state.taken_bytes);
  EXPECT_LT(card.handed_bytes, 16u * 1024 + 16 * 1024);  // 16 tokens, and the rest of a card
  EXPECT_LT(card.handed_bytes, card.taken_bytes / 10);
  ASSERT_EQ(cases_.size(), 6u);
  EXPECT_EQ(cases_[2].state, cases_[1].output);
  EXPECT_EQ(cases_[5].cards, (std::vector<std::string>{cases_[3].cards[0], cases_[3].output, cases_[4].output}));
  EXPECT_NE(cases_[4].tokens, cases_[3].tokens);
  EXPECT_FALSE(std::filesystem::exists(cases_[5].output));  // nothing is left of the run
}

TEST_F(AgentMemoryTest, GoesOnWithTheGroupsThatLack) {
  MemoryRequest request = Request();
  request.depth = 100;
  request.results = Path("memory.jsonl");
  const RunMemoryCases run = request.run;
  request.run = [&](const MemoryCase& memory_case, size_t processes) -> Result<std::vector<MemoryCaseResult>> {
    if (memory_case.agents == 4) return Status(StatusCode::kCancelled, "cancelled");
    return run(memory_case, processes);
  };
  EXPECT_EQ(Measure(request).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(cases_.size(), 9u);
  request.run = run;
  EXPECT_EQ(Take(Measure(request)).lines.size(), 22u);
  EXPECT_EQ(cases_.size(), 9u + 9 + 6);
  EXPECT_EQ(Take(Measure(request)).lines.size(), 22u);  // all of it is there
  EXPECT_EQ(cases_.size(), 9u + 9 + 6);
  request.bits = 8;
  EXPECT_EQ(Measure(request).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(AgentMemoryTest, RefusesWrongNumbers) {
  const auto code_of = [&](auto change) {
    MemoryRequest request = Request();
    change(request);
    return Measure(request).status().code();
  };
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.agents = {2, 2}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.agents = {kMaxSequences + 1}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.hops = {0}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.agents = r.hops = {}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.suffix = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](MemoryRequest& r) { r.text = ""; }), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cases_.empty());
}

// The cells are shared, and each sequence goes on as it would alone.
TEST_F(AgentMemoryTest, SequencesGoOnFromTheSameRows) {
  SessionOptions options = SmallOptions();
  options.sequences = 3;
  const auto plain = Take(PlainContext::Create(*model_, options));
  const std::vector<int32_t> tokens = SomeTokens(100), next = SomeTokens(20, 9);
  ASSERT_TRUE(plain->Prefill(tokens).ok());
  plain->ShareWith(1);
  plain->ShareWith(2);
  const auto session = MakeSession(*model_);
  Prefill(session.get(), tokens);
  Prefill(session.get(), next);
  for (const int sequence : {2, 0, 1}) {
    ASSERT_TRUE(plain->Prefill(next, sequence).ok());
    const std::vector<float> logits(plain->logits(), plain->logits() + model_->vocab_size());
    const std::vector<float> expected = Logits(*session);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-2) << sequence;
  }
}

}  // namespace
}  // namespace qkvshare
