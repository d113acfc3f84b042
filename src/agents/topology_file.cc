#include "agents/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "agents/nearest_name.h"
#include "agents/yaml_map.h"
#include "agents/yaml_node.h"
#include "base/file.h"
#include "runtime/prompt.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

using Kind = YamlNode::Kind;
using Names = std::map<std::string, size_t, std::less<>>;

constexpr std::string_view kTopKeys[] = {"model", "context", "defaults", "inputs", "agents", "edges"};
constexpr std::string_view kInputKeys[] = {"file", "text"};
constexpr std::string_view kEdgeKeys[] = {"from", "to", "rounds", "bits", "max_bytes"};
// What defaults may give is all but the first two.
constexpr std::string_view kAgentKeys[] = {"prompt", "system", "predict",   "stop",   "shares",    "temp",
                                           "top_k",  "top_p",  "min_p",     "seed",   "max_bytes", "bits",
                                           "policy", "probe",  "placement", "timeout"};
constexpr std::string_view kPolicies[] = {"uniform", "local", "topology"};
constexpr std::string_view kPlacements[] = {"same", "worker"};  // as Placement

constexpr const char* kAllPrompts = "all prompts together, inputs filled in,";
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxStops = 16;
constexpr uint64_t kMinCardBytes = 4096;  // no card is smaller
constexpr uint64_t kMaxCardBytes = 1ull << 40;
constexpr uint32_t kMaxTimeoutS = 7 * 24 * 3600;

bool IsName(const std::string& text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kMaxNameBytes && std::all_of(text.begin(), text.end(), fits);
}

template <typename T>
std::string Nearest(const std::string& text, const std::map<std::string, T, std::less<>>& known) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : known) names.push_back(name);
  return DidYouMean(text, names);
}

class TopologyReader {
 public:
  TopologyReader(const std::string& file, InputReader read_input) : read_input_(std::move(read_input)) {
    out_.file = file;
  }

  Result<Topology> Read(const YamlNode& root) {
    QKV_ASSIGN_OR_RETURN(const YamlMap top, YamlMap::Of(out_.file, root, "a topology", kTopKeys));
    QKV_RETURN_IF_ERROR(top.Text("model", &out_.model));
    QKV_RETURN_IF_ERROR(top.Number<uint32_t>("context", 0, INT32_MAX, &out_.context));
    if (const YamlNode* inputs = top.Find("inputs"); inputs != nullptr) QKV_RETURN_IF_ERROR(ReadInputs(*inputs));
    if (const YamlNode* node = top.Find("defaults"); node != nullptr) {
      QKV_ASSIGN_OR_RETURN(const YamlMap map,
                           YamlMap::Of(out_.file, *node, "'defaults'", std::span(kAgentKeys).subspan(2)));
      QKV_RETURN_IF_ERROR(ReadSettings(map, &defaults_));
    }
    QKV_ASSIGN_OR_RETURN(const YamlNode* agents, top.Need("agents"));
    QKV_RETURN_IF_ERROR(ReadAgents(*agents));
    if (const YamlNode* edges = top.Find("edges"); edges != nullptr) QKV_RETURN_IF_ERROR(ReadEdges(*edges));
    QKV_RETURN_IF_ERROR(CheckBudgets());
    return std::move(out_);
  }

 private:
  // What an edge asked of its sender.
  struct EdgeBudget {
    Budget budget;
    uint32_t line = 0;
  };

  Status Error(Place place, const std::string& what) const { return ErrorAt(out_.file, place, what); }

  Status CheckName(const YamlKey& key, const char* whose) const {
    if (IsName(key.text)) return {};
    return Error(key.place, fmt::format("'{}' is no name of an {}: take 1 to {} letters, digits, '_' and '-'",
                                        Excerpt(key.text), whose, kMaxNameBytes));
  }

  Status ReadInputs(const YamlNode& node) {
    QKV_RETURN_IF_ERROR(CheckYamlKind(out_.file, node, Kind::kMap, "a map of inputs by name"));
    for (size_t i = 0; i < node.keys.size(); ++i) {
      QKV_RETURN_IF_ERROR(CheckName(node.keys[i], "input"));
      QKV_ASSIGN_OR_RETURN(std::string text, ReadInput(node.items[i]));
      input_bytes_ += text.size();
      QKV_RETURN_IF_ERROR(CheckBytes(node.keys[i].place, "all inputs together", input_bytes_));
      inputs_.emplace(node.keys[i].text, std::move(text));
    }
    return {};
  }

  Result<std::string> ReadInput(const YamlNode& node) const {
    QKV_ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Of(out_.file, node, "an input", kInputKeys));
    const YamlNode* file = map.Find("file");
    if ((file == nullptr) == (map.Find("text") == nullptr)) {
      return Error(node.place, "an input is {file: NAME} or {text: TEXT}, one of both");
    }
    std::string text;
    if (file == nullptr) {
      QKV_RETURN_IF_ERROR(map.Text("text", &text));
      return text;
    }
    std::string name;
    QKV_RETURN_IF_ERROR(map.Text("file", &name));
    // Beside the topology; "-" is a file like others there.
    const std::filesystem::path folder = std::filesystem::path(out_.file).parent_path();
    const std::string path = ((folder.empty() ? "." : folder) / name).string();
    Result<std::string> read = read_input_(path);
    const Status status = read ? CheckUtf8(*read) : read.status();
    if (!status.ok()) {
      return ErrorAt(out_.file, file->place,
                     fmt::format("input: {}{}{}", read ? path : "", read ? ": " : "", status.message()), status.code());
    }
    return read;
  }

  // Of an agent, or of the defaults.
  Status ReadSettings(const YamlMap& map, Agent* agent) const {
    SamplingOptions& sampling = agent->sampling;
    QKV_RETURN_IF_ERROR(map.Number<size_t>("predict", 0, INT32_MAX, &agent->predict));
    QKV_RETURN_IF_ERROR(map.Number("temp", 0.0f, 1e6f, &sampling.temp));
    QKV_RETURN_IF_ERROR(map.Number("top_k", 0, INT32_MAX, &sampling.top_k));
    QKV_RETURN_IF_ERROR(map.Number("top_p", 0.0f, 1.0f, &sampling.top_p));
    QKV_RETURN_IF_ERROR(map.Number("min_p", 0.0f, 1.0f, &sampling.min_p));
    QKV_RETURN_IF_ERROR(map.Number<uint32_t>("seed", 0, UINT32_MAX, &sampling.seed));
    QKV_RETURN_IF_ERROR(ReadStops(map, &agent->stop));
    QKV_RETURN_IF_ERROR(ReadShares(map, &agent->shares));
    QKV_ASSIGN_OR_RETURN(agent->budget, ReadBudget(map, agent->budget));
    QKV_RETURN_IF_ERROR(map.Flag("probe", &agent->probe));
    QKV_RETURN_IF_ERROR(map.Number<uint32_t>("timeout", 1, kMaxTimeoutS, &agent->timeout_s));
    auto placement = static_cast<size_t>(agent->placement);
    QKV_RETURN_IF_ERROR(map.Choice("placement", kPlacements, &placement));
    agent->placement = static_cast<Placement>(placement);
    if (map.Find("policy") == nullptr) return {};
    size_t policy = 0;
    QKV_RETURN_IF_ERROR(map.Choice("policy", kPolicies, &policy));
    QKV_ASSIGN_OR_RETURN(agent->policy, PolicyFromName(std::string(kPolicies[policy])));
    return {};
  }

  Status ReadStops(const YamlMap& map, std::vector<std::string>* stops) const {
    if (map.Find("stop") == nullptr) return {};
    QKV_ASSIGN_OR_RETURN(const std::vector<const YamlNode*> texts, map.Texts("stop", kMaxStops));
    stops->clear();
    for (const YamlNode* text : texts) {
      if (text->text.empty())
        return Error(text->place, "'stop' has an empty text, which would end every answer; leave it out");
      stops->push_back(text->text);
    }
    return {};
  }

  Status ReadShares(const YamlMap& map, std::vector<std::string>* shares) const {
    if (map.Find("shares") == nullptr) return {};
    QKV_ASSIGN_OR_RETURN(const std::vector<const YamlNode*> roles, map.Texts("shares", std::size(kOwnRoles)));
    shares->clear();
    for (const YamlNode* role : roles) {
      const std::string& text = role->text;
      if (std::find(std::begin(kOwnRoles), std::end(kOwnRoles), text) == std::end(kOwnRoles)) {
        return Error(role->place, fmt::format("'shares' has roles of an agent's own segments, which are {}, {} and {}, "
                                              "but found '{}'",
                                              kOwnRoles[0], kOwnRoles[1], kOwnRoles[2], Excerpt(text)));
      }
      if (std::find(shares->begin(), shares->end(), text) != shares->end()) {
        return Error(role->place, fmt::format("'shares' has '{}' twice; leave one out", text));
      }
      shares->push_back(text);
    }
    if (shares->size() == std::size(kOwnRoles)) shares->clear();  // all
    return {};
  }

  Result<Budget> ReadBudget(const YamlMap& map, const Budget& otherwise) const {
    const YamlNode* bits = map.Find("bits");
    const YamlNode* bytes = map.Find("max_bytes");
    if (bits == nullptr && bytes == nullptr) return otherwise;
    if (bits != nullptr && bytes != nullptr) {
      return Error(std::max(bits, bytes)->place, "both 'bits' and 'max_bytes'; a budget is one of them");
    }
    Budget budget;
    QKV_RETURN_IF_ERROR(map.Number("bits", 2.0, 16.0, &budget.bits));
    QKV_RETURN_IF_ERROR(map.Number<uint64_t>("max_bytes", kMinCardBytes, kMaxCardBytes, &budget.max_bytes));
    return budget;
  }

  Status ReadAgents(const YamlNode& node) {
    QKV_RETURN_IF_ERROR(CheckYamlKind(out_.file, node, Kind::kMap, "a map of agents by name"));
    if (node.keys.empty())
      return Error(node.place, "'agents' is empty; it needs at least one, as NAME: {prompt: TEXT}");
    if (node.keys.size() > kMaxAgents) {
      return Error(node.keys[kMaxAgents].place, fmt::format("more than {} agents", kMaxAgents));
    }
    for (size_t i = 0; i < node.keys.size(); ++i) {
      QKV_RETURN_IF_ERROR(CheckName(node.keys[i], "agent"));
      agents_.emplace(node.keys[i].text, i);
      QKV_RETURN_IF_ERROR(ReadAgent(node.keys[i], node.items[i]));
    }
    return {};
  }

  Status ReadAgent(const YamlKey& key, const YamlNode& node) {
    const std::string what = "agent '" + key.text + "'";
    QKV_ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Of(out_.file, node, what, kAgentKeys));
    Agent agent = defaults_;
    agent.name = key.text;
    agent.place = key.place;
    QKV_RETURN_IF_ERROR(ReadSettings(map, &agent));
    QKV_ASSIGN_OR_RETURN(const YamlNode* prompt, map.Need("prompt"));
    QKV_RETURN_IF_ERROR(map.Text("prompt", &agent.prompt));
    QKV_RETURN_IF_ERROR(FillIn(prompt->place, &agent.prompt));
    QKV_RETURN_IF_ERROR(map.Text("system", &agent.system));
    if (const YamlNode* system = map.Find("system"); system != nullptr) {
      systems_.emplace(out_.agents.size(), system->place);
      QKV_RETURN_IF_ERROR(FillIn(system->place, &agent.system));
    }
    if (agent.prompt.empty()) return Error(prompt->place, what + " has an empty prompt; say what it is to do");
    QKV_RETURN_IF_ERROR(CheckAgent(agent, map));
    out_.agents.push_back(std::move(agent));
    return {};
  }

  // Settings that do not go together.
  Status CheckAgent(const Agent& agent, const YamlMap& map) const {
    if (const YamlNode* timeout = map.Find("timeout"); timeout != nullptr && agent.placement != Placement::kWorker) {
      return Error(timeout->place, "'timeout' counts for workers; leave it out, or give 'placement: worker'");
    }
    if (agent.probe && agent.policy != Policy::kTopology) {
      const YamlNode* probe = map.Find("probe");
      return Error(probe == nullptr ? agent.place : probe->place,
                   "'probe' counts in policy topology; leave it out, or give 'policy: topology'");
    }
    for (const std::string& role : agent.shares) {
      const bool missing = (role == "system" && agent.system.empty()) || (role == "generated" && agent.predict == 0);
      const YamlNode* shares = map.Find("shares");
      if (missing) {
        return Error(
            shares == nullptr ? agent.place : shares->place,
            fmt::format("agent '{}' shares '{}', but never has a segment of this role; leave it out of 'shares'",
                        agent.name, role));
      }
    }
    return {};
  }

  // {NAME} becomes the input of this name, {{ and }} become braces.
  Status FillIn(Place place, std::string* text) {
    std::string filled;
    for (size_t at = 0; at < text->size();) {
      const size_t brace = std::min(text->find_first_of("{}", at), text->size());
      filled.append(*text, at, brace - at);
      if (brace == text->size()) break;
      if (text->compare(brace, 2, std::string(2, (*text)[brace])) == 0) {
        filled += (*text)[brace];
        at = brace + 2;
        continue;
      }
      const size_t end = text->find('}', brace);
      if ((*text)[brace] == '}' || end == std::string::npos) {
        return Error(
            place, fmt::format("a single '{}'; write {{NAME}} for an input, {{{{ and }}}} for braces", (*text)[brace]));
      }
      const std::string name = text->substr(brace + 1, end - brace - 1);
      const auto input = inputs_.find(name);
      if (input == inputs_.end()) {
        const std::string nearest = Nearest(name, inputs_);
        return Error(
            place, fmt::format("no input is named '{}'{}", Excerpt(name),
                               nearest.empty() ? "; name it under 'inputs', or write {{ and }} for braces" : nearest));
      }
      filled += input->second;
      QKV_RETURN_IF_ERROR(CheckBytes(place, kAllPrompts, prompt_bytes_ + filled.size()));
      at = end + 1;
    }
    *text = std::move(filled);
    prompt_bytes_ += text->size();
    return CheckBytes(place, kAllPrompts, prompt_bytes_);
  }

  Status CheckBytes(Place place, const char* what, size_t bytes) const {
    if (bytes <= kMaxInputBytes) return {};
    return ErrorAt(out_.file, place, fmt::format("{} are longer than {} bytes", what, kMaxInputBytes),
                   StatusCode::kOutOfRange);
  }

  Status ReadEdges(const YamlNode& node) {
    QKV_RETURN_IF_ERROR(CheckYamlKind(out_.file, node, Kind::kList, "a list of edges, as - {from: NAME, to: NAME}"));
    asked_.resize(out_.agents.size());
    for (const YamlNode& item : node.items) QKV_RETURN_IF_ERROR(ReadEdge(item));
    return CheckSystems();
  }

  Status ReadEdge(const YamlNode& node) {
    QKV_ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Of(out_.file, node, "an edge", kEdgeKeys));
    Edge edge;
    edge.place = node.place;
    QKV_ASSIGN_OR_RETURN(const YamlNode* to, map.Need("to"));
    std::string receiver;
    QKV_RETURN_IF_ERROR(map.Text("to", &receiver));
    QKV_ASSIGN_OR_RETURN(edge.to, FindAgent(*to));
    QKV_ASSIGN_OR_RETURN(const YamlNode* from, map.Need("from"));
    QKV_ASSIGN_OR_RETURN(const std::vector<const YamlNode*> senders, map.Texts("from", kMaxAgents));
    for (const YamlNode* sender : senders) QKV_RETURN_IF_ERROR(AddSender(*sender, &edge));
    QKV_RETURN_IF_ERROR(map.Number<uint32_t>("rounds", 1, kMaxRounds, &edge.rounds));
    if (edge.rounds > 0 && edge.from.size() > 1) {
      return Error(from->place, "an edge with 'rounds' leads back from one agent; make an edge of each");
    }
    if (map.Find("bits") != nullptr || map.Find("max_bytes") != nullptr) QKV_RETURN_IF_ERROR(AskSenders(map, edge));
    out_.edges.push_back(std::move(edge));
    return {};
  }

  // A system message stands at the start of a conversation.
  Status CheckSystems() const {
    for (const Edge& edge : out_.edges) {
      const auto system = systems_.find(edge.to);
      if (edge.rounds > 0 || system == systems_.end()) continue;
      return Error(system->second,
                   fmt::format("'system' starts a conversation, but '{}' goes on from the card of '{}'; leave "
                               "it out, or say it in the prompt",
                               out_.agents[edge.to].name, out_.agents[edge.from[0]].name));
    }
    return {};
  }

  Result<size_t> FindAgent(const YamlNode& name) const {
    const auto found = agents_.find(name.text);
    if (found != agents_.end()) return found->second;
    return Error(name.place, fmt::format("no agent is named '{}'{}", Excerpt(name.text), Nearest(name.text, agents_)));
  }

  Status AddSender(const YamlNode& name, Edge* edge) {
    QKV_ASSIGN_OR_RETURN(const size_t sender, FindAgent(name));
    if (!links_.emplace(sender, edge->to).second) {
      return Error(name.place,
                   fmt::format("'{}' hands to '{}' twice; leave one out", name.text, out_.agents[edge->to].name));
    }
    if (links_.size() > kMaxLinks)
      return Error(name.place, fmt::format("more than {} pairs of sender and receiver", kMaxLinks));
    edge->from.push_back(sender);
    return {};
  }

  // An edge's budget takes the place of its senders' own. Codes are written once, so that others cannot ask for less.
  Status AskSenders(const YamlMap& map, const Edge& edge) {
    QKV_ASSIGN_OR_RETURN(const Budget budget, ReadBudget(map, {}));
    for (const size_t sender : edge.from) {
      std::optional<EdgeBudget>& asked = asked_[sender];
      if (asked && asked->budget != budget) {
        return Error(edge.place,
                     fmt::format("'{}' packs once, and the edge on line {} asks for {}: {} here is another "
                                 "budget; give both the same, or one of them",
                                 out_.agents[sender].name, asked->line, BudgetText(asked->budget), BudgetText(budget)));
      }
      asked = EdgeBudget{budget, edge.place.line};
      out_.agents[sender].budget = budget;
    }
    return {};
  }

  // A policy must have a choice within its budget, which may be an edge's.
  Status CheckBudgets() const {
    for (const Agent& agent : out_.agents) {
      PackOptions options;
      options.policy = agent.policy;
      options.code_bits = agent.budget.bits;
      options.max_bytes = agent.budget.max_bytes;
      const Status status = CheckPackOptions(options);
      if (!status.ok()) return Error(agent.place, fmt::format("agent '{}': {}", agent.name, status.message()));
    }
    return {};
  }

  const InputReader read_input_;
  Topology out_;
  Agent defaults_;
  std::map<std::string, std::string, std::less<>> inputs_;  // texts by name
  Names agents_;
  std::map<size_t, Place> systems_;  // where each agent's system message is
  size_t input_bytes_ = 0;
  size_t prompt_bytes_ = 0;                       // of all agents, inputs filled in
  std::set<std::pair<size_t, size_t>> links_;     // sender and receiver
  std::vector<std::optional<EdgeBudget>> asked_;  // of each agent, by its edges
};

}  // namespace

Result<Topology> ParseTopology(const std::string& text, const std::string& file, const InputReader& read) {
  QKV_ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(text, file));
  const auto from_file = [](const std::string& path) { return ReadText(path, kMaxInputBytes); };
  return TopologyReader(file, read ? read : InputReader(from_file)).Read(root);
}

Result<Topology> ReadTopology(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kMaxYamlBytes));
  return ParseTopology(text, path);
}

}  // namespace qkvshare
