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
                          fmt::format("They are {0} + 0 = {0}.\n#### {0}", number),
                          number,
                          {fmt::format("{0}+0={0}", number)}});
    }
    return problems;
  }
  static ChainProtocol Protocol() {
    ChainProtocol protocol;
    protocol.shots = 2;
    protocol.count = 6;
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

TEST_F(ChainProtocolTest, AsksEachProblemOfAllAgentsAfterTheSameExamples) {
  const ChainSet set = Take(Make(Protocol()));
  ASSERT_EQ(set.request.chains.size(), 6U);
  std::set<std::string> ids;
  for (const HopChain& chain : set.request.chains) {
    ids.insert(chain.id);
    // System, two examples with two turns of a chat each, the problem.
    ASSERT_EQ(chain.messages.size(), 10U);
    EXPECT_EQ(chain.messages[0].role, "system");
    for (const size_t i : {1, 5}) {
      EXPECT_EQ(chain.messages[i].role, "user");
      EXPECT_NE(chain.messages[i].content.find("examples"), std::string::npos);
      EXPECT_EQ(chain.messages[i].content, set.request.chains[0].messages[i].content);
      EXPECT_EQ(chain.messages[i + 1].role, "assistant");
      EXPECT_NE(chain.messages[i + 1].content.find("\n#### "), std::string::npos);
      // Then what a further agent is asked, answered in the same form.
      EXPECT_TRUE(chain.messages[i + 2].content.starts_with(chain.turns[i / 4].substr(0, 30)));
      EXPECT_NE(chain.messages[i + 3].content.find("\n#### "), std::string::npos);
      // It is not copied from the first answer.
      EXPECT_NE(chain.messages[i + 3].content, chain.messages[i + 1].content);
    }
    EXPECT_NE(chain.messages[1].content, chain.messages[5].content);
    EXPECT_EQ(chain.messages[9].role, "user");
    // "gsm8k-N" is the N-th of the file, whose number is N.
    const std::string number = chain.id.substr(chain.id.find('-') + 1);
    EXPECT_EQ(chain.messages[9].content, "How many problems are " + number + "?");
    EXPECT_EQ(set.expected.at(chain.id), std::stod(number));
    ASSERT_EQ(chain.turns.size(), 4U);
    EXPECT_EQ(std::set<std::string>(chain.turns.begin(), chain.turns.end()).size(), 4U);
    for (const std::string& turn : chain.turns) EXPECT_NE(turn.find("the same form"), std::string::npos);
    // Who solves on its own reads the problem again.
    EXPECT_TRUE(chain.turns[1].ends_with("\n\n" + chain.messages[9].content)) << chain.turns[1];
    EXPECT_TRUE(chain.messages[7].content.ends_with("\n\n" + chain.messages[5].content));
  }
  EXPECT_EQ(ids.size(), 6U);
  // The checker's example has a slip in the first answer, which the checker corrects.
  const std::vector<ChatMessage>& shown = set.request.chains[0].messages;
  const auto number = [](const std::string& text) { return text.substr(text.rfind(' ') + 1); };
  EXPECT_NE(number(shown[2].content), number(shown[4].content));
  EXPECT_EQ(number(shown[6].content), number(shown[8].content));
  EXPECT_EQ(set.request.generate.sampling.temp, 0);
  EXPECT_EQ(set.request.generate.stop_line, "####");
}

TEST_F(ChainProtocolTest, TheSeedChoosesAndSmallerCountsAreTheFirst) {
  const auto ids = [&](size_t count, uint64_t seed) {
    ChainProtocol protocol = Protocol();
    protocol.count = count;
    protocol.seed = seed;
    std::vector<std::string> all;
    for (const HopChain& chain : Take(Make(protocol)).request.chains) all.push_back(chain.id);
    return all;
  };
  const std::vector<std::string> six = ids(6, 1);
  EXPECT_EQ(six, ids(6, 1));
  EXPECT_NE(six, ids(6, 2));
  EXPECT_EQ(std::vector<std::string>(six.begin(), six.begin() + 3), ids(3, 1));
  EXPECT_EQ(ids(0, 1).size(), 10U);
}

TEST_F(ChainProtocolTest, ExamplesAreShortAndNoneOfTheProblems) {
  const std::vector<GsmProblem> problems = Problems(3, "things");
  std::vector<GsmProblem> examples = Problems(5, "things");  // three of them are problems
  ChainProtocol protocol = Protocol();
  protocol.count = 3;
  const ChainSet set = Take(MakeChainSet(*model_, problems, examples, protocol));
  std::set<std::string> shown;
  for (const size_t i : {1, 5}) shown.insert(set.request.chains[0].messages[i].content);
  EXPECT_EQ(shown, (std::set<std::string>{"How many things are 4?", "How many things are 5?"}));
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
  expect_refused([](ChainProtocol* p) { p->hops = 0; }, StatusCode::kInvalidArgument, "1 to 16");
  expect_refused([](ChainProtocol* p) { p->predict = 4000; }, StatusCode::kOutOfRange, "--predict");
  TinyModelSpec spec;
  spec.chat_template = "";
  model_ = LoadTiny(spec, "plain.gguf");
  expect_refused([](ChainProtocol*) {}, StatusCode::kUnsupported, "template");
}

}  // namespace
}  // namespace qkvshare
