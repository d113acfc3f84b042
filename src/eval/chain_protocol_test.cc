#include "eval/chain_protocol.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "eval/hop_runner.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class ChainProtocolTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.context = 8192;
    model_ = LoadTiny(spec);
  }
  static std::vector<GsmProblem> Problems(size_t count, const std::string& name) {
    std::vector<GsmProblem> problems;
    for (size_t i = 0; i < count; ++i) {
      const std::string number = std::to_string(i + 1);
      problems.push_back({fmt::format("How many {} are {}?", name, number),
                          fmt::format("They are {0} + 0 = {0}.\n#### {0}", number), number});
    }
    return problems;
  }
  static ChainProtocol Protocol() {
    ChainProtocol protocol;
    protocol.shots = 2;
    protocol.count = 10;
    protocol.predict = 20;
    protocol.parallel = 2;
    protocol.session = SmallOptions();
    return protocol;
  }
  Result<ChainSet> Make(const ChainProtocol& protocol) const {
    return MakeChainSet(*model_, Problems(10, "problems"), Problems(8, "examples"), protocol);
  }

  std::unique_ptr<Model> model_;
};

TEST_F(ChainProtocolTest, EachHopSolvesAProblemOfTheSheetThatTheFirstOneReads) {
  const ChainSet set = Take(Make(Protocol()));
  ASSERT_EQ(set.request.chains.size(), 10U);
  ASSERT_EQ(set.tasks.size(), 10U);
  std::vector<std::set<std::string>> asked(5);  // by hop
  for (const HopChain& chain : set.request.chains) {
    // System, two examples, the sheet.
    ASSERT_EQ(chain.messages.size(), 6U);
    const std::string& sheet = chain.messages.back().content;
    EXPECT_TRUE(sheet.ends_with("Solve problem 1.")) << sheet;
    ASSERT_EQ(chain.turns.size(), 4U);
    const std::vector<ChainTask>& tasks = set.tasks.at(chain.id);
    ASSERT_EQ(tasks.size(), 5U);
    ASSERT_EQ(chain.parts.size(), 5U);
    std::set<std::string> on_sheet;
    for (size_t hop = 0; hop < 5; ++hop) {
      // "gsm8k-N" is the N-th of the file, whose number is N.
      const std::string number = tasks[hop].problem.substr(tasks[hop].problem.find('-') + 1);
      EXPECT_EQ(tasks[hop].expected, std::stod(number));
      EXPECT_EQ(chain.parts[hop].text, fmt::format("Problem {}: How many problems are {}?", hop + 1, number));
      EXPECT_EQ(chain.parts[hop].hops, std::vector<size_t>{hop});
      EXPECT_NE(sheet.find(chain.parts[hop].text), std::string::npos);
      on_sheet.insert(number);
      EXPECT_TRUE(asked[hop].insert(number).second) << "twice at hop " << hop;
      if (hop == 0) continue;
      // A turn names the problem, but does not state it.
      EXPECT_TRUE(chain.turns[hop - 1].ends_with(fmt::format("Solve problem {}.", hop + 1))) << chain.turns[hop - 1];
      EXPECT_EQ(chain.turns[hop - 1].find("How many"), std::string::npos);
    }
    EXPECT_EQ(on_sheet.size(), 5U);
  }
  for (const auto& problems : asked) EXPECT_EQ(problems, asked.front());
  // Blocks of five chains have nothing in common.
  std::set<std::string> first, second;
  for (size_t i = 0; i < 10; ++i) {
    for (const HopPart& part : set.request.chains[i].parts) (i < 5 ? first : second).insert(part.text.substr(11));
  }
  EXPECT_EQ(first.size(), 5U);
  EXPECT_EQ(second.size(), 5U);
  first.insert(second.begin(), second.end());
  EXPECT_EQ(first.size(), 10U);
  EXPECT_EQ(set.request.generate.sampling.temp, 0);
  EXPECT_EQ(set.request.generate.stop_line, "####");
}

TEST_F(ChainProtocolTest, ExamplesAreASheetThatIsSolved) {
  const ChainSet set = Take(Make(Protocol()));
  const std::vector<ChatMessage>& shown = set.request.chains[0].messages;
  EXPECT_EQ(shown[0].role, "system");
  const auto question = [](const std::string& text, const std::string& name) {
    const size_t at = text.find("Problem " + name + ": ") + name.size() + 10;
    return text.substr(at, text.find('?', at) + 1 - at);
  };
  // Asked in the words in which the hops are asked.
  EXPECT_TRUE(shown[1].content.ends_with("You are the first agent. Solve problem A.")) << shown[1].content;
  EXPECT_EQ(shown[3].content, "You are the next agent. Solve problem B.");
  std::set<std::string> seen;
  for (const size_t i : {0, 1}) {
    const std::string text = question(shown[1].content, i == 0 ? "A" : "B");
    seen.insert(text);
    // "How many examples are 3?", whose answer ends with 3.
    const std::string number = text.substr(18, text.size() - 19);
    EXPECT_TRUE(text.starts_with("How many examples ")) << text;
    EXPECT_TRUE(shown[2 * i + 2].content.ends_with("\n#### " + number.substr(number.find(' ') + 1)))
        << text << shown[2 * i + 2].content;
  }
  EXPECT_EQ(seen.size(), 2U);
  for (const HopChain& chain : set.request.chains) {
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(chain.messages[i].content, shown[i].content);
  }
}

TEST_F(ChainProtocolTest, TheSeedChoosesAndSmallerCountsAreTheFirst) {
  const auto problems = [&](size_t count, uint64_t seed) {
    ChainProtocol protocol = Protocol();
    protocol.count = count;
    protocol.seed = seed;
    const ChainSet set = Take(Make(protocol));
    std::vector<std::string> first;
    for (const HopChain& chain : set.request.chains) first.push_back(set.tasks.at(chain.id).front().problem);
    return first;
  };
  const std::vector<std::string> ten = problems(10, 1);
  EXPECT_EQ(ten, problems(10, 1));
  EXPECT_NE(ten, problems(10, 2));
  EXPECT_EQ(std::vector<std::string>(ten.begin(), ten.begin() + 5), problems(5, 1));
  // All, but for what makes no whole sheet.
  ChainProtocol protocol = Protocol();
  protocol.count = 0;
  protocol.hops = 4;
  EXPECT_EQ(Take(Make(protocol)).request.chains.size(), 8U);
}

TEST_F(ChainProtocolTest, ExamplesAreShortAndNoneOfTheProblems) {
  const std::vector<GsmProblem> problems = Problems(3, "things");
  std::vector<GsmProblem> examples = Problems(5, "things");  // three of them are problems
  ChainProtocol protocol = Protocol();
  protocol.count = 3;
  protocol.hops = 3;
  const ChainSet set = Take(MakeChainSet(*model_, problems, examples, protocol));
  const std::string& shown = set.request.chains[0].messages[1].content;
  for (const int number : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(shown.find(fmt::format("How many things are {}?", number)) != std::string::npos, number > 3) << shown;
  }
  examples[3].answer = std::string(700, 'x') + examples[3].answer;
  const Status status = MakeChainSet(*model_, problems, examples, protocol).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("only 1 examples"), std::string::npos) << status.message();
}

TEST_F(ChainProtocolTest, TheContextHoldsTheLongestChain) {
  for (const HandOver hand_over : {HandOver::kSequence, HandOver::kCards}) {
    ChainSet set = Take(Make(Protocol()));
    set.request.hand_over = hand_over;
    set.request.generate.stop_line.clear();  // every answer as long as it may be
    EXPECT_EQ(set.request.context % 256, 0U);
    const std::unique_ptr<Session> session = Take(MakeHopSession(*model_, set.request));
    for (const HopRecord& record : Take(RunHops(session.get(), set.request))) EXPECT_NE(record.stop, "context");
  }
}

TEST_F(ChainProtocolTest, RefusesWhatCannotBeAsked) {
  const auto expect_refused = [&](const std::function<void(ChainProtocol*)>& change, StatusCode code,
                                  const std::string& part) {
    ChainProtocol protocol = Protocol();
    change(&protocol);
    const Status status = Make(protocol).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect_refused([](ChainProtocol* p) { p->count = 11; }, StatusCode::kInvalidArgument, "only 10 problems");
  expect_refused([](ChainProtocol* p) { p->shots = 9; }, StatusCode::kInvalidArgument, "only 8 examples");
  expect_refused([](ChainProtocol* p) { p->shots = 27; }, StatusCode::kInvalidArgument, "at most 26");
  expect_refused([](ChainProtocol* p) { p->count = 4; }, StatusCode::kInvalidArgument, "4 problems for 5 hops");
  expect_refused([](ChainProtocol* p) { p->count = 6; }, StatusCode::kInvalidArgument, "multiple of --hops");
  expect_refused([](ChainProtocol* p) { p->hops = 0; }, StatusCode::kInvalidArgument, "1 to 16");
  expect_refused([](ChainProtocol* p) { p->predict = 4000; }, StatusCode::kOutOfRange, "--predict");
  TinyModelSpec spec;
  spec.chat_template = "";
  model_ = LoadTiny(spec, "plain.gguf");
  expect_refused([](ChainProtocol*) {}, StatusCode::kUnsupported, "template");
}

}  // namespace
}  // namespace qkvshare
