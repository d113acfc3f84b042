#include "agents/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "agents/loops.h"
#include "agents/topology_file.h"
#include "base/text.h"

namespace qkvshare {
namespace {

// Agents by their names, in this order; edges as "a,b>c" or, leading back, "b>a*3". Each edge is on a line of its own,
// the first on line 2.
std::string FileOf(const std::string& names, const std::vector<std::string>& edges, const std::string& more = "") {
  std::string text = "{agents: {";
  for (const std::string& name : Split(names, ' ')) text += fmt::format("{}: {{prompt: p{}}}, ", name, more);
  text += "}, edges: [\n";
  for (const std::string& edge : edges) {
    const size_t arrow = edge.find('>');
    const size_t star = std::min(edge.find('*'), edge.size());
    text += "{from: [" + edge.substr(0, arrow) + "], to: " + edge.substr(arrow + 1, star - arrow - 1);
    if (star < edge.size()) text += ", rounds: " + edge.substr(star + 1);
    text += "},\n";
  }
  return text + "]}";
}

struct Made {
  Topology topology;
  Schedule schedule;
};

Made Make(const std::string& text) {
  const Result<Topology> topology = ParseTopology(text, "t");
  EXPECT_TRUE(topology) << topology.status().message();
  if (!topology) return {};
  const Result<Schedule> schedule = MakeSchedule(*topology);
  EXPECT_TRUE(schedule) << schedule.status().message();
  return {*topology, schedule ? *schedule : Schedule()};
}

// "a | b(a) c(a) | d(b,c)": turns, what each takes, levels.
std::string Text(const Schedule& schedule) {
  std::string text;
  size_t level = 0;
  for (const Turn& turn : schedule.turns) {
    for (; level < turn.level; ++level) text += " |";
    text += (text.empty() ? "" : " ") + turn.name;
    for (size_t i = 0; i < turn.takes.size(); ++i) text += (i == 0 ? "(" : ",") + schedule.turns[turn.takes[i]].name;
    text += turn.takes.empty() ? "" : ")";
  }
  return text;
}

std::string Turns(const std::string& names, const std::vector<std::string>& edges) {
  return Text(Make(FileOf(names, edges)).schedule);
}

std::string ErrorOf(const std::string& names, const std::vector<std::string>& edges) {
  const Result<Topology> topology = ParseTopology(FileOf(names, edges), "t");
  EXPECT_TRUE(topology) << topology.status().message();
  if (!topology) return "";
  const Result<Schedule> schedule = MakeSchedule(*topology);
  return schedule ? Text(*schedule) : schedule.status().message();
}

TEST(ScheduleTest, GraphsWithoutLoops) {
  EXPECT_EQ(Turns("a", {}), "a");
  EXPECT_EQ(Turns("a b c", {"a>b", "b>c"}), "a | b(a) | c(b)");
  EXPECT_EQ(Turns("c b a", {"a>b", "b>c"}), "a | b(a) | c(b)");
  EXPECT_EQ(Turns("a b c d", {"a>b", "a>c", "a>d"}), "a | b(a) c(a) d(a)");
  EXPECT_EQ(Turns("a b c d", {"c,a,b>d"}), "a b c | d(c,a,b)");
  EXPECT_EQ(Turns("a b c d", {"a>b", "a>c", "b,c>d"}), "a | b(a) c(a) | d(b,c)");
  EXPECT_EQ(Turns("a b c", {"b>c", "a>c"}), "a b | c(b,a)");  // two starts
  EXPECT_EQ(Turns("a b c", {"a>b", "b>c", "a>c"}), "a | b(a) | c(b,a)");
}

TEST(ScheduleTest, GivesIsTheOtherSideOfTakes) {
  const Schedule schedule = Make(FileOf("a b c d", {"a>b", "a>c", "b,c>d"})).schedule;
  EXPECT_EQ(schedule.turns[0].gives, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(schedule.turns[1].gives, std::vector<size_t>{3});
  EXPECT_TRUE(schedule.turns[3].gives.empty());
}

TEST(ScheduleTest, LoopsRunInRounds) {
  EXPECT_EQ(Turns("a", {"a>a*3"}), "a.1 | a.2(a.1) | a.3(a.2)");
  EXPECT_EQ(Turns("a b", {"a>b", "b>a*1"}), "a | b(a)");
  EXPECT_EQ(Turns("a b", {"a>b", "b>a*2"}), "a.1 | b.1(a.1) | a.2(b.1) | b.2(a.2)");
  // What comes before takes part in each round, what comes after takes the last one.
  EXPECT_EQ(Turns("r w c e", {"r>w", "w>c", "c>w*2", "w,c>e"}),
            "r | w.1(r) | c.1(w.1) | w.2(r,c.1) | c.2(w.2) | e(w.2,c.2)");
  // The example of docs/agents.md.
  EXPECT_EQ(
      Turns("reader critic writer", {"reader>critic", "reader,critic>writer", "writer>critic*2"}),
      "reader | critic.1(reader) | writer.1(reader,critic.1) | critic.2(reader,writer.1) | writer.2(reader,critic.2)");
  // A branch beside a loop does not wait for it.
  EXPECT_EQ(Turns("s a b x", {"s>a", "a>b", "b>a*2", "s>x"}), "s | a.1(s) x(s) | b.1(a.1) | a.2(s,b.1) | b.2(a.2)");
  // Of several ways through a loop all are gone.
  EXPECT_EQ(Turns("a b c d", {"a>b", "a>c", "b,c>d", "d>a*2"}),
            "a.1 | b.1(a.1) c.1(a.1) | d.1(b.1,c.1) | a.2(d.1) | b.2(a.2) c.2(a.2) | d.2(b.2,c.2)");
}

TEST(ScheduleTest, LoopsHoldLoops) {
  EXPECT_EQ(Turns("a b c", {"a>b", "b>b*2", "b>c", "c>a*2"}),
            "a.1 | b.1(a.1) | b.2(a.1,b.1) | c.1(b.2) | a.2(c.1) | b.3(a.2) | b.4(a.2,b.3) | c.2(b.4)");
  // With one first agent: the outer loop's card is there in each round of the inner one.
  EXPECT_EQ(
      Turns("a b c", {"a>b", "b>a*2", "b>c", "c>a*2"}),
      "a.1 | b.1(a.1) | a.2(b.1) | b.2(a.2) | c.1(b.2) | a.3(c.1) | b.3(a.3) | a.4(b.3,c.1) | b.4(a.4) | c.2(b.4)");
  // One after the other.
  EXPECT_EQ(Turns("a b", {"a>a*2", "a>b", "b>b*2"}), "a.1 | a.2(a.1) | b.1(a.2) | b.2(a.2,b.1)");
}

TEST(ScheduleTest, GraphsThatCannotRunAreRefusedByTheirPlace) {
  const std::string advice =
      " is a cycle without an end; give the edge that leads back 'rounds', as often as the loop is "
      "to run";
  EXPECT_EQ(ErrorOf("a b", {"a>b", "b>a"}), "t:3:1: no agent can start: a -> b -> a" + advice);
  EXPECT_EQ(ErrorOf("a", {"a>a"}), "t:2:1: no agent can start: a -> a" + advice);
  EXPECT_EQ(ErrorOf("s a b z", {"s>a", "b>a", "a>b", "b>z"}), "t:4:1: b -> a -> b" + advice);
  EXPECT_EQ(ErrorOf("a b c", {"a>b"}),
            "t:1:43: agent 'c' cannot be reached, and hands to no one; give it an edge, or leave it out");
  const std::string ahead = "'rounds' is of an edge that leads back, but no way leads from 'b' to 'a'; leave it out";
  EXPECT_EQ(ErrorOf("a b", {"a>b*2"}), "t:2:1: " + ahead);
  EXPECT_EQ(ErrorOf("a b c", {"a>c", "c>b", "a>b*2"}), "t:4:1: " + ahead);
  EXPECT_EQ(
      ErrorOf("a b c", {"a>b", "b>c", "b>a*2", "c>b*2"}),
      "t:5:1: this loop and that of line 4 overlap, and neither holds the other; lead one of them back further, or "
      "less far");
  EXPECT_EQ(ErrorOf("a b c d", {"a>b", "b>a*2", "c>d", "d>c*2", "a>d", "c>b"}),
            "t:5:1: this loop and others wait for each other's cards, so that none can run; take out an edge between "
            "them");
}

TEST(ScheduleTest, SizesHaveLimits) {
  EXPECT_EQ(ErrorOf("a b c", {"a>b", "b>c", "a>a*100", "c>a*1000"}),
            "t:4:1: with this loop there are more than 10000 turns; lower 'rounds'");
  std::string names;
  std::vector<std::string> edges;
  for (size_t i = 0; i <= kMaxLoops; ++i) {
    names += (i == 0 ? "a" : " a") + std::to_string(i);
    if (i > 0) edges.push_back("a" + std::to_string(i - 1) + ">a" + std::to_string(i));
    if (i < kMaxLoops) edges.push_back("a" + std::to_string(i) + ">a0*1");
  }
  EXPECT_EQ(Make(FileOf(names, edges)).schedule.turns.size(), kMaxLoops + 1);
  edges.push_back("a" + std::to_string(kMaxLoops) + ">a0*1");
  EXPECT_NE(ErrorOf(names, edges).find("more than 100 edges with 'rounds'"), std::string::npos);
}

std::string Readers(const Made& made, size_t turn) {
  std::string text;
  for (const SegmentReader& reader : ReadersOf(made.topology, made.schedule, turn)) {
    text += (text.empty() ? "" : " ") + reader.agent + "@" + std::to_string(reader.distance);
  }
  return text;
}

TEST(ScheduleTest, ReadersAreThoseThatACardReaches) {
  const Made diamond = Make(FileOf("a b c d e", {"a>b", "b>c", "a>d", "c,d>e"}));
  EXPECT_EQ(Readers(diamond, 0), "b@1 d@1 c@2 e@2");
  EXPECT_EQ(Readers(diamond, 1), "c@1 e@2");
  EXPECT_EQ(Readers(diamond, 4), "");
  // In a loop an agent reads what it has written, until the last round.
  const Made loop = Make(FileOf("a b", {"a>b", "b>a*2"}));
  EXPECT_EQ(Readers(loop, 0), "b@1 a@2");
  EXPECT_EQ(Readers(loop, 2), "b@1");
  EXPECT_EQ(Readers(loop, 3), "");
}

TEST(ScheduleTest, WhoSharesInPartHandsNothingOfOthersOn) {
  const Made made = Make(FileOf("a b c", {"a>b", "b>c"}, ", shares: user"));
  EXPECT_EQ(Readers(made, 0), "b@1");
  EXPECT_EQ(Readers(made, 1), "c@1");
}

TEST(ScheduleTest, ExamplesCanRun) {
  size_t examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QKV_SOURCE_DIR "/examples/agents")) {
    if (entry.path().extension() != ".yaml") continue;
    ++examples;
    const Result<Topology> topology = ReadTopology(entry.path());
    ASSERT_TRUE(topology) << topology.status().message();
    EXPECT_FALSE(topology->model.empty());
    const Result<Schedule> schedule = MakeSchedule(*topology);
    ASSERT_TRUE(schedule) << schedule.status().message();
    EXPECT_GE(schedule->turns.size(), 5U);
  }
  EXPECT_GE(examples, 3U);
}

}  // namespace
}  // namespace qkvshare
