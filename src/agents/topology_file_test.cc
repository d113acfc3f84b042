#include "agents/topology_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

Result<std::string> NoFile(const std::string& path) { return Status(StatusCode::kNotFound, "cannot open " + path); }

std::string ErrorOf(const std::string& text) {
  const Result<Topology> topology = ParseTopology(text, "t.yaml", NoFile);
  if (topology) return "none";
  EXPECT_EQ(topology.status().code(), StatusCode::kInvalidArgument) << topology.status().message();
  return topology.status().message();
}

Topology Parse(const std::string& text) {
  const Result<Topology> topology = ParseTopology(text, "t.yaml", NoFile);
  EXPECT_TRUE(topology) << topology.status().message();
  return topology ? *topology : Topology();
}

// The example of docs/agents.md.
constexpr const char* kExample = R"(
model: qwen2.5-coder-0.5b
context: 4096
defaults: {bits: 4, predict: 128, temp: 0}
inputs:
  report: {text: It rained.}
agents:
  reader:
    system: You read reports and answer briefly.
    prompt: "{report}"
    predict: 0
  critic:
    prompt: Name the weakest claim of the report.
    stop: ["\n\n"]
    shares: [user, generated]
  writer:
    prompt: Rewrite the summary so that the critic is content.
    placement: worker
    timeout: 120
edges:
  - {from: reader, to: critic}
  - {from: [reader, critic], to: writer, bits: 3}
  - {from: writer, to: critic, rounds: 2}
)";

TEST(TopologyFileTest, ReadsTheWholeOfIt) {
  const Topology topology = Parse(kExample);
  EXPECT_EQ(topology.file, "t.yaml");
  EXPECT_EQ(topology.model, "qwen2.5-coder-0.5b");
  EXPECT_EQ(topology.context, 4096U);
  ASSERT_EQ(topology.agents.size(), 3U);
  const Agent& reader = topology.agents[0];
  EXPECT_EQ(reader.name, "reader");
  EXPECT_EQ(reader.system, "You read reports and answer briefly.");
  EXPECT_EQ(reader.prompt, "It rained.");
  EXPECT_EQ(reader.predict, 0U);
  EXPECT_EQ(reader.sampling.temp, 0);
  EXPECT_EQ(reader.place, (Place{8, 3}));
  const Agent& critic = topology.agents[1];
  EXPECT_EQ(critic.predict, 128U);
  EXPECT_EQ(critic.stop, std::vector<std::string>{"\n\n"});
  EXPECT_EQ(critic.shares, (std::vector<std::string>{"user", "generated"}));
  EXPECT_EQ(critic.budget, (Budget{3, 0}));
  const Agent& writer = topology.agents[2];
  EXPECT_EQ(writer.placement, Placement::kWorker);
  EXPECT_EQ(writer.timeout_s, 120U);
  EXPECT_EQ(writer.budget, (Budget{4, 0}));
  ASSERT_EQ(topology.edges.size(), 3U);
  EXPECT_EQ(topology.edges[1].from, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(topology.edges[1].to, 2U);
  EXPECT_EQ(topology.edges[1].rounds, 0U);
  EXPECT_EQ(topology.edges[2].rounds, 2U);
  EXPECT_EQ(topology.edges[2].place, (Place{23, 5}));
}

TEST(TopologyFileTest, ReadsJson) {
  const Topology topology = Parse(R"({"inputs":{"q":{"text":"a\nb"}},
    "agents":{"a":{"prompt":"{q}","max_bytes":5000},"b":{"prompt":"x","probe":true,"policy":"topology","seed":7}},
    "edges":[{"from":["a"],"to":"b"}]})");
  ASSERT_EQ(topology.agents.size(), 2U);
  EXPECT_EQ(topology.agents[0].prompt, "a\nb");
  EXPECT_EQ(topology.agents[0].budget.max_bytes, 5000U);
  EXPECT_EQ(BudgetText(topology.agents[0].budget), "5000 bytes");
  EXPECT_TRUE(topology.agents[1].probe);
  EXPECT_EQ(topology.agents[1].policy, Policy::kTopology);
  EXPECT_EQ(topology.agents[1].sampling.seed, 7U);
  EXPECT_EQ(topology.edges.size(), 1U);
}

TEST(TopologyFileTest, AnAgentsOwnSettingsTakeThePlaceOfDefaults) {
  const Topology topology = Parse(
      "defaults: {max_bytes: 9000, stop: [x, y], shares: user, top_k: 3}\n"
      "agents:\n  a: {prompt: p}\n  b: {prompt: p, bits: 2.5, stop: z, shares: [generated, user, system]}\n"
      "edges: [{from: a, to: b}]\n");
  EXPECT_EQ(topology.agents[0].budget, (Budget{4, 9000}));
  EXPECT_EQ(topology.agents[0].stop.size(), 2U);
  EXPECT_EQ(topology.agents[0].shares, std::vector<std::string>{"user"});
  EXPECT_EQ(topology.agents[1].budget, (Budget{2.5, 0}));
  EXPECT_EQ(topology.agents[1].stop, std::vector<std::string>{"z"});
  EXPECT_EQ(topology.agents[1].sampling.top_k, 3);
  EXPECT_TRUE(topology.agents[1].shares.empty());  // all
}

TEST(TopologyFileTest, FillsInInputs) {
  const auto prompt = [](const std::string& text) {
    return Parse("inputs: {x: {text: '{y}'}}\nagents: {a: {prompt: '" + text + "'}}\n").agents.at(0).prompt;
  };
  EXPECT_EQ(prompt("{x}"), "{y}");  // once
  EXPECT_EQ(prompt("a{x}{x}b"), "a{y}{y}b");
  EXPECT_EQ(prompt("{{x}}"), "{x}");
  EXPECT_EQ(prompt("{{{x}}}"), "{{y}}");
}

// Each with what is wrong with it.
TEST(TopologyFileTest, ErrorsSayWhereAndWhatToDo) {
  const std::pair<const char*, const char*> cases[] = {
      {"",
       "t.yaml:1:1: expected a topology, a map of model, context, defaults, inputs, agents, edges, but found nothing"},
      {"[a]",
       "t.yaml:1:1: expected a topology, a map of model, context, defaults, inputs, agents, edges, but found a list"},
      {"model: m\n", "t.yaml:1:1: a topology needs 'agents'"},
      {"agents: {a: {prompt: p}}\nedge: []\n", "t.yaml:2:1: a topology has no 'edge'; did you mean 'edges'?"},
      {"agents: {}\n", "t.yaml:1:9: 'agents' is empty; it needs at least one, as NAME: {prompt: TEXT}"},
      {"agents: [a]\n", "t.yaml:1:9: expected a map of agents by name, but found a list"},
      {"model: [m]\nagents: {a: {prompt: p}}\n", "t.yaml:1:8: 'model' is a text, but found a list"},
      {"context: -1\nagents: {a: {prompt: p}}\n",
       "t.yaml:1:10: 'context' is a whole number from 0 to 2147483647, but found '-1'"},
      {"defaults: {prompt: p}\nagents: {a: {prompt: p}}\n",
       "t.yaml:1:12: 'defaults' has no 'prompt'; it has predict, stop, shares, temp, top_k, top_p, min_p, seed, "
       "max_bytes, bits, policy, probe, placement, timeout"},
      {"agents:\n  a b: {prompt: p}\n",
       "t.yaml:2:3: 'a b' is no name of an agent: take 1 to 64 letters, digits, '_' and '-'"},
      {"agents:\n  a: {prompt: p}\n  b: {prompt: p}\n  a: {prompt: p}\n",
       "t.yaml:4:3: 'a' is there twice, first on line 2; leave one out or rename it"},
      {"agents:\n  a:\nmodel: m\n",
       "t.yaml:2:3: expected agent 'a', a map of prompt, system, predict, stop, shares, temp, top_k, top_p, min_p, "
       "seed, "
       "max_bytes, bits, policy, probe, placement, timeout, but found nothing"},
      {"agents:\n  a: {system: s}\n", "t.yaml:2:6: agent 'a' needs 'prompt'"},
      {"agents:\n  a: {promt: s}\n", "t.yaml:2:7: agent 'a' has no 'promt'; did you mean 'prompt'?"},
      {"agents:\n  a: {prompt: ''}\n", "t.yaml:2:15: agent 'a' has an empty prompt; say what it is to do"},
      {"agents:\n  a: {prompt: }\n", "t.yaml:2:7: 'prompt' is a text, but found nothing"},
      {"agents:\n  a: {prompt: p, predict: 1.5}\n",
       "t.yaml:2:27: 'predict' is a whole number from 0 to 2147483647, but found '1.5'"},
      {"agents:\n  a: {prompt: p, predict: '1'}\n",
       "t.yaml:2:27: 'predict' is a whole number from 0 to 2147483647, but found the text \"1\""},
      {"agents:\n  a: {prompt: p, temp: nan}\n", "t.yaml:2:24: 'temp' is a number from 0 to 1000000, but found 'nan'"},
      {"agents:\n  a: {prompt: p, top_p: 1.1}\n", "t.yaml:2:25: 'top_p' is a number from 0 to 1, but found '1.1'"},
      {"agents:\n  a: {prompt: p, probe: yes}\n", "t.yaml:2:25: 'probe' is true or false, but found 'yes'"},
      {"agents:\n  a: {prompt: p, probe: true}\n",
       "t.yaml:2:25: 'probe' counts in policy topology; leave it out, or give 'policy: topology'"},
      {"agents:\n  a: {prompt: p, stop: [x, '']}\n",
       "t.yaml:2:28: 'stop' has an empty text, which would end every answer; leave it out"},
      {"agents:\n  a: {prompt: p, stop: [[x]]}\n",
       "t.yaml:2:25: 'stop' is a text or a list of texts, but found a list"},
      {"agents:\n  a: {prompt: p, stop: []}\n", "t.yaml:2:24: 'stop' is a list of 1 to 16 texts, but found a list"},
      {"agents:\n  a: {prompt: p, shares: [user, assistant]}\n",
       "t.yaml:2:33: 'shares' has roles of an agent's own segments, which are system, user and generated, but found "
       "'assistant'"},
      {"agents:\n  a: {prompt: p, shares: [user, user]}\n", "t.yaml:2:33: 'shares' has 'user' twice; leave one out"},
      {"agents:\n  a: {prompt: p, shares: system}\n",
       "t.yaml:2:26: agent 'a' shares 'system', but never has a segment of this role; leave it out of 'shares'"},
      {"agents:\n  a: {prompt: p, predict: 0, shares: generated}\n",
       "t.yaml:2:38: agent 'a' shares 'generated', but never has a segment of this role; leave it out of 'shares'"},
      {"agents:\n  a: {prompt: p, policy: best}\n",
       "t.yaml:2:26: 'policy' is one of uniform, local, topology, but found 'best'"},
      {"agents:\n  a: {prompt: p, placement: there}\n",
       "t.yaml:2:29: 'placement' is one of same, worker, but found 'there'"},
      {"agents:\n  a: {prompt: p, timeout: 9}\n",
       "t.yaml:2:27: 'timeout' counts for workers; leave it out, or give 'placement: worker'"},
      {"agents:\n  a: {prompt: p, placement: worker, timeout: 0}\n",
       "t.yaml:2:46: 'timeout' is a whole number from 1 to 604800, but found '0'"},
      {"agents:\n  a: {prompt: p, bits: 1.9}\n", "t.yaml:2:24: 'bits' is a number from 2 to 16, but found '1.9'"},
      {"agents:\n  a: {prompt: p, bits: 17}\n", "t.yaml:2:24: 'bits' is a number from 2 to 16, but found '17'"},
      {"agents:\n  a: {prompt: p, max_bytes: 0}\n",
       "t.yaml:2:29: 'max_bytes' is a whole number from 4096 to 1099511627776, but found '0'"},
      {"agents:\n  a: {prompt: p, bits: 4, max_bytes: 9}\n",
       "t.yaml:2:38: both 'bits' and 'max_bytes'; a budget is one of them"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), error) << text;
}

TEST(TopologyFileTest, ErrorsOfInputsSayWhere) {
  const auto with = [](const std::string& inputs, const std::string& prompt) {
    return ErrorOf("inputs: {" + inputs + "}\nagents: {a: {prompt: \"" + prompt + "\"}}\n");
  };
  const std::string input = "an input is {file: NAME} or {text: TEXT}, one of both";
  EXPECT_EQ(with("x: {}", "p"), "t.yaml:1:13: " + input);
  EXPECT_EQ(with("x: {file: f, text: t}", "p"), "t.yaml:1:13: " + input);
  EXPECT_EQ(with("x: t", "p"), "t.yaml:1:13: expected an input, a map of file, text, but found 't'");
  EXPECT_EQ(with("x: {file: [f]}", "p"), "t.yaml:1:20: 'file' is a text, but found a list");
  EXPECT_EQ(with("x y: {text: t}", "p"),
            "t.yaml:1:10: 'x y' is no name of an input: take 1 to 64 letters, digits, '_' and '-'");
  EXPECT_EQ(with("report: {text: t}", "{reprot}"), "t.yaml:2:22: no input is named 'reprot'; did you mean 'report'?");
  EXPECT_EQ(with("", "{x}"),
            "t.yaml:2:22: no input is named 'x'; name it under 'inputs', or write {{ and }} for braces");
  const std::string braces = "; write {NAME} for an input, {{ and }} for braces";
  EXPECT_EQ(with("", "a { b"), "t.yaml:2:22: a single '{'" + braces);
  EXPECT_EQ(with("", "a } b"), "t.yaml:2:22: a single '}'" + braces);
}

TEST(TopologyFileTest, ErrorsOfEdgesSayWhere) {
  const auto with = [](const std::string& edges) {
    return ErrorOf("agents:\n  one: {prompt: p}\n  two: {prompt: p}\n  six: {prompt: p}\nedges:\n" + edges);
  };
  EXPECT_EQ(with("  one\n"), "t.yaml:6:3: expected a list of edges, as - {from: NAME, to: NAME}, but found 'one'");
  EXPECT_EQ(with("  - one\n"),
            "t.yaml:6:5: expected an edge, a map of from, to, rounds, bits, max_bytes, but found 'one'");
  EXPECT_EQ(with("  - {from: one}\n"), "t.yaml:6:5: an edge needs 'to'");
  EXPECT_EQ(with("  - to: two\n"), "t.yaml:6:5: an edge needs 'from'");
  EXPECT_EQ(with("  - {from: one, too: two}\n"), "t.yaml:6:17: an edge has no 'too'; did you mean 'to'?");
  EXPECT_EQ(with("  - {from: one, to: tow}\n"), "t.yaml:6:21: no agent is named 'tow'; did you mean 'two'?");
  EXPECT_EQ(with("  - {from: [one, seven], to: two}\n"), "t.yaml:6:18: no agent is named 'seven'");
  EXPECT_EQ(with("  - {from: one, to: [two]}\n"), "t.yaml:6:21: 'to' is a text, but found a list");
  EXPECT_EQ(with("  - {from: [], to: two}\n"), "t.yaml:6:12: 'from' is a list of 1 to 1000 texts, but found a list");
  EXPECT_EQ(with("  - {from: one, to: two}\n  - {from: [six, one], to: two}\n"),
            "t.yaml:7:18: 'one' hands to 'two' twice; leave one out");
  EXPECT_EQ(with("  - {from: one, to: two, rounds: 0}\n"),
            "t.yaml:6:34: 'rounds' is a whole number from 1 to 1000, but found '0'");
  EXPECT_EQ(with("  - {from: [one, two], to: six, rounds: 2}\n"),
            "t.yaml:6:12: an edge with 'rounds' leads back from one agent; make an edge of each");
  EXPECT_EQ(with("  - {from: one, to: two, bits: 4, max_bytes: 5}\n"),
            "t.yaml:6:46: both 'bits' and 'max_bytes'; a budget is one of them");
  EXPECT_EQ(with("  - {from: one, to: two, bits: 1}\n"), "t.yaml:6:32: 'bits' is a number from 2 to 16, but found '1'");
  EXPECT_EQ(with("  - {from: one, to: two, bits: 4}\n  - {from: one, to: six, bits: 3}\n"),
            "t.yaml:7:5: 'one' packs once, and the edge on line 6 asks for 4 bits: 3 bits here is another budget; give "
            "both the same, or one of them");
  EXPECT_EQ(with("  - {from: one, to: two, bits: 4}\n  - {from: one, to: six, bits: 4}\n"), "none");
}

TEST(TopologyFileTest, PoliciesHaveAChoiceWithinTheirBudget) {
  const std::string agents = "agents: {a: {prompt: p, policy: local}, b: {prompt: p}}\nedges:\n- {from: a, to: b, ";
  EXPECT_EQ(Parse(agents + "bits: 3}\n").agents[0].policy, Policy::kLocal);
  EXPECT_EQ(ErrorOf(agents + "bits: 16}\n").substr(0, 36), "t.yaml:1:10: agent 'a': at this size");
  EXPECT_EQ(Parse(agents + "max_bytes: 5000}\n").agents[0].budget.max_bytes, 5000U);
}

TEST(TopologyFileTest, SystemMessagesAreForThoseWhoStart) {
  const std::string agents = "agents: {a: {prompt: p}, b: {prompt: p, system: '{{s}}'}}\nedges:\n";
  EXPECT_EQ(Parse(agents + "- {from: b, to: a}\n- {from: a, to: b, rounds: 2}\n").agents[1].system, "{s}");
  EXPECT_EQ(
      ErrorOf(agents + "- {from: a, to: b}\n"),
      "t.yaml:1:49: 'system' starts a conversation, but 'b' goes on from the card of 'a'; leave it out, or say it in "
      "the prompt");
}

TEST(TopologyFileTest, InputsAreFilesBesideIt) {
  const std::string folder = testing::TempDir() + "qkv_topology_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
    return folder + "/" + name;
  };
  const std::string path = write("t.yaml", "inputs:\n  x: {file: in.txt}\nagents: {a: {prompt: '{x}!'}}\n");
  const Result<Topology> missing = ReadTopology(path);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.status().message().find(path + ":2:13: input: cannot open " + folder + "/in.txt"), 0U)
      << missing.status().message();
  write("in.txt", "h\u00e9");
  const Result<Topology> read = ReadTopology(path);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(read->agents[0].prompt, "h\u00e9!");
  write("in.txt", "h\xe9");
  const Result<Topology> latin = ReadTopology(path);
  EXPECT_EQ(latin.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(latin.status().message().find(path + ":2:13: input: " + folder + "/in.txt: the text is not UTF-8"), 0U)
      << latin.status().message();
  EXPECT_EQ(ReadTopology(folder + "/none.yaml").status().code(), StatusCode::kNotFound);
  std::filesystem::remove_all(folder);
}

TEST(TopologyFileTest, SizesHaveLimits) {
  const auto code_of = [](const std::string& text) {
    const auto megabyte = [](const std::string&) { return Result<std::string>(std::string(1 << 20, 'x')); };
    return ParseTopology(text, "t.yaml", megabyte).status().code();
  };
  std::string agents = "agents:\n";
  for (size_t i = 0; i < kMaxAgents; ++i) agents += "  a" + std::to_string(i) + ": {prompt: p}\n";
  EXPECT_EQ(code_of(agents), StatusCode::kOk);
  EXPECT_EQ(code_of(agents + "  b: {prompt: p}\n"), StatusCode::kInvalidArgument);
  std::string prompt;
  for (size_t i = 0; i < kMaxInputBytes >> 20; ++i) prompt += "{x}";
  const std::string start = "inputs: {x: {file: f}}\nagents: {a: {prompt: '";
  EXPECT_EQ(code_of(start + prompt + "'}}\n"), StatusCode::kOk);
  EXPECT_EQ(code_of(start + prompt + "{x}'}}\n"), StatusCode::kOutOfRange);
  std::string inputs = "inputs:\n";
  for (size_t i = 0; i < kMaxInputBytes >> 20; ++i) inputs += "  x" + std::to_string(i) + ": {file: f}\n";
  EXPECT_EQ(code_of(inputs + "agents: {a: {prompt: p}}\n"), StatusCode::kOk);
  EXPECT_EQ(code_of(inputs + "  y: {text: t}\nagents: {a: {prompt: p}}\n"), StatusCode::kOutOfRange);
  EXPECT_EQ(code_of("inputs: {x: {file: f}}\nagents: {a: {system: '" + prompt + "', prompt: p}}\n"),
            StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace qkvshare
