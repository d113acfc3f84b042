// What stands for several runs of the same work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace qkvshare {

// The value in the middle, or the mean of both where there are two. values: not empty.
template <typename T>
T Median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : std::midpoint(values[middle - 1], values[middle]);
}

}  // namespace qkvshare
