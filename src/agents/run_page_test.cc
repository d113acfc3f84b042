#include "agents/run_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/run_page_graph.h"
#include "agents/topology_file.h"
#include "base/file.h"

namespace qkvshare {
namespace {

// A run that never was: what RunPage is given.
struct Story {
  Topology topology;
  Schedule schedule;
  RunRecord run;
  std::vector<TurnTokens> tokens;

  std::string Html() const { return RunPage(topology, schedule, run, tokens); }
};

constexpr std::string_view kAnswer =
    " The keeper mended the lamp in March, after the storm had broken two panes; the cook lent him her ladder. Nobody "
    "else was on the island then, and the boat came only in April.\n\nSo the log can\u2019t be right: it names four.";

// Words with the space before them, and line ends on their own.
std::vector<std::string> Pieces(std::string_view text) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts = i == 0 || text[i] == ' ' || text[i] == '\n' || text[i - 1] == '\n' ||
                        (std::ispunct(static_cast<unsigned char>(text[i])) != 0 && text[i] != '\'');
    if (starts) pieces.emplace_back();
    pieces.back() += text[i];
  }
  return pieces;
}

// Exact at the start, and wider here and there where the policy is not uniform.
Level MadeUpLevel(size_t token, bool start, bool uniform) {
  if (start && token < 4) return kExactLevel;
  if (uniform) return {4, 4};
  const size_t hash = token * 2654435761U % 97;
  return hash < 14   ? Level{2, 2}
         : hash < 36 ? Level{4, 2}
         : hash < 74 ? Level{4, 4}
         : hash < 90 ? Level{8, 4}
                     : Level{8, 8};
}

void AddTokens(const std::string& role, std::string_view text, TurnTokens* tokens) {
  const std::vector<std::string> pieces = Pieces(text);
  if (pieces.empty()) return;
  tokens->texts.insert(tokens->texts.end(), pieces.begin(), pieces.end());
  tokens->segments.push_back({role, static_cast<uint32_t>(pieces.size())});
}

TurnTokens MadeUpTokens(const TurnRecord& turn, bool start, bool uniform) {
  TurnTokens tokens;
  AddTokens("user", "<|im_start|>user\n" + turn.prompt + "<|im_end|>\n", &tokens);
  AddTokens("generated", turn.text, &tokens);
  for (size_t i = 0; i < tokens.texts.size(); ++i) tokens.levels.push_back(MadeUpLevel(i, start, uniform));
  return tokens;
}

void AddStages(TurnRecord* turn) {
  const auto tokens = [](uint32_t count, int64_t us) { return static_cast<int64_t>(count) * us; };
  if (turn->taken_tokens > 0) turn->stages = {{"open", 900 + turn->taken_tokens / 4}, {"attach", 310}};
  turn->stages.insert(turn->stages.begin() + (turn->stages.empty() ? 0 : 1), {"context", 41'000});
  turn->stages.emplace_back("prefill", tokens(turn->read_tokens, 4100));
  if (turn->generated_tokens > 0) {
    turn->stages.emplace_back("first_token", 240);
    turn->stages.emplace_back("generate", tokens(turn->generated_tokens, 22'000));
  }
  const uint32_t own = turn->read_tokens + turn->generated_tokens;
  turn->stages.insert(turn->stages.end(), {{"plan", 2000}, {"quantize", tokens(own, 95)}, {"write", 3100}});
  for (const auto& [stage, us] : turn->stages) {
    turn->ttft_us += stage == "open" || stage == "attach" || stage == "prefill" || stage == "first_token" ? us : 0;
  }
}

// What one turn of a schedule might have done, after those before it.
void Tell(size_t index, Story* story) {
  const Turn& turn = story->schedule.turns[index];
  const Agent& agent = story->topology.agents[turn.agent];
  TurnRecord record;
  record.turn = turn.name;
  record.agent = agent.name;
  record.prompt = agent.prompt;
  if (agent.predict > 0) record.text = kAnswer.substr(0, kAnswer.rfind(' ', agent.predict * 2));
  record.outcome = agent.predict == 0 ? Outcome::kRead : index % 3 == 2 ? Outcome::kLimit : Outcome::kStopped;
  for (const size_t sender : turn.takes) {
    const TurnRecord& from = story->run.turns[sender];
    std::vector<HandedCard> chain = from.taken;
    chain.push_back(from.card);
    for (const HandedCard& card : chain) {
      if (std::find(record.taken.begin(), record.taken.end(), card) != record.taken.end()) continue;
      record.taken.push_back(card);
      record.taken_tokens += card.tokens;
    }
    record.taken_bytes += from.card_bytes;
  }
  TurnTokens tokens = MadeUpTokens(record, turn.takes.empty(), agent.policy == Policy::kUniform);
  const auto own = static_cast<uint32_t>(tokens.texts.size());
  record.generated_tokens = tokens.segments.size() > 1 ? tokens.segments[1].tokens : 0;
  record.read_tokens = own - record.generated_tokens;
  record.card = {turn.name + ".card", std::string(60, 'a') + std::to_string(1000 + index), own};
  record.gives = {record.card};
  record.card_bytes = own * 1650 + 900;
  record.code_bits = agent.budget.bits;
  record.policy = PolicyName(agent.policy);
  if (agent.policy == Policy::kTopology) record.features = {"prior", "anchors"};
  record.mode = turn.takes.empty() ? "prefill" : "fused";
  record.worker = agent.placement == Placement::kWorker;
  for (uint32_t i = 0; i < 12 && record.taken_tokens > 0; ++i) {
    tokens.anchors.push_back({i * 131 % (record.taken_tokens + own), 0.002f * static_cast<float>(i + 1)});
  }
  AddStages(&record);
  story->run.total_us += 60'000;
  for (const auto& [stage, us] : record.stages) story->run.total_us += us;
  story->run.turns.push_back(std::move(record));
  story->tokens.push_back(std::move(tokens));
}

Story StoryOf(const Result<Topology>& topology) {
  Story story;
  EXPECT_TRUE(topology) << topology.status().message();
  if (!topology) return story;
  story.topology = *topology;
  story.schedule = MakeSchedule(story.topology).value();
  story.run.topology = "folder/" + std::filesystem::path(topology->file).filename().string();
  story.run.model = topology->model.empty() ? "model" : topology->model;
  story.run.folder = "t.run";
  story.run.prefill_us_per_token = 4100;
  for (size_t i = 0; i < story.schedule.turns.size(); ++i) Tell(i, &story);
  return story;
}

Story StoryOf(const std::string& text) { return StoryOf(ParseTopology(text, "t.yaml")); }

constexpr const char* kLoop =
    "{model: m, agents: {reader: {prompt: Read., predict: 0}, writer: {prompt: Write., policy: topology, bits: 5},"
    "critic: {prompt: Find fault., placement: worker}, editor: {prompt: Print.}}, edges: ["
    "{from: reader, to: writer}, {from: [reader, writer], to: critic}, {from: critic, to: writer, rounds: 2},"
    "{from: [reader, critic], to: editor}]}";

// A chain of turns, or so many that start.
std::string Many(size_t turns, bool chain) {
  std::string agents, edges;
  for (size_t i = 0; i < turns; ++i) {
    agents += "a" + std::to_string(i) + ": {prompt: p}, ";
    if (i > 0) edges += "{from: a" + std::to_string(chain ? i - 1 : 0) + ", to: a" + std::to_string(i) + "}, ";
  }
  return "{agents: {" + agents + "}, edges: [" + edges + "]}";
}

size_t Count(const std::string& text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

// The text between two marks, the first of their kind.
std::string Between(const std::string& text, const std::string& from, const std::string& to) {
  const size_t start = text.find(from);
  if (start == std::string::npos) return "nothing";
  return text.substr(start + from.size(), text.find(to, start + from.size()) - start - from.size());
}

// What is wrong with the tags of a page: none left open, none closed that is not open, attributes in quotes, ids unique
// and links to ids that are there.
std::string Malformed(const std::string& html) {
  const std::string_view end_of_style = "</style>";  // before it are only the page's own words
  std::vector<std::string> open = {"html", "head"}, ids, links;
  size_t at = html.find(end_of_style);
  if (!html.starts_with("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n") || at == std::string::npos) return "no start";
  for (at = html.find('<', at + end_of_style.size()); at != std::string::npos; at = html.find('<', at)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag does not end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a tag within <" + tag + ">";
    if (Count(tag, "\"") != 2 * Count(tag, "=\"")) return "<" + tag + "> has odd quotes";
    if (const std::string id = Between(tag, " id=\"", "\""); id != "nothing") ids.push_back(id);
    if (const std::string link = Between(tag, "href=\"#", "\""); link != "nothing") links.push_back(link);
    const std::string name = tag.substr(0, tag.find(' '));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "<" + tag + "> closes what is not open";
      open.pop_back();
    } else if (name != "br" && tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  if (!open.empty()) return "<" + open.back() + "> is not closed";
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) return "an id is there twice";
  for (const std::string& link : links) {
    if (!std::binary_search(ids.begin(), ids.end(), link)) return "nothing is at #" + link;
  }
  return "";
}

TEST(RunPageTest, PagesAreWellFormed) {
  for (const std::string& text : {std::string(kLoop), Many(1, true), Many(40, false), Many(300, true)}) {
    EXPECT_EQ(Malformed(StoryOf(text).Html()), "");
  }
}

TEST(RunPageTest, NeedsNothingElse) {
  const std::string html = StoryOf(kLoop).Html();
  for (const char* what : {"<script", "http:", "https:", "src=", "@import", "@font-face", "<link", "<img", "url(\""}) {
    EXPECT_EQ(html.find(what), std::string::npos) << what;
  }
  EXPECT_NE(html.find("content=\"default-src 'none'; style-src 'unsafe-inline'\""), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(RunPageTest, TableHasEachTurn) {
  Story story = StoryOf(kLoop);
  TurnRecord& critic = story.run.turns[2];
  ASSERT_EQ(critic.turn, "critic.1");
  critic.taken_tokens = 1940;
  critic.read_tokens = 20;
  critic.generated_tokens = 48;
  critic.outcome = Outcome::kFull;
  critic.card_bytes = 123'456;
  critic.code_bits = 4.125;
  critic.ttft_us = 98'700;
  critic.resumed = true;
  story.run.prefill_us_per_token = 1000;
  EXPECT_NE(
      story.Html().find(
          "<tr><td><a href=\"#turn-2\">critic.1</a></td><td>1,940</td><td>20</td><td>48</td><td class=\"text\">full"
          "</td><td>123.5 kB</td><td>4.12</td><td>98.7 ms</td><td>1.94 s</td>"
          "<td class=\"text\">fused, worker, done before</td></tr>"),
      std::string::npos);
  EXPECT_EQ(Count(story.Html(), "<tr><td>"), 6U);
  story.run.prefill_us_per_token = 0;  // not known
  EXPECT_EQ(story.Html().find("1.94 s"), std::string::npos);
}

TEST(RunPageTest, GraphHasEachTurnAndHandOver) {
  const Story story = StoryOf(kLoop);
  const std::string svg = Between(story.Html(), "<svg", "</svg>");
  EXPECT_EQ(Count(svg, "<rect"), 6U);
  EXPECT_EQ(Count(svg, "class=\"node worker\""), 2U);
  size_t takes = 0;
  for (const Turn& turn : story.schedule.turns) takes += turn.takes.size();
  EXPECT_EQ(Count(svg, "marker-end"), takes);
  EXPECT_EQ(Count(svg, "class=\"label\""), takes);
  EXPECT_NE(svg.find(">writer.2</text>"), std::string::npos);
}

TEST(RunPageTest, GraphsOfManyTurnsAreLeftOut) {
  EXPECT_NE(StoryOf(Many(40, true)).Html().find("<svg"), std::string::npos);
  const std::string html = StoryOf(Many(41, true)).Html();
  EXPECT_EQ(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("41 turns are too many for a drawing"), std::string::npos);
}

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

std::vector<Box> BoxesOf(const std::string& svg) {
  std::vector<Box> boxes;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) {
    const std::string tag = svg.substr(at, svg.find('>', at) - at);
    const auto number = [&](const char* key) { return std::stod(Between(tag, std::string(key) + "=\"", "\"")); };
    boxes.push_back({number(" x"), number(" y"), number(" width"), number(" height")});
  }
  return boxes;
}

TEST(RunPageGraphTest, NoTurnLiesOnAnotherAndAllAreWithin) {
  for (const std::string& text : {std::string(kLoop), Many(1, true), Many(12, true), Many(40, false)}) {
    const std::string html = StoryOf(text).Html();
    const std::string svg = Between(html, "<svg", "</svg>");
    const std::string size = Between(svg, "viewBox=\"0 0 ", "\"");
    const double right = std::stod(size), bottom = std::stod(size.substr(size.find(' ')));
    const std::vector<Box> boxes = BoxesOf(svg);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const Box& a = boxes[i];
      EXPECT_TRUE(a.x >= 0 && a.y >= 0 && a.x + a.width <= right && a.y + a.height <= bottom);
      for (size_t k = 0; k < i; ++k) {
        const Box& b = boxes[k];
        const bool apart = a.x + a.width < b.x || b.x + b.width < a.x || a.y + a.height < b.y || b.y + b.height < a.y;
        EXPECT_TRUE(apart) << i << " and " << k;
      }
    }
  }
}

TEST(RunPageGraphTest, ChainsAreStraightAndWhatPassesATurnGoesAroundIt) {
  const std::vector<Box> chain = BoxesOf(GraphSvg({{0, {}, "a"}, {1, {0}, "b"}, {2, {1}, "c"}}));
  ASSERT_EQ(chain.size(), 3U);
  EXPECT_EQ(chain[0].y, chain[1].y);
  EXPECT_EQ(chain[0].y, chain[2].y);
  const std::string svg = GraphSvg({{0, {}, "a"}, {1, {0}, "b"}, {2, {0, 1}, "c"}});
  const std::vector<Box> boxes = BoxesOf(svg);
  const size_t end = svg.find('H', svg.find("</defs>"));  // of the only line that is straight
  ASSERT_NE(end, std::string::npos);
  const double y = std::stod(svg.substr(svg.rfind(' ', end) + 1));
  EXPECT_TRUE(y < boxes[1].y || y > boxes[1].y + boxes[1].height);
  EXPECT_EQ(GraphSvg({}), "");
}

TEST(RunPageTest, StagesAreOnOneScale) {
  Story story = StoryOf(Many(2, true));
  story.run.turns[0].stages = {{"prefill", 3'000'000}, {"generate", 1'000'000}};
  story.run.turns[1].stages = {{"open", 10'000}, {"brew", 1'990'000}, {"write", 1}, {"write", -5}};
  const std::string html = story.Html();
  EXPECT_NE(html.find("<b class=\"st-prefill\" style=\"width:75.00%\" title=\"prefill: 3.00 s\"></b>"
                      "<b class=\"st-generate\" style=\"width:25.00%\""),
            std::string::npos);
  EXPECT_NE(
      html.find("<b class=\"st-open\" style=\"width:0.25%\" title=\"open: 10.0 ms\"></b>"
                "<b class=\"st-other\" style=\"width:49.75%\" title=\"brew: 1.99 s\"></b></div><span>2.00 s</span>"),
      std::string::npos);
  const std::string key = Between(html, "<p class=\"key\">", "</p>");
  EXPECT_EQ(Count(key, "<b class"), 5U);
  EXPECT_NE(key.find("st-other\"></b>brew <span class=\"meta\">1.99 s"), std::string::npos);
  EXPECT_NE(html.find("<i style=\"left:100.00%\">4 s</i>"), std::string::npos);
  for (TurnRecord& turn : story.run.turns) turn.stages.clear();
  EXPECT_NE(story.Html().find("No times were recorded."), std::string::npos);
}

TEST(RunPageTest, TranscriptHasWhatWasSaidAndHowItEnded) {
  Story story = StoryOf(kLoop);
  const std::string html = story.Html();
  const std::string article = Between(html, "<article id=\"turn-2\">", "</article>");
  EXPECT_NE(article.find("<h3>critic.1</h3>"), std::string::npos);
  EXPECT_NE(article.find("from <a href=\"#turn-0\">reader</a>, <a href=\"#turn-1\">writer.1</a>; read "),
            std::string::npos);
  EXPECT_NE(article.find(", reached its limit of tokens; fused; in a process of its own</p>"), std::string::npos);
  EXPECT_NE(article.find("<div class=\"said\" dir=\"auto\">Find fault.</div>"), std::string::npos);
  EXPECT_NE(article.find("<div class=\"said answer\" dir=\"auto\"> The keeper mended"), std::string::npos);
  EXPECT_EQ(Between(html, "<article id=\"turn-0\">", "</article>").find("Answer"), std::string::npos);
}

TEST(RunPageTest, LongTextsAreFoldedAndCut) {
  Story story = StoryOf(Many(2, true));
  story.run.turns[0].prompt = std::string(3000, 'x') + "end";
  story.run.turns[1].prompt = "begin" + std::string(100'000, 'y') + "\u6F22" + std::string(19'998, 'z') + "end";
  const std::string html = story.Html();
  EXPECT_NE(html.find("<details><summary>Instruction, 3.0 kB</summary>\n<div class=\"said\" dir=\"auto\">xxx"),
            std::string::npos);
  EXPECT_NE(html.find("xxxend</div>"), std::string::npos);
  EXPECT_NE(html.find(">beginyyy"), std::string::npos);
  EXPECT_NE(html.find("<p class=\"note\">80.0 kB are left out here.</p>"), std::string::npos);
  EXPECT_NE(html.find("zzzend</div>"), std::string::npos);
  EXPECT_EQ(html.find("\uFFFD"), std::string::npos);  // not cut within the character
  EXPECT_LT(html.size(), 100'000U);
}

TEST(RunPageTest, EachTokenIsOnItsWidth) {
  Story story = StoryOf(Many(1, true));
  TurnTokens& tokens = story.tokens[0];
  tokens.texts = {"<|im_start|>", "user", "\n", " caf", "\xC3", "\xA9", " <b>"};
  tokens.levels = {kExactLevel, {4, 4}, {4, 4}, {8, 4}, {2, 2}, {2, 2}, {8, 16}};
  tokens.segments = {{"system", 2}, {"user", 4}};
  const std::string map = Between(story.Html(), "<details class=\"map\" id=\"map-0\" open>", "</details>");
  EXPECT_NE(
      map.find("<h4>system</h4><div class=\"tokens\"><span class=\"w5\" title=\"keys 16 bits, values 16 bits\">"
               "<i>&lt;|im_start|&gt;</i></span><span class=\"w2\" title=\"keys 4 bits, values 4 bits\"><i>user</i>"
               "</span></div>"),
      std::string::npos);
  EXPECT_NE(
      map.find("<h4>user</h4><div class=\"tokens\"><span class=\"w2\" title=\"keys 4 bits, values 4 bits\">"
               "<i><s>\u21B5</s>\n</i></span><span class=\"w3\" title=\"keys 8 bits, values 4 bits\"><i> caf</i></span>"
               "<span class=\"w0\" title=\"keys 2 bits, values 2 bits\"><i><s>C3</s></i><i><s>A9</s></i></span></div>"),
      std::string::npos);
  EXPECT_NE(map.find("<i> &lt;b&gt;</i>"), std::string::npos);  // of no segment
  EXPECT_NE(map.find("<span><span class=\"chip w0\" title=\"keys 2 bits, values 2 bits\">K2V2</span> 2</span> "
                     "<span><span class=\"chip w2\" title=\"keys 4 bits, values 4 bits\">K4V4</span> 2</span> "
                     "<span><span class=\"chip w3\" title=\"keys 8 bits, values 4 bits\">K8V4</span> 1</span> "
                     "<span><span class=\"chip w4\" title=\"keys 8 bits, values 16 bits\">K8V16</span> 1</span> "
                     "<span><span class=\"chip w5\" title=\"keys 16 bits, values 16 bits\">exact</span> 1</span> "),
            std::string::npos);
}

TEST(RunPageTest, WhatWasAttendedToIsUnderlinedWhereItWasWritten) {
  Story story = StoryOf(Many(2, true));
  story.tokens[0].texts = {"zero", "one", "two"};
  story.tokens[0].levels = {{4, 4}, {4, 4}, {4, 4}};
  story.tokens[1].texts = {"three", "four"};
  story.tokens[1].levels = {{4, 4}, {8, 4}};
  story.run.turns[0].card.tokens = 3;
  story.run.turns[1].taken = {story.run.turns[0].card};
  story.run.turns[1].taken[0].tokens = 2;  // its first tokens only
  story.tokens[0].anchors = {{1, 0.01f}};
  story.tokens[1].anchors = {{1, 0.25f}, {3, 0.5f}, {4, 0.5f}, {UINT32_MAX, 0.5f}};
  const std::string html = story.Html();
  EXPECT_NE(html.find("<u title=\"keys 4 bits, values 4 bits; 25% of the attention of a1\">one</u>"),
            std::string::npos);
  EXPECT_NE(html.find("<u title=\"keys 8 bits, values 4 bits; 50% of the attention of a1\">four</u>"),
            std::string::npos);
  EXPECT_EQ(Count(html, "<u title"), 2U);
  EXPECT_NE(html.find("<u>Underlined</u>"), std::string::npos);
  for (TurnTokens& tokens : story.tokens) tokens.anchors.clear();
  EXPECT_EQ(story.Html().find("<u"), std::string::npos);
}

TEST(RunPageTest, LongMapsShowBothEnds) {
  Story story = StoryOf(Many(2, true));
  for (TurnTokens& tokens : story.tokens) tokens.anchors.clear();
  story.tokens[0].texts.assign(9000, " x");
  story.tokens[0].texts[1999] = " head";
  story.tokens[0].texts[2000] = " gone";
  story.tokens[0].texts[6999] = " gone";
  story.tokens[0].texts[7000] = " tail";
  story.tokens[0].levels.assign(9000, {4, 4});
  story.tokens[0].segments = {{"system", 5}, {"user", 8900}, {"generated", 95}};
  const std::string map = Between(story.Html(), "id=\"map-0\">", "</details>");
  EXPECT_EQ(Count(map, "<i>"), 4000U);
  EXPECT_NE(map.find("<i> head</i></span></div><p class=\"note\">5,000 tokens are left out here.</p>"
                     "<div class=\"tokens\"><span class=\"w2\" title=\"keys 4 bits, values 4 bits\"><i> tail</i>"),
            std::string::npos);
  EXPECT_EQ(map.find("gone"), std::string::npos);
  EXPECT_NE(map.find("K4V4</span> 9,000</span> "), std::string::npos);
  // A cut that takes whole segments with it.
  story.tokens[0].segments = {{"a", 2000}, {"b", 5000}, {"c", 2000}};
  const std::string cut = Between(story.Html(), "id=\"map-0\">", "</details>");
  EXPECT_EQ(Count(cut, "<i>"), 4000U);
  EXPECT_EQ(Count(cut, "5,000 tokens are left out here."), 1U);
}

TEST(RunPageTest, NothingOfATextIsMarkup) {
  const std::string evil = std::string("<script>\"'&\x1B\x80</b><!--") + '\0' + "--></style></svg>\xFF\xC3";
  Story story = StoryOf(kLoop);
  story.run.topology = evil;
  story.run.model = story.run.folder = evil;
  story.topology.file = story.topology.model = evil;
  for (Agent& agent : story.topology.agents) agent.name = agent.prompt = agent.system = evil;
  for (size_t i = 0; i < story.run.turns.size(); ++i) {
    TurnRecord& turn = story.run.turns[i];
    turn.turn = story.schedule.turns[i].name = evil + std::to_string(i);
    turn.agent = turn.prompt = turn.text = turn.mode = turn.reason = turn.policy = evil;
    turn.features = {evil, evil};
    turn.card.path = turn.card.id = evil + std::to_string(i);
    turn.stages.emplace_back(evil, 5'000'000);
    for (std::string& text : story.tokens[i].texts) text = evil;
    for (TurnTokens::Segment& segment : story.tokens[i].segments) segment.role = evil;
  }
  const std::string html = story.Html();
  EXPECT_EQ(Malformed(html), "");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<!--"), std::string::npos);
  for (const char bad : {'\0', '\x1B', '\xFF', '\r'}) EXPECT_EQ(html.find(bad), std::string::npos);
  EXPECT_GT(Count(html, "&lt;script&gt;"), 50U);
}

TEST(RunPageTest, RunsThatAreNotCompleteAndRecordsWithoutTokens) {
  Story story = StoryOf(kLoop);
  story.run.turns.resize(2);
  story.tokens.resize(1);
  const std::string html = story.Html();
  EXPECT_EQ(Malformed(html), "");
  EXPECT_NE(html.find("The run is not complete: 2 of 6 turns are done."), std::string::npos);
  EXPECT_EQ(Count(html, " undone\""), 4U);
  EXPECT_EQ(Count(html, "<details class=\"map\""), 1U);
  story.run.turns.clear();
  story.tokens.clear();
  EXPECT_EQ(Malformed(story.Html()), "");
  EXPECT_NE(story.Html().find("There are no cards to show."), std::string::npos);
  // A record that is of no turn of the schedule.
  story = StoryOf(kLoop);
  story.run.turns[1].turn = "stranger";
  EXPECT_EQ(Malformed(story.Html()), "");
}

TEST(RunPageTest, PagesOfBigRunsStaySmall) {
  Story story = StoryOf(Many(300, false));
  const TurnRecord turn = story.run.turns.back();
  for (size_t i = 0; i < 300; ++i) {
    story.run.turns[i].prompt = std::string(20'000, '<');
    story.tokens[i].anchors.clear();
    story.tokens[i].texts.assign(2000, "\u6F22\u6F22");
    story.tokens[i].levels.clear();
    for (size_t k = 0; k < 2000; ++k) story.tokens[i].levels.push_back(k % 2 == 0 ? Level{4, 4} : Level{4, 2});
  }
  while (story.run.turns.size() < 10'000) story.run.turns.push_back(turn);
  const std::string html = story.Html();
  EXPECT_EQ(Malformed(html), "");
  EXPECT_NE(html.find("Shown are the first 2,000 turns; the report of --json has all 10,000."), std::string::npos);
  EXPECT_NE(html.find("Shown are the first 200 turns; the report of --json has all 10,000."), std::string::npos);
  EXPECT_EQ(Count(html, "<article"), 200U);
  EXPECT_EQ(Count(html, "<i>"), 40'000U);
  EXPECT_LT(html.size(), 8'000'000U) << "a page that a browser opens at once";
}

// Pages to look at: QKV_RUN_PAGES names a folder.
TEST(RunPageTest, PagesToLookAt) {
  const char* folder = std::getenv("QKV_RUN_PAGES");
  if (folder == nullptr) GTEST_SKIP() << "QKV_RUN_PAGES is not set";
  const auto write = [&](const std::string& name, const Story& story) {
    std::ofstream(std::filesystem::path(folder) / (name + ".html")) << story.Html();
  };
  for (const char* name : {"map_reduce", "writer_critic_editor", "gsm8k_chain"}) {
    write(name, StoryOf(ReadTopology(std::string(QKV_SOURCE_DIR) + "/examples/agents/" + name + ".yaml")));
  }
  write("loop", StoryOf(kLoop));
  write("chain_40", StoryOf(Many(40, true)));
  write("fan_40", StoryOf(Many(40, false)));
  Story unfinished = StoryOf(kLoop);
  unfinished.run.turns.resize(3);
  write("unfinished", unfinished);
}

}  // namespace
}  // namespace qkvshare
