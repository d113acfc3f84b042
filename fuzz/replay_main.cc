// Runs a fuzz target over stored inputs, for builds without libFuzzer: fuzz_replay_NAME FOLDER...
// Fails when there is no input, so that a lost corpus does not pass unnoticed.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Feeds each file below `folder` to the target and returns their number; -1 if one cannot be read.
int ReplayFolder(const std::filesystem::path& folder) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", entry.path().c_str());
      return -1;
    }
    // An exact copy on the heap, so that sanitizers see any read past the end. The name comes first: after a crash it
    // is the last line.
    std::fprintf(stderr, "%s\n", entry.path().c_str());
    const std::vector<uint8_t> input(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++inputs;
  }
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  int total = 0;
  try {
    for (int i = 1; i < argc; ++i) {
      const int inputs = ReplayFolder(argv[i]);
      if (inputs < 0) return 1;
      total += inputs;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  std::fprintf(stderr, "%d inputs\n", total);
  return total > 0 ? 0 : 1;
}
