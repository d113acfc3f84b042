// The models of tiny_model.h load in llama.cpp, decode with flash attention, and have the properties promised there.
#include "tests/tiny_model.h"

#include <gtest/gtest.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace qkvshare {
namespace {

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelFree>;
using ContextPtr = std::unique_ptr<llama_context, ContextFree>;
using Logits = std::vector<float>;

class TinyModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
  }
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("qkv_tiny_model_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const TinyModelSpec& spec) {
    const std::string path = (folder_ / ("model" + std::to_string(count_++) + ".gguf")).string();
    const Status status = WriteTinyModel(spec, path);
    EXPECT_TRUE(status.ok()) << status.message();
    return path;
  }
  ModelPtr Load(const TinyModelSpec& spec) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    return ModelPtr(llama_model_load_from_file(Write(spec).c_str(), params));
  }

  std::filesystem::path folder_;
  int count_ = 0;
};

std::vector<llama_token> Tokenize(const llama_model* model, const std::string& text, bool add_special = false) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int n = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                               tokens.data(), static_cast<int32_t>(tokens.size()), add_special, /*parse_special=*/true);
  EXPECT_GE(n, 0);
  tokens.resize(static_cast<size_t>(std::max(n, 0)));
  return tokens;
}

// The logits after each of the tokens; empty if decoding failed.
std::vector<Logits> Decode(llama_model* model, std::vector<llama_token> tokens) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.n_threads = params.n_threads_batch = 2;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  const ContextPtr context(llama_init_from_model(model, params));
  if (context == nullptr) return {};
  llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = static_cast<int32_t>(tokens.size());
  std::vector<Logits> rows;
  if (llama_decode(context.get(), batch) == 0) {
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
      const float* row = llama_get_logits_ith(context.get(), i);
      rows.emplace_back(row, row + vocab);
    }
  }
  llama_batch_free(batch);
  return rows;
}

const std::vector<llama_token> kTokens = {116, 104, 32, 97, 260, 97, 97, 280};

double StandardDeviation(const Logits& row) {
  double sum = 0, squares = 0;
  for (const float x : row) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const double n = static_cast<double>(row.size()), mean = sum / n;
  return std::sqrt(squares / n - mean * mean);
}

double LargestDifference(const Logits& a, const Logits& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

std::ptrdiff_t Argmax(const Logits& row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// Finite, well spread, and not a function of the last token alone.
void ExpectGoodLogits(const std::vector<Logits>& rows) {
  ASSERT_EQ(rows.size(), kTokens.size());
  for (const Logits& row : rows) {
    for (const float x : row) ASSERT_TRUE(std::isfinite(x));
    EXPECT_GT(StandardDeviation(row), 1.5);
    EXPECT_LT(StandardDeviation(row), 6.0);
  }
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_GT(LargestDifference(rows[i - 1], rows[i]), 0.5);
  // Tokens 3, 5 and 6 are the same: only what stands before them differs.
  EXPECT_GT(LargestDifference(rows[3], rows[5]), 0.5);
  EXPECT_GT(LargestDifference(rows[5], rows[6]), 0.1);
  int repeats = 0;
  for (size_t i = 0; i < rows.size(); ++i) repeats += Argmax(rows[i]) == kTokens[i] ? 1 : 0;
  EXPECT_LE(repeats, 2) << "the model only repeats its last token";
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(TinyModel, DecodesEveryAttentionShape) {
  for (const char* architecture : {"llama", "qwen2"}) {
    for (const int key_dim : {64, 72, 80, 96, 128, 256}) {
      for (const int kv_heads : {1, 2, 4}) {
        TinyModelSpec spec;
        spec.architecture = architecture;
        spec.key_dim = key_dim;
        spec.kv_heads = kv_heads;
        spec.tied = kv_heads != 2;
        SCOPED_TRACE(std::string(architecture) + " key_dim " + std::to_string(key_dim) + " kv_heads " +
                     std::to_string(kv_heads));
        const ModelPtr model = Load(spec);
        ASSERT_NE(model, nullptr);
        EXPECT_EQ(llama_model_n_head_kv(model.get()), kv_heads);
        EXPECT_EQ(llama_model_rope_type(model.get()),
                  spec.architecture == "llama" ? LLAMA_ROPE_TYPE_NORM : LLAMA_ROPE_TYPE_NEOX);
        ExpectGoodLogits(Decode(model.get(), kTokens));
      }
    }
  }
}

TEST_F(TinyModel, DecodesValuesOfAnotherSizeThanKeys) {
  for (const int value_dim : {32, 64, 128}) {
    TinyModelSpec spec;
    spec.architecture = "plamo3";
    spec.key_dim = 96;
    spec.value_dim = value_dim;
    spec.tied = value_dim == 64;
    SCOPED_TRACE(value_dim);
    const ModelPtr model = Load(spec);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(llama_model_n_swa(model.get()), 0);
    ExpectGoodLogits(Decode(model.get(), kTokens));
  }
}

TEST_F(TinyModel, SlidingWindowHidesOldTokens) {
  for (const char* architecture : {"gemma2", "gemma3", "gpt-oss", "plamo3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.tied = spec.architecture != "gpt-oss";
    spec.layers = 1;  // one layer, which has the window: what is outside it cannot come in through another
    spec.sliding_window = 4;
    spec.rope_base_window = 1000.0F;
    const ModelPtr model = Load(spec);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(llama_model_n_swa(model.get()), 4);
    const std::vector<Logits> rows = Decode(model.get(), kTokens);
    ExpectGoodLogits(rows);
    std::vector<llama_token> other = kTokens;
    other[0] = 120;
    const std::vector<Logits> changed = Decode(model.get(), other);
    ASSERT_EQ(changed.size(), rows.size());
    EXPECT_GT(LargestDifference(rows[3], changed[3]), 0.1);
    EXPECT_EQ(LargestDifference(rows[4], changed[4]), 0.0);

    spec.layers = 2;  // the second layer has none
    const ModelPtr deeper = Load(spec);
    ASSERT_NE(deeper, nullptr);
    EXPECT_GT(LargestDifference(Decode(deeper.get(), kTokens)[7], Decode(deeper.get(), other)[7]), 0.01);
  }
}

TEST_F(TinyModel, GemmaWithoutWindowAndRecurrentModelDecode) {
  TinyModelSpec spec;
  spec.architecture = "gemma3";
  const ModelPtr gemma = Load(spec);
  ASSERT_NE(gemma, nullptr);
  EXPECT_EQ(llama_model_n_swa(gemma.get()), 0);
  ExpectGoodLogits(Decode(gemma.get(), kTokens));
  spec.architecture = "mamba";
  const ModelPtr mamba = Load(spec);
  ASSERT_NE(mamba, nullptr);
  EXPECT_TRUE(llama_model_is_recurrent(mamba.get()));
  ExpectGoodLogits(Decode(mamba.get(), kTokens));
}

TEST_F(TinyModel, SeedAndRopeBaseChangeTheModelAndNothingElseDoes) {
  TinyModelSpec spec;
  spec.architecture = "qwen2";
  EXPECT_EQ(ReadBytes(Write(spec)), ReadBytes(Write(spec)));
  const std::vector<Logits> rows = Decode(Load(spec).get(), kTokens);
  TinyModelSpec other_base = spec;
  other_base.rope_base = 500000.0F;
  const std::vector<Logits> based = Decode(Load(other_base).get(), kTokens);
  TinyModelSpec other_seed = spec;
  other_seed.seed = 2;
  const std::vector<Logits> seeded = Decode(Load(other_seed).get(), kTokens);
  ASSERT_EQ(rows.size(), kTokens.size());
  ASSERT_EQ(based.size(), kTokens.size());
  ASSERT_EQ(seeded.size(), kTokens.size());
  EXPECT_EQ(LargestDifference(rows[0], based[0]), 0.0);  // position 0 is not rotated, so the weights are the same
  EXPECT_GT(LargestDifference(rows[7], based[7]), 0.1);
  EXPECT_GT(LargestDifference(rows[0], seeded[0]), 1.0);
}

TEST_F(TinyModel, CutInsideAWordChangesTheTokens) {
  for (const char* architecture : {"llama", "qwen2", "gemma3", "plamo3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    const ModelPtr model = Load(spec);
    ASSERT_NE(model, nullptr);
    const std::vector<llama_token> whole = Tokenize(model.get(), "the cutting");
    EXPECT_EQ(whole.size(), 3U);  // "the", " cut", "ting"
    std::vector<llama_token> at_space = Tokenize(model.get(), "the");
    for (const llama_token token : Tokenize(model.get(), " cutting")) at_space.push_back(token);
    EXPECT_EQ(at_space, whole);
    std::vector<llama_token> inside = Tokenize(model.get(), "the cutt");
    for (const llama_token token : Tokenize(model.get(), "ing")) inside.push_back(token);
    EXPECT_NE(inside, whole);
  }
}

TEST_F(TinyModel, TokenizerCoversAllBytesAndControlTokens) {
  TinyModelSpec spec;
  const ModelPtr model = Load(spec);
  ASSERT_NE(model, nullptr);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const std::string text = "t\xC3\xA4glich \xE2\x82\xAC 12\n\ttab";
  std::string back;
  for (const llama_token token : Tokenize(model.get(), text)) {
    char piece[64];
    const int n = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
    ASSERT_GT(n, 0);
    back.append(piece, static_cast<size_t>(n));
  }
  EXPECT_EQ(back, text);
  const std::vector<llama_token> control = Tokenize(model.get(), "<|im_start|><|im_end|><|endoftext|>");
  ASSERT_EQ(control.size(), 3U);
  for (const llama_token token : control) EXPECT_TRUE(llama_vocab_is_control(vocab, token));
  EXPECT_EQ(control[1], llama_vocab_eos(vocab));
  EXPECT_EQ(control[2], llama_vocab_bos(vocab));
  EXPECT_NE(llama_model_chat_template(model.get(), nullptr), nullptr);
}

TEST_F(TinyModel, BosTemplateAndVocabularySizeFollowTheSpec) {
  TinyModelSpec spec;
  EXPECT_EQ(Tokenize(Load(spec).get(), "the", /*add_special=*/true).size(), 1U);
  spec.add_bos = true;
  spec.vocab = 512;
  spec.chat_template.clear();
  spec.half_matrices = false;
  const ModelPtr model = Load(spec);
  ASSERT_NE(model, nullptr);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  EXPECT_EQ(Tokenize(model.get(), "the", /*add_special=*/true).front(), llama_vocab_bos(vocab));
  EXPECT_EQ(llama_vocab_n_tokens(vocab), 512);
  EXPECT_EQ(llama_model_chat_template(model.get(), nullptr), nullptr);
  ExpectGoodLogits(Decode(model.get(), kTokens));
}

TEST_F(TinyModel, RefusesShapesThatTheArchitectureCannotHave) {
  const auto code = [&](const auto& change) {
    TinyModelSpec spec;
    change(spec);
    return WriteTinyModel(spec, (folder_ / "refused.gguf").string()).code();
  };
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "gpt5"; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.value_dim = 32; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.sliding_window = 8; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.kv_heads = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "qwen2", s.embed = 64; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.rope_dims = 32; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "gemma3", s.rope_dims = 33; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "gemma2"; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "gpt-oss", s.sliding_window = 8; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.architecture = "qwen2", s.rope_scaling = "llama3"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TinyModelSpec& s) { s.rope_scaling = "cubic"; }), StatusCode::kInvalidArgument);
  TinyModelSpec spec;
  EXPECT_EQ(WriteTinyModel(spec, (folder_ / "missing" / "model.gguf").string()).code(), StatusCode::kIo);
}

}  // namespace
}  // namespace qkvshare
