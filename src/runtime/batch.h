// A batch of llama.cpp for tokens of one sequence or several. For sources of this module only: it sees llama.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llama.h"

namespace qkvshare {

class Batch {
 public:
  Batch(size_t tokens, int sequence)
      : batch_(llama_batch_init(static_cast<int32_t>(tokens), 0, 1)), sequence_(sequence) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(int32_t token, size_t position, bool logits) { AddTo(sequence_, token, position, logits); }
  void AddTo(int sequence, int32_t token, size_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = static_cast<int8_t>(logits);
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
  llama_seq_id sequence_;
};

}  // namespace qkvshare
