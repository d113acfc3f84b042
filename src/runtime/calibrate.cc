#include "runtime/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/parallel.h"
#include "runtime/generate.h"

namespace qkvshare {
namespace {

constexpr size_t kFewestTokens = 64;

class Calibrator {
 public:
  Calibrator(Session* session, const CalibrateOptions& options) : session_(*session), options_(options) {
    for (const LayerShape& shape : session_.state_layout().shapes) {
      statistics_.emplace_back(shape.kv_heads, KeyStatistics(shape.key_dim));
    }
  }

  Status Run() {
    if (options_.texts.empty()) return MeasureOwnText();
    for (const std::string& text : options_.texts) QKV_RETURN_IF_ERROR(MeasureText(text));
    return {};
  }

  Result<StaticProfile> Finish() const {
    if (done_ < kFewestTokens) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} tokens are too few to calibrate with; give at least {}", done_, kFewestTokens));
    }
    StaticProfile profile;
    profile.identity = session_.identity();
    profile.identity.first_rope = {};
    profile.tokens = done_;
    profile.shapes = session_.state_layout().shapes;
    profile.layers.resize(profile.shapes.size());
    for (const auto& heads : statistics_) {
      auto& keys = profile.keys.emplace_back();
      for (const KeyStatistics& head : heads) keys.push_back(head.Profile());
    }
    return profile;
  }

 private:
  size_t PieceTokens() const {
    return std::min<size_t>({options_.piece_tokens, session_.context(), options_.tokens - done_});
  }

  Status MeasureText(const std::string& text) {
    const std::vector<int32_t> tokens = session_.model().Tokenize(text, /*add_special=*/true);
    for (size_t at = 0; at < tokens.size() && done_ < options_.tokens;) {
      const size_t n = std::min(PieceTokens(), tokens.size() - at);
      session_.Clear();
      QKV_RETURN_IF_ERROR(session_.Prefill(std::span(tokens).subspan(at, n), {}));
      QKV_RETURN_IF_ERROR(AddKeys());
      at += n;
    }
    return {};
  }

  // Each piece starts with a random token after BOS, so that pieces differ.
  Status MeasureOwnText() {
    std::mt19937 random(options_.seed);
    const std::vector<int32_t> start = session_.model().Tokenize("", /*add_special=*/true);
    while (done_ + kSinkTokens < options_.tokens) {
      std::vector<int32_t> tokens = start;
      tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(session_.model().vocab_size())));
      session_.Clear();
      QKV_RETURN_IF_ERROR(session_.Prefill(tokens, {}));
      const size_t piece = PieceTokens();
      while (session_.tokens().size() < piece) {
        GenerateOptions generate;
        generate.sampling = {1.0f, 0, 1.0f, 0.0f, static_cast<uint32_t>(random())};
        // In parts, for progress; an end of the text is read like any other token.
        generate.predict = std::min<size_t>(64, piece - session_.tokens().size());
        QKV_ASSIGN_OR_RETURN(const Generation text, Generate(&session_, generate));
        if (text.stop == StopReason::kCancelled) return {StatusCode::kCancelled, "cancelled"};
        const int32_t last = text.end_token >= 0 ? text.end_token : text.tokens.back();
        QKV_RETURN_IF_ERROR(session_.Prefill({&last, 1}, {}));
        if (options_.progress) options_.progress(done_ + session_.tokens().size(), options_.tokens);
      }
      QKV_RETURN_IF_ERROR(AddKeys());
    }
    return {};
  }

  Status AddKeys() {
    QKV_ASSIGN_OR_RETURN(const KvState state, session_.TakeKv());
    const KvView kv = state.view();
    QKV_RETURN_IF_ERROR(ParallelFor(kv.layers.size(), session_.threads(), [&](size_t layer) {
      for (uint32_t head = 0; head < kv.layers[layer].shape.kv_heads; ++head) {
        const HeadRows rows = kv.head(layer, Side::kKeys, head);
        for (size_t token = 0; token < rows.tokens; ++token) {
          if (std::all_of(rows.row(token), rows.row(token) + rows.dim, IsFiniteHalf)) continue;
          return Status(StatusCode::kNonFinite,
                        fmt::format("layer {}: the keys of token {} hold NaN or Inf", layer, token));
        }
        statistics_[layer][head].Add(rows, kSinkTokens);
      }
      return Status();
    }));
    done_ += kv.tokens;
    if (options_.progress) options_.progress(done_, options_.tokens);
    return {};
  }

  Session& session_;
  const CalibrateOptions& options_;
  std::vector<std::vector<KeyStatistics>> statistics_;  // [layer][kv_head]
  size_t done_ = 0;
};

}  // namespace

Result<StaticProfile> Calibrate(Session* session, const CalibrateOptions& options) {
  Calibrator calibrator(session, options);
  const Status status = calibrator.Run();
  session->Clear();
  QKV_RETURN_IF_ERROR(status);
  return calibrator.Finish();
}

}  // namespace qkvshare
