// Random numbers that are the same on every platform for the same seed: standard distributions are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace qkvshare {

// Source: SplitMix64, Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  // A generator of its own for the work number `stream` of a seed: what one takes does not move the others.
  SeededRandom(uint64_t seed, uint64_t stream) : state_(SeededRandom(seed).Next() ^ SeededRandom(~stream).Next()) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  // In [0, count), each as likely as the others to within count / 2^32. count: 1 to 2^31.
  size_t Below(size_t count) { return static_cast<size_t>((Next() >> 32) * count >> 32); }
  // In [low, high].
  int Within(int low, int high) { return low + static_cast<int>(Below(static_cast<size_t>(high - low) + 1)); }

  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace qkvshare
