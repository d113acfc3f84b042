// Topology files: YAML, and so JSON, as docs/agents.md describes it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "agents/topology.h"
#include "qkvshare/status.h"

namespace qkvshare {

inline constexpr size_t kMaxInputBytes = 64 << 20;  // of all inputs together, and of all prompts with these filled in

// Reads the file, and the files that it names as inputs (relative to its folder). Every error but that of opening it
// names file, line and column. kInvalidArgument: what is wrong; kNotFound, kIo: a file cannot be read; kOutOfRange: one
// is too long.
Result<Topology> ReadTopology(const std::string& path);

using InputReader = std::function<Result<std::string>(const std::string& path)>;

// The same from text; file: its name, beside which the inputs are. read: in place of reading these from files.
Result<Topology> ParseTopology(const std::string& text, const std::string& file, const InputReader& read = {});

}  // namespace qkvshare
