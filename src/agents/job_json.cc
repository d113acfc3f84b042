#include "agents/job_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "agents/shallow_json.h"

namespace qkvshare {
namespace {

using nlohmann::json;

json CardsJson(const std::vector<HandedCard>& cards) {
  json array = json::array();
  for (const HandedCard& card : cards) array.push_back({{"path", card.path}, {"id", card.id}, {"tokens", card.tokens}});
  return array;
}

std::vector<HandedCard> CardsOf(const json& array) {
  std::vector<HandedCard> cards;
  for (const json& card : array) cards.push_back({card.at("path"), card.at("id"), card.at("tokens")});
  return cards;
}

json ReadersJson(const std::vector<SegmentReader>& readers) {
  json array = json::array();
  for (const SegmentReader& reader : readers) array.push_back({{"agent", reader.agent}, {"distance", reader.distance}});
  return array;
}

json AgentJson(const Agent& agent) {
  return {{"name", agent.name},
          {"system", agent.system},
          {"prompt", agent.prompt},
          {"predict", agent.predict},
          {"temp", agent.sampling.temp},
          {"top_k", agent.sampling.top_k},
          {"top_p", agent.sampling.top_p},
          {"min_p", agent.sampling.min_p},
          {"seed", agent.sampling.seed},
          {"stop", agent.stop},
          {"shares", agent.shares},
          {"bits", agent.budget.bits},
          {"max_bytes", agent.budget.max_bytes},
          {"policy", PolicyName(agent.policy)},
          {"probe", agent.probe}};
}

Agent AgentOf(const json& object) {
  Agent agent;
  agent.name = object.at("name");
  agent.system = object.at("system");
  agent.prompt = object.at("prompt");
  agent.predict = object.at("predict");
  agent.sampling = {object.at("temp"), object.at("top_k"), object.at("top_p"), object.at("min_p"), object.at("seed")};
  object.at("stop").get_to(agent.stop);
  object.at("shares").get_to(agent.shares);
  agent.budget = {object.at("bits"), object.at("max_bytes")};
  const Result<Policy> policy = PolicyFromName(object.at("policy"));
  if (!policy) throw json::other_error::create(500, policy.status().message(), &object);
  agent.policy = *policy;
  agent.probe = object.at("probe");
  return agent;
}

json SessionJson(const SessionOptions& session) {
  return {{"context", session.context},
          {"batch", session.batch},
          {"rope_freq_base", session.rope_freq_base},
          {"rope_freq_scale", session.rope_freq_scale},
          {"cache_type_k", CacheTypeName(session.cache_type_k)},
          {"cache_type_v", CacheTypeName(session.cache_type_v)},
          {"flash_attention", session.flash_attention}};
}

SessionOptions SessionOf(const json& object) {
  const auto type = [&](const char* key) {
    const Result<CacheType> found = CacheTypeFromName(object.at(key));
    if (!found) throw json::other_error::create(500, found.status().message(), &object);
    return *found;
  };
  SessionOptions session;
  session.context = object.at("context");
  session.batch = object.at("batch");
  session.rope_freq_base = object.at("rope_freq_base");
  session.rope_freq_scale = object.at("rope_freq_scale");
  session.cache_type_k = type("cache_type_k");
  session.cache_type_v = type("cache_type_v");
  session.flash_attention = object.at("flash_attention");
  return session;
}

json JobJson(const TurnJob& job) {
  return {{"turn", job.turn},
          {"agent", AgentJson(job.agent)},
          {"taken", CardsJson(job.taken)},
          {"readers", ReadersJson(job.readers)},
          {"receiver_prompts", job.receiver_prompts},
          {"anchors_id", job.anchors_id},
          {"session", SessionJson(job.session)}};
}

}  // namespace

std::string WorkerJobToJson(const WorkerJob& job) {
  json object = JobJson(job.job);
  object["folder"] = job.job.folder;
  object["anchors_folder"] = job.job.anchors_folder;
  object["threads"] = job.job.session.threads;
  object["model"] = job.model;
  object["gpu_layers"] = job.gpu_layers;
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<WorkerJob> WorkerJobFromJson(const std::string& text) {
  try {
    const json object = ParseShallow(text);
    WorkerJob worker{object.at("model"), object.at("gpu_layers"), {}};
    TurnJob& job = worker.job;
    job.turn = object.at("turn");
    job.agent = AgentOf(object.at("agent"));
    job.taken = CardsOf(object.at("taken"));
    for (const json& reader : object.at("readers")) job.readers.push_back({reader.at("agent"), reader.at("distance")});
    object.at("receiver_prompts").get_to(job.receiver_prompts);
    job.folder = object.at("folder");
    job.anchors_folder = object.at("anchors_folder");
    job.anchors_id = object.at("anchors_id");
    job.session = SessionOf(object.at("session"));
    job.session.threads = object.at("threads");
    return worker;
  } catch (const json::exception& error) {
    return Status(StatusCode::kInvalidArgument, fmt::format("this is no job of a worker: {}", error.what()));
  }
}

std::string JobKeyText(const TurnJob& job) { return JobJson(job).dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace qkvshare
