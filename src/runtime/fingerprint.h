// Identity of a model file: what a card is pinned to.
#pragma once

#include <cstdint>
#include <string>

#include "base/hash.h"
#include "qkvshare/status.h"

namespace qkvshare {

// BLAKE2b-256 over the GGUF's architecture, hyper-parameters, tokenizer (its chat template aside) and all tensors'
// names, types, shapes and data; of every part of a split model. The file's name and descriptive metadata do not count.
// The tensor data's digest is kept in the cache folder under device, inode, size and modification time, so that it is
// computed once a file (about 1 s a GB). kCorrupt, kIo, kNotFound.
Result<Digest> FingerprintModel(const std::string& path);

// Bytes of all its tensors, as llama_model_size has them. The same errors.
Result<uint64_t> TensorBytes(const std::string& path);

}  // namespace qkvshare
