// An application with a llama_model, contexts and batches of its own, for tests of qkvshare/llama.h.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llama.h"
#include "qkvshare/llama.hpp"
#include "tests/fused_fixture.h"

namespace qkvshare {

// What an application has: a model, contexts, and batches of its own.
class App {
 public:
  explicit App(const std::string& path)
      : llama_(llama_model_load_from_file(path.c_str(), llama_model_default_params()), llama_model_free),
        model_(Take(qkv::BorrowModel(llama_.get(), path))) {}
  llama_model* llama() const { return llama_.get(); }
  const qkv::Model& model() const { return model_; }

 private:
  std::unique_ptr<llama_model, decltype(&llama_model_free)> llama_;
  qkv::Model model_;
};

struct Context {
  explicit Context(const App& app, llama_context_params params = Params())
      : attention(Take(qkv::Attention::Create(app.model(), &params))),
        llama(llama_init_from_model(app.llama(), params), llama_free) {}

  static llama_context_params Params() {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = 128;
    params.n_ubatch = 64;
    params.n_seq_max = 3;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = 1;
    return params;
  }
  std::vector<float> Logits(int token = -1) const {
    const float* logits = llama_get_logits_ith(llama.get(), token);
    return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(llama.get())))};
  }
  Status Decode(std::vector<int32_t> tokens) {
    return attention.Decode(llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size())));
  }
  std::vector<float> LogitsAfter(const std::vector<int32_t>& tokens) {
    const Status status = Decode(tokens);
    EXPECT_TRUE(status.ok()) << status.message();
    return Logits();
  }
  struct Tokens {
    int sequence = 0;
    uint32_t first = 0;  // position
    std::vector<int32_t> ids;
  };
  // One token at this place.
  Status DecodeOne(int32_t token, llama_seq_id sequence, llama_pos position) {
    int32_t one = 1;
    llama_seq_id* sequences = &sequence;
    return attention.Decode({1, &token, nullptr, &position, &one, &sequences, nullptr});
  }
  // Decodes all in one call, tokens of each in turn; gives the logits of each one's last.
  std::vector<std::vector<float>> DecodeTogether(const std::vector<Tokens>& all) {
    llama_batch batch = llama_batch_init(128, 0, 1);
    std::vector<int32_t> last(all.size());
    for (size_t i = 0; i < 128; ++i) {
      for (size_t k = 0; k < all.size(); ++k) {
        if (i >= all[k].ids.size()) continue;
        last[k] = batch.n_tokens++;
        batch.token[last[k]] = all[k].ids[i];
        batch.pos[last[k]] = static_cast<llama_pos>(all[k].first + i);
        batch.n_seq_id[last[k]] = 1;
        batch.seq_id[last[k]][0] = all[k].sequence;
        batch.logits[last[k]] = static_cast<int8_t>(i + 1 == all[k].ids.size());
      }
    }
    const Status status = attention.Decode(batch);
    EXPECT_TRUE(status.ok()) << status.message();
    llama_batch_free(batch);
    std::vector<std::vector<float>> logits;
    for (const int32_t i : last) logits.push_back(Logits(i));
    return logits;
  }
  void Empty(int sequence = 0) const { llama_memory_seq_rm(llama_get_memory(llama.get()), sequence, -1, -1); }

  qkv::Attention attention;
  std::unique_ptr<llama_context, decltype(&llama_free)> llama;
};

inline void Bad(const Status& status, StatusCode code, const std::string& says) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
}

class LlamaApiTest : public FusedFixture {
 protected:
  qkv::Card CardOf(const Session& session, double bits = 8) {
    PackOptions options;
    options.code_bits = bits;
    PackTimes times;
    return Take(qkv::Card::FromBytes(Take(PackSession(session, options, &times)).Bytes()));
  }
  std::unique_ptr<Context> Bound(const App& app, const llama_context_params& params = Context::Params()) {
    auto context = std::make_unique<Context>(app, params);
    const Status status = context->attention.Bind(context->llama.get());
    EXPECT_TRUE(status.ok()) << status.message();
    return context;
  }
  std::string Model() const { return Path("model.gguf"); }
};

}  // namespace qkvshare
