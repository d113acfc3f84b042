#include "eval/hop_header.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/hash.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

Json GenerateJson(const GenerateOptions& options) {
  const SamplingOptions& sampling = options.sampling;
  return {{"predict", options.predict}, {"stop", options.stop},    {"stop_line", options.stop_line},
          {"temp", sampling.temp},      {"top_k", sampling.top_k}, {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},    {"seed", sampling.seed}};
}

Digest DigestOf(const std::vector<HopChain>& chains) {
  Blake2bHasher hasher;
  for (const HopChain& chain : chains) {
    hasher.UpdateString(chain.id);
    hasher.UpdateValue(chain.messages.size());
    for (const ChatMessage& message : chain.messages) {
      hasher.UpdateString(message.role);
      hasher.UpdateString(message.content);
    }
    hasher.UpdateValue(chain.tokens.size());
    for (const int32_t token : chain.tokens) hasher.UpdateValue(token);
    hasher.UpdateValue(chain.turns.size());
    for (const std::string& turn : chain.turns) hasher.UpdateString(turn);
    hasher.UpdateValue(chain.parts.size());
    for (const HopPart& part : chain.parts) {
      hasher.UpdateString(part.text);
      hasher.UpdateValue(part.hops.size());
      for (const size_t hop : part.hops) hasher.UpdateValue(hop);
    }
  }
  return hasher.Finish();
}

}  // namespace

Result<Json> HopHeader(const Session& session, const HopRequest& request) {
  Json packs = Json::array();
  for (size_t i = 0; Packs(request.hand_over) && i < request.packs.size(); ++i)
    packs.push_back(PackFacts(request.packs[i]));
  Json header = {{kHopKind, kHopVersion},
                 {"input", ToHex(DigestOf(request.chains))},
                 {"chains", request.chains.size()},
                 {"hops", request.hops},
                 {"parallel", request.parallel},
                 {"context", request.context},
                 {"hand_over", HandOverName(request.hand_over)},
                 {"probe", request.probe},
                 {"packs", packs},
                 {"generate", GenerateJson(request.generate)},
                 {"batch", request.session.batch}};
  header.update(ModelFacts(session.model()));
  header.update(SessionFacts(session));
  QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
  header.update(software);
  return header;
}

}  // namespace qkvshare
