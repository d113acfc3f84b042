// One depth of a measurement of times to first token: its context, its files, and one run of each way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "eval/run_folder.h"
#include "eval/stage.h"
#include "eval/ttft.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/plain_context.h"
#include "runtime/session.h"

namespace qkvshare {

// llama.cpp's caches whose states are handed over.
inline constexpr CacheType kStateTypes[] = {CacheType::kF16, CacheType::kQ8_0, CacheType::kQ4_0};

// Options of contexts that hold `depth` tokens and a suffix.
SessionOptions TtftOptions(const TtftRequest& request, CacheType type, size_t depth);
// The same of one that a card of them can be attached to.
SessionOptions TtftFusedOptions(const TtftRequest& request, size_t depth);

struct TtftRun {
  Stages stages;
  int32_t first_token = -1;
};

// Model and request must outlive it.
class TtftDepth {
 public:
  // tokens: of the context and the suffix.
  static Result<std::unique_ptr<TtftDepth>> Make(const Model& model, const TtftRequest& request,
                                                 std::vector<int32_t> tokens, size_t depth);

  // Reads the context, packs it, and writes the card.
  Result<TtftRun> Send();
  // Writes the states, `repeats` times each; after Send. Of those that llama.cpp has for the model.
  Status WriteStates();
  // From the files to the first token, in a new context. After these are written.
  Result<TtftRun> Receive(const std::string& way);

  size_t depth() const { return depth_; }
  std::span<const int32_t> context() const { return std::span(tokens_).first(depth_); }
  const std::shared_ptr<const Card>& card() const { return card_; }  // as it was written last
  // Of what a receiver is handed.
  size_t BytesOf(const std::string& way) const;
  // Times of writing the file of a state's way; empty for others.
  std::vector<int64_t> WriteTimes(const std::string& way) const;

 private:
  struct StateFile {
    CacheType type = CacheType::kF16;
    std::string path;
    size_t bytes = 0;
    std::vector<int64_t> write_us;
  };

  TtftDepth(const Model& model, const TtftRequest& request) : model_(model), request_(request) {}
  void Step(const std::string& what) const;
  std::string CardPath() const { return run_->path() + "/context.card"; }
  std::span<const int32_t> suffix() const { return std::span(tokens_).subspan(depth_); }
  const StateFile* FindState(const std::string& way) const;
  Status PrefillSession(Session* session, PackOptions* options, Stages* stages) const;
  Status KeepExact(const Session& session);
  Status PrefillPlain(PlainContext* plain) const;
  Result<TtftRun> Reprefill() const;
  Result<TtftRun> TakeState(const StateFile& state) const;
  Result<TtftRun> RestoreCard() const;
  Result<TtftRun> AttachCard() const;
  Status FinishPlain(PlainContext* plain, TtftRun* run) const;
  Status FinishSession(Session* session, TtftRun* run) const;

  const Model& model_;
  const TtftRequest& request_;
  size_t depth_ = 0;
  std::vector<int32_t> tokens_;
  PackOptions pack_;
  std::unique_ptr<RunFolder> run_;
  std::shared_ptr<const Card> exact_, card_;
  std::vector<StateFile> states_;
};

}  // namespace qkvshare
