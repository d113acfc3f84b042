#include "agents/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "agents/html_text.h"
#include "agents/run_page_graph.h"
#include "agents/run_page_maps.h"
#include "agents/run_page_style.h"
#include "base/amounts.h"

namespace qkvshare {
namespace {

constexpr size_t kGraphTurns = 40;                                       // a bigger graph cannot be read
constexpr size_t kShownTurns = 200;                                      // with their times, texts and bit maps
constexpr size_t kTableTurns = 2000;                                     // rows of the table
constexpr size_t kPageTextBytes = size_t{1} << 20, kTextBytes = 40'000;  // of all prompts and answers, of each
constexpr size_t kOpenTextBytes = 1500;                                  // prompts up to this size are not folded
constexpr size_t kNone = SIZE_MAX;
constexpr std::string_view kUnknown = "\u2013";

// Of which the page knows colours.
constexpr std::array<std::string_view, 11> kStages = {
    "open", "attach", "context", "prefill", "first_token", "generate", "probe", "plan", "anchors", "quantize", "write"};

std::string StageClass(const std::string& stage) {
  const bool known = std::find(kStages.begin(), kStages.end(), stage) != kStages.end();
  return "st-" + (known ? stage : "other");
}

std::string StageText(std::string stage) {
  std::replace(stage.begin(), stage.end(), '_', ' ');
  return HtmlText(stage);
}

const char* OutcomeText(Outcome outcome) {
  switch (outcome) {
    case Outcome::kStopped: return "stopped by itself";
    case Outcome::kLimit: return "reached its limit of tokens";
    case Outcome::kFull: return "filled its context";
    case Outcome::kEmpty: return "generated nothing";
    case Outcome::kRead: return "only read";
  }
  return "";
}

std::string TokensText(uint64_t tokens) { return CountText(tokens) + (tokens == 1 ? " token" : " tokens"); }

int64_t StagesUs(const TurnRecord& turn) {
  int64_t us = 0;
  for (const auto& [stage, stage_us] : turn.stages) us += std::max<int64_t>(stage_us, 0);
  return us;
}

// 1, 2 or 5 times a power of ten: the least that cuts `us` into at most `parts`.
int64_t TickUs(int64_t us, int64_t parts) {
  for (int64_t tick = 1;; tick *= 10) {
    for (const int64_t step : {tick, 2 * tick, 5 * tick}) {
      if (us / step < parts || tick > INT64_MAX / 100) return step;
    }
  }
}

std::string TickText(int64_t us) {
  return us % 1000 != 0   ? fmt::format("{} \u00B5s", us)
         : us < 1'000'000 ? fmt::format("{} ms", us / 1000)
                          : fmt::format("{:g} s", static_cast<double>(us) / 1e6);
}

class Page {
 public:
  Page(const Topology& topology, const Schedule& schedule, const RunRecord& run, const std::vector<TurnTokens>& tokens)
      : topology_(topology), schedule_(schedule), run_(run), tokens_(tokens) {
    shown_ = std::min(run.turns.size(), kShownTurns);
    std::unordered_map<std::string, size_t> records;
    for (size_t i = 0; i < run.turns.size(); ++i) records.emplace(run.turns[i].turn, i);
    scheduled_.resize(run.turns.size(), kNone);
    for (size_t i = 0; i < schedule.turns.size(); ++i) {
      const auto found = records.find(schedule.turns[i].name);
      record_of_.push_back(found == records.end() ? kNone : found->second);
      if (found != records.end()) scheduled_[found->second] = i;
    }
  }

  std::string Html() const {
    const std::string title = HtmlText(std::filesystem::path(run_.topology).filename().string());
    const std::string maps = BitMaps(run_, tokens_, shown_);
    std::string out = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} \u2013 QKVShare</title>\n"
        "<style>{}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        title, kRunPageStyle, title);
    out += Header() + Table();
    out += Section("graph", "Graph", Graph());
    out += Section("times", "Stage times", Times());
    out += Section("transcript", "Transcript", Transcript());
    out += Section("maps", "Bit maps", maps.empty() ? "<p>There are no cards to show.</p>\n" : maps);
    return out + "<footer>Written by qkvshare agents run.</footer>\n</body>\n</html>\n";
  }

 private:
  static std::string Section(const char* id, const char* title, const std::string& body) {
    return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, body);
  }

  // A note where not all turns are shown, else nothing.
  std::string LeftOut(size_t shown) const {
    if (shown >= run_.turns.size()) return "";
    return fmt::format("<p class=\"note\">Shown are the first {} turns; the report of --json has all {}.</p>\n",
                       CountText(shown), CountText(run_.turns.size()));
  }

  std::string LinkTo(size_t record) const {
    const std::string name = HtmlText(run_.turns[record].turn);
    return record < shown_ ? fmt::format("<a href=\"#turn-{}\">{}</a>", record, name) : name;
  }

  std::string Header() const;
  std::string Facts() const;
  std::string Table() const;
  std::string Row(size_t record) const;
  std::string Graph() const;
  GraphNode NodeOf(size_t turn) const;
  std::string Times() const;
  std::string StageKey() const;
  std::string Bar(const TurnRecord& turn, int64_t scale_us) const;
  std::string Transcript() const;
  std::string Article(size_t record, size_t limit) const;
  std::string Senders(size_t record) const;
  std::string Reprefill(int64_t us) const {
    return run_.prefill_us_per_token > 0 && us > 0 ? FormatUs(us) : std::string(kUnknown);
  }

  const Topology& topology_;
  const Schedule& schedule_;
  const RunRecord& run_;
  const std::vector<TurnTokens>& tokens_;
  size_t shown_ = 0;
  std::vector<size_t> record_of_;  // of each turn of the schedule; kNone: it has not been done
  std::vector<size_t> scheduled_;  // the turn of each record
};

std::string Page::Header() const {
  std::string out =
      fmt::format("<p class=\"meta\">{} turns of {} agents on {}, in {}</p>\n", CountText(run_.turns.size()),
                  CountText(topology_.agents.size()), HtmlText(run_.model), FormatUs(run_.total_us));
  if (run_.turns.size() < schedule_.turns.size()) {
    out += fmt::format("<p class=\"note\">The run is not complete: {} of {} turns are done.</p>\n",
                       CountText(run_.turns.size()), CountText(schedule_.turns.size()));
  }
  return out +
         "<nav><a href=\"#summary\">Summary</a><a href=\"#graph\">Graph</a><a href=\"#times\">Stage times</a>"
         "<a href=\"#transcript\">Transcript</a><a href=\"#maps\">Bit maps</a></nav>\n</header>\n";
}

std::string Page::Facts() const {
  uint64_t taken = 0, own = 0, bytes = 0;
  int64_t ttft_us = 0, reprefill_us = 0;
  size_t takers = 0;
  for (const TurnRecord& turn : run_.turns) {
    taken += turn.taken_tokens;
    own += uint64_t{turn.read_tokens} + turn.generated_tokens;
    bytes += turn.card_bytes;
    ttft_us += turn.ttft_us;
    reprefill_us += run_.ReprefillUs(turn);
    takers += turn.taken_tokens > 0 ? 1 : 0;
  }
  const auto fact = [](const char* name, const std::string& value, const std::string& more) {
    return fmt::format("<div><dt>{}</dt><dd>{}</dd><dd>{}</dd></div>\n", name, value, more);
  };
  return "<dl class=\"facts\">\n" +
         fact("Taken over", TokensText(taken),
              fmt::format("by {} of {} turns, not prefilled", takers, run_.turns.size())) +
         fact("Read and written", TokensText(own), "by the turns themselves") +
         fact("Handed on", FormatBytes(bytes), "in the turns\u2019 cards") +
         fact("First tokens", FormatUs(ttft_us), "all turns together, from the hand-over on") +
         fact("Re-prefill", Reprefill(reprefill_us), "would have come on top, at this run\u2019s speed") + "</dl>\n";
}

std::string Page::Row(size_t record) const {
  const TurnRecord& turn = run_.turns[record];
  std::string where = HtmlText(turn.mode);
  if (turn.worker) where += ", worker";
  if (turn.resumed) where += ", done before";
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{:.2f}</td><td>{}</td>"
      "<td>{}</td><td class=\"text\">{}</td></tr>\n",
      LinkTo(record), CountText(turn.taken_tokens), CountText(turn.read_tokens), CountText(turn.generated_tokens),
      OutcomeName(turn.outcome), FormatBytes(turn.card_bytes), turn.code_bits, FormatUs(turn.ttft_us),
      Reprefill(run_.ReprefillUs(turn)), where);
}

std::string Page::Table() const {
  std::string out =
      "<section id=\"summary\">\n" + Facts() +
      "<div class=\"wide\"><table>\n<thead><tr><th>Turn</th><th>Took over,<br>tokens</th><th>Read</th><th>Wrote</th>"
      "<th class=\"text\">Ended</th><th>Handed<br>on</th><th>Bits</th><th>First<br>token</th><th>Re-prefill<br>would "
      "take"
      "</th><th class=\"text\">Mode</th></tr></thead>\n<tbody>\n";
  const size_t rows = std::min(run_.turns.size(), kTableTurns);
  for (size_t i = 0; i < rows; ++i) out += Row(i);
  out += "</tbody></table></div>\n" + LeftOut(rows);
  if (run_.prefill_us_per_token > 0) {
    out += fmt::format(
        "<p class=\"note\">Re-prefill is an estimate: the tokens taken over, at the {:.2f} ms a token that prefill "
        "took in "
        "this run. First token is from the cards\u2019 being handed over to the first token written, or the last "
        "read.</p>\n",
        run_.prefill_us_per_token / 1e3);
  }
  return out + "</section>\n";
}

GraphNode Page::NodeOf(size_t turn) const {
  const Turn& scheduled = schedule_.turns[turn];
  GraphNode node;
  node.level = scheduled.level;
  node.takes = scheduled.takes;
  node.name = scheduled.name;
  node.link = "#summary";
  node.worker = topology_.agents[scheduled.agent].placement == Placement::kWorker;
  node.done = record_of_[turn] != kNone;
  node.detail = "not done";
  node.title = scheduled.name + ": not done";
  if (!node.done) return node;
  const TurnRecord& record = run_.turns[record_of_[turn]];
  const uint64_t own = uint64_t{record.read_tokens} + record.generated_tokens;
  node.worker = record.worker;
  node.detail = (record.worker ? "worker, " : "") +
                (record.taken_tokens > 0 ? CountText(record.taken_tokens) + " + " + CountText(own) : CountText(own));
  node.title = fmt::format("{}{}: took over {}, read {}, wrote {}; {}", record.turn, record.worker ? ", a worker" : "",
                           TokensText(record.taken_tokens), CountText(record.read_tokens),
                           CountText(record.generated_tokens), OutcomeText(record.outcome));
  node.handed = FormatBytes(record.card_bytes);
  node.link = fmt::format("#turn-{}", record_of_[turn]);
  return node;
}

std::string Page::Graph() const {
  if (schedule_.turns.size() > kGraphTurns) {
    return fmt::format("<p class=\"note\">{} turns are too many for a drawing; the table above has {}.</p>\n",
                       CountText(schedule_.turns.size()), run_.turns.size() > kTableTurns ? "the first" : "them");
  }
  std::vector<GraphNode> nodes;
  bool workers = false;
  for (size_t i = 0; i < schedule_.turns.size(); ++i) {
    nodes.push_back(NodeOf(i));
    workers |= nodes.back().worker;
  }
  return "<div class=\"wide\">" + GraphSvg(nodes) +
         "</div>\n<p class=\"note\">In a turn: tokens taken over + its own. " +
         "On an arrow: bytes handed on by its sender, once for all receivers." +
         (workers ? " Dashed: a worker, in a process of its own.</p>\n" : "</p>\n");
}

std::string Page::StageKey() const {
  std::vector<std::pair<std::string, int64_t>> sums;
  for (const std::string_view stage : kStages) sums.emplace_back(stage, 0);
  for (const TurnRecord& turn : run_.turns) {
    for (const auto& [stage, us] : turn.stages) {
      auto found = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) { return sum.first == stage; });
      if (found == sums.end()) found = sums.insert(sums.end(), {stage, 0});
      found->second += std::max<int64_t>(us, 0);
    }
  }
  std::string out = "<p class=\"key\">";
  for (const auto& [stage, us] : sums) {
    if (us == 0) continue;
    out += fmt::format("<span><b class=\"{}\"></b>{} <span class=\"meta\">{}</span></span>", StageClass(stage),
                       StageText(stage), FormatUs(us));
  }
  return out + "</p>\n";
}

std::string Page::Bar(const TurnRecord& turn, int64_t scale_us) const {
  std::string out = "<div class=\"bar\">";
  for (const auto& [stage, us] : turn.stages) {
    const double percent = 100 * static_cast<double>(us) / static_cast<double>(scale_us);
    if (percent < 0.02) continue;  // less than a fifth of a pixel
    out += fmt::format("<b class=\"{}\" style=\"width:{:.2f}%\" title=\"{}: {}\"></b>", StageClass(stage), percent,
                       StageText(stage), FormatUs(us));
  }
  return out + "</div>";
}

std::string Page::Times() const {
  int64_t longest_us = 0;
  for (size_t i = 0; i < shown_; ++i) longest_us = std::max(longest_us, StagesUs(run_.turns[i]));
  if (longest_us == 0) return "<p>No times were recorded.</p>\n";
  const int64_t tick_us = TickUs(longest_us, 5);
  std::string out = StageKey() + fmt::format("<div class=\"bars\" style=\"--tick:{:.4f}%\">\n",
                                             100 * static_cast<double>(tick_us) / static_cast<double>(longest_us));
  for (size_t i = 0; i < shown_; ++i) {
    out += fmt::format("<a href=\"#turn-{}\">{}</a>{}<span>{}</span>\n", i, HtmlText(run_.turns[i].turn),
                       Bar(run_.turns[i], longest_us), FormatUs(StagesUs(run_.turns[i])));
  }
  out += "<span></span><div class=\"axis\">";
  for (int64_t us = 0; us <= longest_us; us += tick_us) {
    out += fmt::format("<i style=\"left:{:.2f}%\">{}</i>",
                       100 * static_cast<double>(us) / static_cast<double>(longest_us), us == 0 ? "0" : TickText(us));
  }
  return out + "</div><span></span>\n</div>\n" + LeftOut(shown_);
}

// Text as it was said; of a long one, both ends.
std::string Said(const std::string& text, size_t limit, const char* classes) {
  const std::string begin = fmt::format("<div class=\"{}\" dir=\"auto\">", classes);
  if (text.size() <= limit) return begin + HtmlText(text) + "</div>\n";
  const size_t head = CutBefore(text, limit / 2);
  const size_t tail = CutBefore(text, text.size() - limit / 2);
  return fmt::format("{0}{1}</div>\n<p class=\"note\">{2} are left out here.</p>\n{0}{3}</div>\n", begin,
                     HtmlText(std::string_view(text).substr(0, head)), FormatBytes(tail - head),
                     HtmlText(std::string_view(text).substr(tail)));
}

std::string Page::Senders(size_t record) const {
  if (scheduled_[record] == kNone) return "";
  std::string out;
  for (const size_t sender : schedule_.turns[scheduled_[record]].takes) {
    out += out.empty() ? " from " : ", ";
    out += record_of_[sender] == kNone ? HtmlText(schedule_.turns[sender].name) : LinkTo(record_of_[sender]);
  }
  return out;
}

std::string Page::Article(size_t record, size_t limit) const {
  const TurnRecord& turn = run_.turns[record];
  std::string facts =
      turn.taken_tokens > 0 ? "took over " + TokensText(turn.taken_tokens) + Senders(record) + "; " : std::string();
  facts += fmt::format("read {}, wrote {}, {}; {}", CountText(turn.read_tokens), CountText(turn.generated_tokens),
                       OutcomeText(turn.outcome), HtmlText(turn.mode));
  if (!turn.reason.empty()) facts += ": " + HtmlText(turn.reason);
  if (turn.worker) facts += "; in a process of its own";
  if (turn.resumed) facts += "; done in an earlier run";
  std::string out = fmt::format("<article id=\"turn-{}\">\n<h3>{}</h3>\n<p class=\"meta\">{}</p>\n", record,
                                HtmlText(turn.turn), facts);
  const std::string prompt = Said(turn.prompt, limit, "said");
  if (turn.prompt.size() > kOpenTextBytes) {
    out += fmt::format("<details><summary>Instruction, {}</summary>\n{}</details>\n", FormatBytes(turn.prompt.size()),
                       prompt);
  } else {
    out += "<h4>Instruction</h4>\n" + prompt;
  }
  if (turn.outcome != Outcome::kRead && turn.outcome != Outcome::kEmpty) {
    out += "<h4>Answer</h4>\n" + Said(turn.text, limit, "said answer");
  }
  if (record < tokens_.size() && !tokens_[record].texts.empty()) {
    out += fmt::format("<p class=\"meta\"><a href=\"#map-{}\">Bit map</a></p>\n", record);
  }
  return out + "</article>\n";
}

std::string Page::Transcript() const {
  const size_t limit = ShareOf(kPageTextBytes, 2 * shown_, kTextBytes);
  std::string out;
  for (size_t i = 0; i < shown_; ++i) out += Article(i, limit);
  return out + LeftOut(shown_);
}

}  // namespace

std::string RunPage(const Topology& topology, const Schedule& schedule, const RunRecord& run,
                    const std::vector<TurnTokens>& tokens) {
  return Page(topology, schedule, run, tokens).Html();
}

}  // namespace qkvshare
