#include "eval/chain_difference.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

constexpr uint64_t kSeed = 1;  // of the resampling: the same for all, so that what is compared is paired

}  // namespace

ChainDifference DifferenceAfterHandOver(const ChainResults& results, const ChainResults& against) {
  std::map<std::pair<std::string, size_t>, bool> others;
  for (const ChainAnswer& answer : against.answers) others[{answer.chain, answer.hop}] = answer.right;
  ChainDifference difference;
  std::map<std::string, ClusterSum> problems;
  for (const ChainAnswer& answer : results.answers) {
    const auto other = others.find({answer.chain, answer.hop});
    if (answer.hop == 0 || other == others.end()) continue;
    ClusterSum& sum = problems[answer.problem];
    sum.sum += (answer.right ? 1 : 0) - (other->second ? 1 : 0);
    ++sum.count;
    ++difference.answers;
  }
  difference.problems = problems.size();
  std::vector<ClusterSum> sums;
  for (const auto& [problem, sum] : problems) sums.push_back(sum);
  difference.right = Bootstrap(kSeed).Mean(sums);
  return difference;
}

}  // namespace qkvshare
