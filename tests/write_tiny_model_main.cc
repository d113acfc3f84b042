// write_tiny_model PATH [KEY=VALUE...]: tiny models for tests in other languages. Keys: architecture, seed, layers,
// context, vocab, key_dim, key_bias, sliding_window, nan_logits.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/tiny_model.h"

int main(int argc, char** argv) {
  qkvshare::TinyModelSpec spec;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (key == "architecture") {
      spec.architecture = value;
    } else if (key == "seed") {
      spec.seed = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else if (key == "layers") {
      spec.layers = std::atoi(value.c_str());
    } else if (key == "context") {
      spec.context = std::atoi(value.c_str());
    } else if (key == "key_dim") {
      spec.key_dim = std::atoi(value.c_str());
    } else if (key == "key_bias") {
      spec.key_bias = std::strtof(value.c_str(), nullptr);
    } else if (key == "sliding_window") {
      spec.sliding_window = std::atoi(value.c_str());
    } else if (key == "nan_logits") {
      spec.nan_logits = value == "1";
    } else if (key == "vocab") {
      spec.vocab = std::atoi(value.c_str());
    } else {
      std::fprintf(stderr, "unknown key: %s\n", argument.c_str());
      return 2;
    }
  }
  if (argc < 2) return 2;
  const qkvshare::Status status = qkvshare::WriteTinyModel(spec, argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
