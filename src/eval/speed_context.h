// The context that all ways of a speed measurement start from, and a card of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "eval/run_folder.h"
#include "eval/speed.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// Model and request must outlive it.
class SpeedContext {
 public:
  // Prefills the context, or takes it from the request's folder, and packs it; fills in what the report says of both.
  static Result<std::unique_ptr<SpeedContext>> Make(const Model& model, const SpeedRequest& request,
                                                    SpeedReport* report);
  ~SpeedContext() = default;
  SpeedContext(const SpeedContext&) = delete;
  SpeedContext& operator=(const SpeedContext&) = delete;

  const Model& model() const { return model_; }
  const SpeedRequest& request() const { return request_; }
  size_t depth() const { return request_.depth; }
  std::span<const int32_t> tokens() const { return std::span(tokens_).first(depth()); }
  // Tokens that follow the context.
  std::span<const int32_t> After(size_t count) const { return std::span(tokens_).subspan(depth(), count); }
  void Step(const std::string& name) const;

  // The whole context in 16 bits, and packed as the request says.
  const std::shared_ptr<const Card>& exact() const { return exact_; }
  const std::shared_ptr<const Card>& card() const { return card_; }
  std::string card_path() const { return RunPath("context.card"); }
  // Of a file that goes with this object, in the request's folder.
  std::string RunPath(const std::string& name) const { return run_->path() + "/" + name; }

  // Of a session that holds `tokens` tokens and what follows them, with such a cache ...
  SessionOptions Options(CacheType type, size_t tokens) const;
  // ... and of one that the card can be attached to.
  SessionOptions FusedOptions() const;
  // Attaches a card of the context.
  static Status Attach(std::shared_ptr<const Card> card, Session* session);

 private:
  SpeedContext(const Model& model, const SpeedRequest& request) : model_(model), request_(request) {}
  Status Pack(const Session& session, SpeedReport* report);

  const Model& model_;
  const SpeedRequest& request_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<RunFolder> run_;
  std::shared_ptr<const Card> exact_, card_;
};

}  // namespace qkvshare
