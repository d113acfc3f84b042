#include "eval/fidelity_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

EvalPrompt Prompt() {
  EvalPrompt prompt;
  prompt.id = "p";
  prompt.context = {1, 2, 3, 4};
  prompt.segments = {{"rules", "", "", 0, 3}, {"facts", "", "", 3, 1}};
  prompt.continuations = {{"a", "question", {5}, {6}, {}, {}}, {"b", "part", {}, {6, 7}, {8}, {"facts"}}};
  return prompt;
}

FidelityArm Arm(const std::string& text) {
  const Result<FidelityArm> arm = ParseFidelityArm(text);
  EXPECT_TRUE(arm) << arm.status().message();
  return arm ? *arm : FidelityArm();
}

void ExpectRefused(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(CheckPrompts, NamesWhatIsWrong) {
  const std::vector<EvalPrompt> good = {Prompt()};
  EXPECT_TRUE(CheckPrompts(good).ok()) << CheckPrompts(good).message();
  const std::vector<std::pair<std::function<void(EvalPrompt*)>, std::string>> wrong = {
      {[](EvalPrompt* p) { p->context.clear(); }, "prompt p: its context has no tokens"},
      {[](EvalPrompt* p) { p->continuations.clear(); }, "it has no continuation"},
      {[](EvalPrompt* p) { p->segments[1].first_token = 2; }, "prompt p: "},
      {[](EvalPrompt* p) { p->continuations[0].turn.clear(); }, "continuation a: its turn has no tokens"},
      {[](EvalPrompt* p) { p->continuations[0].instruction.clear(); }, "nothing to be predicted by"},
      {[](EvalPrompt* p) { p->continuations[1].roles = {"facts", "none"}; }, "continuation b: no segment"},
      {[](EvalPrompt* p) { p->continuations[1].id = "a"; }, "two continuations have the id a"},
  };
  for (const auto& [change, part] : wrong) {
    std::vector<EvalPrompt> prompts = {Prompt()};
    change(prompts.data());
    ExpectRefused(CheckPrompts(prompts), part);
  }
  ExpectRefused(CheckPrompts({}), "no prompts");
  const std::vector<EvalPrompt> twice = {Prompt(), Prompt()};
  ExpectRefused(CheckPrompts(twice), "two prompts have the id p");
}

TEST(CheckKnows, AsksForWhatThePolicyLooksAt) {
  const EvalPrompt prompt = Prompt();
  const Continuation& told = prompt.continuations[0];
  const Continuation& part = prompt.continuations[1];
  for (const char* text : {"uniform@4", "local@4", "random@4", "exact", "floor", "cache:q8_0", "oracle@4", "topology@4",
                           "topology@4,features=attention+anchors"}) {
    EXPECT_TRUE(CheckKnows(Arm(text), prompt, told).ok()) << text;
    EXPECT_TRUE(CheckKnows(Arm(text), prompt, part).ok()) << text;
  }
  EXPECT_TRUE(CheckKnows(Arm("topology@4,features=attention+probe"), prompt, told).ok());
  ExpectRefused(CheckKnows(Arm("topology@4,features=attention+probe"), prompt, part),
                "arm topology@4,features=attention+probe, prompt p, continuation b: it has no instruction");
  ExpectRefused(CheckKnows(Arm("random@4,control_of=topology,features=attention+probe"), prompt, part),
                "no instruction");
  EvalPrompt alone = prompt;
  alone.continuations.pop_back();
  EXPECT_TRUE(CheckKnows(Arm("topology@4"), alone, told).ok());
  ExpectRefused(CheckKnows(Arm("topology@4,features=anchors"), alone, told), "no receiver before it");
  alone.continuations = {part};
  EXPECT_TRUE(CheckKnows(Arm("topology@4"), alone, part).ok());
  alone.continuations[0].roles.clear();
  ExpectRefused(CheckKnows(Arm("topology@4"), alone, alone.continuations[0]), "it would be local");
}

}  // namespace
}  // namespace qkvshare
