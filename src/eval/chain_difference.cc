#include "eval/chain_difference.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

constexpr uint64_t kSeed = 1;  // of the resampling: the same for all, so that what is compared is paired

// Names that belong together, each known by one of them.
class Unions {
 public:
  std::string Find(const std::string& name) {
    std::string& parent = parents_.try_emplace(name, name).first->second;
    if (parent == name) return name;
    return parent = Find(parent);
  }
  void Join(const std::string& a, const std::string& b) { parents_[Find(a)] = Find(b); }

 private:
  std::map<std::string, std::string> parents_;
};

}  // namespace

ChainDifference DifferenceAfterHandOver(const ChainResults& results, const ChainResults& against) {
  const std::map<HopKey, bool> others = RightAnswers(against);
  Unions unions;
  std::vector<std::pair<std::string, double>> differences;  // by chain
  for (const ChainAnswer& answer : results.answers) {
    const auto other = others.find({answer.chain, answer.hop});
    if (answer.hop == 0 || other == others.end()) continue;
    unions.Join("problem " + answer.problem, "chain " + answer.chain);
    differences.emplace_back("chain " + answer.chain, (answer.right ? 1 : 0) - (other->second ? 1 : 0));
  }
  std::map<std::string, ClusterSum> blocks;
  for (const auto& [chain, difference] : differences) {
    ClusterSum& sum = blocks[unions.Find(chain)];
    sum.sum += difference;
    ++sum.count;
  }
  std::vector<ClusterSum> sums;
  for (const auto& [block, sum] : blocks) sums.push_back(sum);
  return {differences.size(), sums.size(), Bootstrap(kSeed).Mean(sums)};
}

}  // namespace qkvshare
