// One llama.cpp context that cards are used with, whoever made it and decodes in it: a Session, or an application.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "runtime/attached_card.h"
#include "runtime/card_list.h"
#include "runtime/context_facts.h"
#include "runtime/fused_context.h"
#include "runtime/graph_probe.h"
#include "runtime/kv_state.h"
#include "runtime/model.h"

struct ggml_tensor;
struct llama_batch;
struct llama_context;
struct llama_context_params;

namespace qkvshare {

// What Bind finds out, which takes it two or three decode calls and a self-test.
struct KnownContext {
  ContextFacts facts;
  Status fused;
};

// Keeps no tokens: which tokens the rows of a sequence are of is its owner's to know. The model must outlive it, and it
// must outlive the context that calls it. Not thread-safe; models and cards may be shared with other threads.
//
//   Create -> SetCallback -> llama_init_from_model -> Bind -> Attach, Decode, TakeKv...
class CardContext {
 public:
  // fused: cards may be attached, where a self-test passes. kInvalidArgument as SelectKernels.
  static Result<std::unique_ptr<CardContext>> Create(const Model& model, bool fused);

  // Sets cb_eval and its data. A callback that is there already is called for each node too, which it sees as llama.cpp
  // made it.
  void SetCallback(llama_context_params* params);
  // Takes the context that was made with these parameters, finds out about it, runs the self-test, and leaves it empty.
  // kInvalidArgument where it is not empty, of another model, made with other parameters, or this one has a context
  // already; else as LearnContext. A self-test that fails is no error: see fused().
  // kind: names all that these parameters decide. Contexts of one model and kind are alike, so the first is found out
  // about, and the model remembers it for the others. Empty: find out.
  Status Bind(llama_context* context, const std::string& kind = "");

  const Model& model() const { return model_; }
  llama_context* handle() const { return context_; }  // null before Bind
  const ContextFacts& facts() const { return facts_; }
  const ModelIdentity& identity() const { return facts_.identity; }
  GraphProbe* probe() { return &probe_; }
  // For work on rows: as many as llama.cpp uses.
  int threads() const;

  // Whether cards may be attached: attention then reads them where they lie (docs/attention.md). If not, why: not asked
  // for, a setting that rules it out, or a self-test that failed. Restoring cards works all the same.
  const Status& fused() const { return fused_status_; }

  // kInvalidArgument: no sequence of llama.cpp's.
  Status CheckSequence(int sequence) const;
  // Whether these cards may be attached. fused(), then as CheckCardFits and CheckCardOrder; kUnsupported where one
  // cannot be moved to its place.
  Status CheckAttach(std::span<const CardPart> parts) const;
  // Replaces the cards of a sequence, after CheckAttach; its rows stay.
  Status Attach(std::vector<PlacedCard> cards, int sequence);
  void Detach(int sequence);
  // Takes the sequence's cards away, and all its tokens.
  void Clear(int sequence);
  // Gives the sequence `to` the cards and tokens of another; the rows are shared, not copied. kInvalidArgument where it
  // has some already.
  Status Copy(int from, int to);
  const std::vector<PlacedCard>& cards(int sequence) const;
  // Tokens before which all attached cards of the sequence end.
  uint32_t end(int sequence) const;

  // llama_decode, over the cards of each token's sequence (FusedContext::Decode). While any card is attached, logits of
  // llama_decode itself are NaN, and the next call here fails with kInvalidArgument. result: llama_decode's.
  Status Decode(const llama_batch& batch, int32_t* result);

  // Whether the sequence has no rows; cards may be attached.
  bool IsEmpty(int sequence) const;
  // llama.cpp's own state of the sequence, whose rows are those of positions [first, end), in the cache's types. In
  // layers with a sliding window too it has the rows of all tokens, in the order of their positions; that takes another
  // sequence, an empty one, for a moment (kUnsupported where there is none).
  Result<std::vector<uint8_t>> SaveState(int sequence, size_t first, size_t end) const;
  // These rows in FP16. kInvalidArgument where the sequence has others; kUnsupported where some have been given up;
  // kNonFinite names layer and token of a value that FP16 does not hold.
  Result<KvState> TakeKv(int sequence, size_t first, size_t end) const;
  // Fills an empty sequence with a state that BuildState made. Where llama.cpp refuses it, it stays empty: kOutOfRange
  // where there seems to be no room, else kInternal.
  Status SetState(ByteSpan state, int sequence);

 private:
  explicit CardContext(const Model& model) : model_(model) {}
  static bool OnNode(ggml_tensor* node, bool ask, void* self);
  Status CheckBinding(llama_context* context) const;
  Status Learn();
  void SetLayers();
  int EmptySequence() const;
  Result<std::vector<uint8_t>> SaveRaw(int sequence, uint32_t flags) const;
  size_t Rows() const;

  const Model& model_;
  GraphProbe probe_;
  std::unique_ptr<FusedContext> fused_;  // where it was asked for
  Status fused_status_;
  // The owner's callback, and whether it and the probe want to see the node that is computed next.
  bool (*next_callback_)(ggml_tensor*, bool, void*) = nullptr;
  void* next_data_ = nullptr;
  bool next_wants_ = false, probe_wants_ = false;
  bool called_ = false;  // by the context
  llama_context* context_ = nullptr;
  bool bound_ = false;
  ContextFacts facts_;
};

}  // namespace qkvshare
