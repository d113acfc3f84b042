// A llama.cpp context whose sequences may start with cards that are attended to where they lie. The context's own cache
// holds the tokens after them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "qkvshare/status.h"
#include "runtime/attached_card.h"
#include "runtime/fused_attention.h"

struct llama_batch;
struct llama_context;

namespace qkvshare {

// Must outlive the context that calls it. Not thread-safe; cards may be shared with contexts of other threads.
class FusedContext {
 public:
  // kInvalidArgument as SelectKernels.
  static Result<std::unique_ptr<FusedContext>> Create();

  // The context's cb_eval, in two steps: others may look at the node in between, as llama.cpp made it.
  void BeforeNode(ggml_tensor* node) { attention_.TurnBack(node); }
  void AtNode(ggml_tensor* node) { attention_.TakeOver(node); }
  void SetLayers(std::vector<FusedLayer> layers);

  // Cards of a sequence, by offset. kInvalidArgument where two overlap or one is empty, or longer than its card. A card
  // that another sequence has too is that one's from now on, though it was opened twice.
  Status Attach(int sequence, std::vector<PlacedCard> cards);
  void Detach(int sequence);
  const std::vector<PlacedCard>& cards(int sequence) const;
  // Tokens before which all cards of the sequence end.
  uint32_t end(int sequence) const;
  // Where the sequence's own rows begin that came otherwise than by Decode: restored, or copied together with the
  // cards.
  void SetStart(int sequence, int32_t position);
  int32_t start(int sequence) const;

  // llama_decode over the cards of each token's sequence; what the batch leaves out is as llama.cpp has it (sequence 0,
  // the next positions). With cards at most the context's n_ubatch tokens, each of one sequence and after its cards:
  // else kInvalidArgument, before anything is decoded; so too after a call of llama_decode that knew nothing of the
  // cards, until all that may be of it has been removed, from every sequence. result: llama_decode's. Errors of End:
  // kUnsupported or kInternal, after the call's tokens have been removed from the context.
  // kInvalidArgument also for a sequence whose own rows begin where none of its were begun: they continue cards that it
  // does not have (llama_memory_seq_cp). In models with sliding windows this cannot be told of sequences without cards.
  Status Decode(llama_context* context, const llama_batch& batch, int32_t* result);

 private:
  FusedContext(const Kernels& kernels, const AttendKernels& attend) : attention_(kernels, attend) {}
  Result<FusedCall> CallOf(const llama_batch& batch, const llama_context* context) const;
  Status CheckToken(const llama_batch& batch, int32_t i, uint32_t sequences) const;
  bool HasCards() const;
  Status CheckStray(llama_context* context);
  Status CheckStarts(llama_context* context, const FusedCall& call) const;
  std::shared_ptr<const AttachedCard> Shared(const std::shared_ptr<const AttachedCard>& card) const;

  FusedAttention attention_;
  std::vector<std::vector<PlacedCard>> cards_;  // of each sequence
  std::vector<int32_t> starts_;                 // of each sequence's own rows; -1: none were begun
  bool windowed_ = false;                       // some layer has a sliding window
  bool stray_ = false;                          // since the context has decoded without this one
};

}  // namespace qkvshare
