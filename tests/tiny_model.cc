#include "tests/tiny_model.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

namespace qkvshare {
namespace {

constexpr float kLogitStd = 3.0F;
constexpr float kProjectionStd = 1.5F;  // of q and k: scores have about its square
constexpr int kOutliersPerHead = 3;
constexpr int kConvolution = 3;     // tokens, of lfm2
constexpr float kSoftCap = 4.0F;    // of gemma2: scores have a standard deviation of about 2
constexpr float kSink = 6.0F;       // of gpt-oss: e^6 is about what 40 scores sum up to
constexpr int kExperts = 2;         // of gpt-oss
constexpr float kRopeScale = 4.0F;  // of linear scaling and YaRN
constexpr int kTokenNormal = 1, kTokenControl = 3, kTokenUnused = 5;  // tokenizer.ggml.token_type

// Pairs in GPT-2's alphabet, where \u0120 stands for a space; earlier pairs merge first.
constexpr std::array<std::pair<const char*, const char*>, 44> kMerges = {{
    {"t", "h"},        {"th", "e"},         {"i", "n"},       {"in", "g"},       {"\u0120", "the"}, {"e", "r"},
    {"o", "n"},        {"a", "n"},          {"r", "e"},       {"\u0120", "a"},   {"\u0120", "s"},   {"\u0120", "c"},
    {"an", "d"},       {"\u0120", "and"},   {"u", "t"},       {"\u0120c", "ut"}, {"t", "ing"},      {"o", "u"},
    {"e", "n"},        {"i", "s"},          {"\u0120", "is"}, {"o", "r"},        {"a", "t"},        {"e", "s"},
    {"\u0120", "w"},   {"\u0120", "o"},     {"\u0120o", "f"}, {"\u0120", "t"},   {"\u0120t", "o"},  {"\u0120", "b"},
    {"\u0120", "p"},   {"e", "d"},          {"a", "r"},       {"\u0120", "in"},  {"i", "t"},        {"\u0120", "f"},
    {"l", "l"},        {"\u0120", "h"},     {"\u0120", "m"},  {"i", "on"},       {"t", "er"},       {"at", "ion"},
    {"\u0120w", "at"}, {"\u0120wat", "er"},
}};
constexpr std::array<const char*, 3> kControlTokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

struct GgufFree {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct GgmlFree {
  void operator()(ggml_context* ggml) const { ggml_free(ggml); }
};

// Roughly normal numbers from integer arithmetic alone, so that every machine gets the same.
class Random {
 public:
  Random(uint32_t seed, const std::string& name) : state_(seed) {
    for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;  // FNV-1a
  }
  uint64_t Next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Mean 0, standard deviation 1: the sum of four uniform numbers.
  float Normal() {
    const uint64_t bits = Next();
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (16 * i) & 0xFFFF);
    return static_cast<float>(sum - 2 * 65535) * (1.7320508F / 65536.0F);
  }

 private:
  uint64_t state_;
};

std::string Utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    tokens.push_back(Utf8(printable ? byte : next++));
  }
  return tokens;
}

// Collects metadata and tensors, then writes them.
class Writer {
 public:
  explicit Writer(const TinyModelSpec& spec)
      : spec_(spec), gguf_(gguf_init_empty()), ggml_(ggml_init({size_t{1} << 20, nullptr, /*no_alloc=*/true})) {}

  Status Write(const std::string& path);

 private:
  using Fill = std::function<float(int64_t)>;  // element index -> value

  std::string Key(const std::string& name) const { return spec_.architecture + "." + name; }
  void SetInt(const std::string& name, int value) {
    gguf_set_val_u32(gguf_.get(), Key(name).c_str(), static_cast<uint32_t>(value));
  }
  void SetFloat(const std::string& name, float value) { gguf_set_val_f32(gguf_.get(), Key(name).c_str(), value); }

  void AddTokenizer();
  void AddAttentionMetadata();
  void AddWindowMetadata();
  void AddTensor(const std::string& name, std::initializer_list<int64_t> shape, const Fill& fill);
  // Normal numbers with a standard deviation of gain / sqrt(inputs): a unit input gives outputs of about gain.
  void AddMatrix(const std::string& name, int64_t inputs, int64_t outputs, float gain);
  void AddVector(const std::string& name, int64_t n, float mean, float deviation);
  void AddKeyBias(const std::string& name);
  void AddRopeScaling();
  void AddRopeFactors();
  void AddShared();
  void AddAttention(const std::string& layer);
  void AddFeedForward(const std::string& layer);
  void AddExperts(const std::string& layer);
  void AddRecurrent(const std::string& layer);
  void AddConvolution(const std::string& layer);

  bool Is(const char* architecture) const { return spec_.architecture == architecture; }
  bool IsGemma() const { return Is("gemma2") || Is("gemma3"); }
  bool HasPostNorms() const { return IsGemma() || Is("plamo3") || Is("glm4"); }
  bool HasHeadNorms() const { return Is("gemma3") || Is("plamo3") || IsHybrid(); }
  bool HasBiases() const { return Is("qwen2") || Is("qwen2vl"); }
  bool IsHybrid() const { return Is("lfm2"); }
  bool IsConvolution(int layer) const { return IsHybrid() && layer % 2 == 0; }

  TinyModelSpec spec_;  // without zeros that stand for something else
  std::unique_ptr<gguf_context, GgufFree> gguf_;
  std::unique_ptr<ggml_context, GgmlFree> ggml_;
  std::vector<std::unique_ptr<uint8_t[]>> data_;
};

void Writer::AddTokenizer() {
  std::vector<std::string> tokens = ByteTokens();
  std::vector<std::string> merges;
  for (const auto& [left, right] : kMerges) {
    merges.push_back(std::string(left) + " " + right);
    tokens.push_back(std::string(left) + right);
  }
  std::vector<int32_t> types(tokens.size(), kTokenNormal);
  const auto first_control = static_cast<uint32_t>(tokens.size());
  for (const char* token : kControlTokens) tokens.emplace_back(token);
  types.resize(tokens.size(), kTokenControl);
  while (static_cast<int>(tokens.size()) < spec_.vocab) {
    tokens.push_back("<|unused_" + std::to_string(tokens.size()) + "|>");
  }
  types.resize(tokens.size(), kTokenUnused);
  spec_.vocab = static_cast<int>(tokens.size());

  const auto set_strings = [this](const char* key, const std::vector<std::string>& strings) {
    std::vector<const char*> pointers;
    for (const std::string& text : strings) pointers.push_back(text.c_str());
    gguf_set_arr_str(gguf_.get(), key, pointers.data(), pointers.size());
  };
  gguf_context* gguf = gguf_.get();
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(gguf, "tokenizer.ggml.pre",
                   !spec_.pre.empty() ? spec_.pre.c_str()
                   : HasBiases()      ? "qwen2"
                                      : "smollm");
  set_strings("tokenizer.ggml.tokens", tokens);
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  set_strings("tokenizer.ggml.merges", merges);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", first_control);
  gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", first_control);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", first_control + 2);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", spec_.add_bos);
  if (!spec_.chat_template.empty()) gguf_set_val_str(gguf, "tokenizer.chat_template", spec_.chat_template.c_str());
}

void Writer::AddAttentionMetadata() {
  SetInt("feed_forward_length", spec_.ff);
  SetInt("attention.head_count", spec_.heads);
  if (IsHybrid()) {
    std::vector<uint32_t> kv_heads;
    for (int i = 0; i < spec_.layers; ++i)
      kv_heads.push_back(IsConvolution(i) ? 0 : static_cast<uint32_t>(spec_.kv_heads));
    gguf_set_arr_data(gguf_.get(), Key("attention.head_count_kv").c_str(), GGUF_TYPE_UINT32, kv_heads.data(),
                      kv_heads.size());
    SetInt("shortconv.l_cache", kConvolution);
  } else {
    SetInt("attention.head_count_kv", spec_.kv_heads);
  }
  SetInt("attention.key_length", spec_.key_dim);
  SetInt("attention.value_length", spec_.value_dim);
  SetInt("rope.dimension_count", spec_.rope_dims);
  SetFloat("rope.freq_base", spec_.rope_base);
  if (Is("qwen2vl")) {
    const std::array<int32_t, 4> sections = {spec_.key_dim / 8, spec_.key_dim / 8, spec_.key_dim / 4, 0};
    gguf_set_arr_data(gguf_.get(), Key("rope.dimension_sections").c_str(), GGUF_TYPE_INT32, sections.data(),
                      sections.size());
  }
  if (spec_.sliding_window > 0) AddWindowMetadata();
  AddRopeScaling();
  if (Is("gemma2")) SetFloat("attn_logit_softcapping", kSoftCap);
  if (Is("gpt-oss")) {
    SetInt("expert_count", kExperts);
    SetInt("expert_used_count", kExperts);
    SetInt("expert_feed_forward_length", spec_.ff);
  }
}

void Writer::AddRopeScaling() {
  if (spec_.rope_scaling.empty() || spec_.rope_scaling == "llama3") return;
  gguf_set_val_str(gguf_.get(), Key("rope.scaling.type").c_str(), spec_.rope_scaling.c_str());
  const bool long_rope = spec_.rope_scaling == "longrope";
  if (!long_rope) SetFloat("rope.scaling.factor", kRopeScale);
  if (spec_.rope_scaling == "linear") return;
  SetInt("rope.scaling.original_context_length", spec_.context / (long_rope ? 2 : static_cast<int>(kRopeScale)));
}

void Writer::AddWindowMetadata() {
  SetInt("attention.sliding_window", spec_.sliding_window);
  SetFloat("rope.freq_base_swa", spec_.rope_base_window);
  std::vector<int8_t> has_window;
  for (int layer = 0; layer < spec_.layers; ++layer) has_window.push_back(layer % 2 == 0 ? 1 : 0);
  gguf_set_arr_data(gguf_.get(), Key("attention.sliding_window_pattern").c_str(), GGUF_TYPE_BOOL, has_window.data(),
                    has_window.size());
}

void Writer::AddTensor(const std::string& name, std::initializer_list<int64_t> shape, const Fill& fill) {
  // llama.cpp's own converter keeps vectors and the small recurrent matrices in F32.
  const bool recurrent = name.find(".ssm_") != std::string::npos || name.find("shortconv.conv") != std::string::npos;
  const bool matrix = shape.size() > 1 && !name.ends_with(".bias") && !recurrent;
  const bool half = spec_.half_matrices && matrix;
  ggml_tensor* tensor =
      ggml_new_tensor(ggml_.get(), half ? GGML_TYPE_F16 : GGML_TYPE_F32, static_cast<int>(shape.size()), shape.begin());
  ggml_set_name(tensor, name.c_str());
  std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = fill(static_cast<int64_t>(i));
  data_.push_back(std::make_unique<uint8_t[]>(ggml_nbytes(tensor)));
  tensor->data = data_.back().get();
  if (half) {
    ggml_fp32_to_fp16_row(values.data(), static_cast<ggml_fp16_t*>(tensor->data), ggml_nelements(tensor));
  } else {
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor->data));
  }
  gguf_add_tensor(gguf_.get(), tensor);
}

void Writer::AddMatrix(const std::string& name, int64_t inputs, int64_t outputs, float gain) {
  Random random(spec_.seed, name);
  const float deviation = gain / std::sqrt(static_cast<float>(inputs));
  AddTensor(name, {inputs, outputs}, [&](int64_t) { return deviation * random.Normal(); });
}

void Writer::AddVector(const std::string& name, int64_t n, float mean, float deviation) {
  Random random(spec_.seed, name);
  AddTensor(name, {n}, [&](int64_t) { return mean + deviation * random.Normal(); });
}

// As in the Qwen2 family: a few channels of K far from zero at every token, among those that RoPE turns slowly.
void Writer::AddKeyBias(const std::string& name) {
  Random random(spec_.seed, name);
  const int64_t half = spec_.key_dim / 2;
  std::vector<float> bias(static_cast<size_t>(spec_.kv_heads) * static_cast<size_t>(spec_.key_dim));
  for (float& value : bias) value = 0.5F * random.Normal();
  for (int head = 0; head < spec_.kv_heads; ++head) {
    for (int i = 0; i < kOutliersPerHead; ++i) {
      const int64_t slow_pair = half - 1 - static_cast<int64_t>(random.Next() % static_cast<uint64_t>(half / 2));
      const int64_t channel = head * spec_.key_dim + slow_pair + (random.Next() % 2 == 0 ? 0 : half);
      bias[static_cast<size_t>(channel)] = random.Next() % 2 == 0 ? spec_.key_bias : -spec_.key_bias;
    }
  }
  AddTensor(name, {static_cast<int64_t>(bias.size())}, [&](int64_t i) { return bias[static_cast<size_t>(i)]; });
}

void Writer::AddRopeFactors() {
  const auto add = [&](const char* name, float slope) {
    AddTensor(name, {spec_.key_dim / 2}, [slope](int64_t i) { return 1.0F + slope * static_cast<float>(i); });
  };
  if (spec_.rope_scaling == "llama3") add("rope_freqs.weight", 0.2F);
  if (spec_.rope_scaling != "longrope") return;
  add("rope_factors_short.weight", 0.0F);
  add("rope_factors_long.weight", 0.1F);
}

void Writer::AddShared() {
  // A row of the embedding is also a row of the output matrix when tied: scaled for the logits.
  AddMatrix("token_embd.weight", spec_.embed, spec_.vocab, kLogitStd);
  if (!spec_.tied) AddMatrix("output.weight", spec_.embed, spec_.vocab, kLogitStd);
  // Random signs: without them a tied model mostly repeats its last token, whose embedding is in the residual stream.
  Random random(spec_.seed, "output_norm.weight");
  AddTensor(IsHybrid() ? "token_embd_norm.weight" : "output_norm.weight", {spec_.embed}, [&](int64_t) {
    const float sign = random.Next() % 2 == 0 ? 1.0F : -1.0F;
    return spec_.nan_logits ? std::numeric_limits<float>::quiet_NaN() : sign;
  });
}

void Writer::AddAttention(const std::string& layer) {
  const int64_t q_outputs = int64_t{spec_.heads} * spec_.key_dim;
  const int64_t k_outputs = int64_t{spec_.kv_heads} * spec_.key_dim;
  const int64_t v_outputs = int64_t{spec_.kv_heads} * spec_.value_dim;
  AddVector(layer + "attn_norm.weight", spec_.embed, 1.0F, 0.1F);
  if (Is("plamo3")) {
    AddMatrix(layer + "attn_qkv.weight", spec_.embed, q_outputs + k_outputs + v_outputs, 1.0F);
  } else {
    AddMatrix(layer + "attn_q.weight", spec_.embed, q_outputs, kProjectionStd);
    AddMatrix(layer + "attn_k.weight", spec_.embed, k_outputs, kProjectionStd);
    AddMatrix(layer + "attn_v.weight", spec_.embed, v_outputs, 1.0F);
  }
  if (HasBiases()) {
    AddVector(layer + "attn_q.bias", q_outputs, 0.0F, 0.3F);
    AddKeyBias(layer + "attn_k.bias");
    AddVector(layer + "attn_v.bias", v_outputs, 0.0F, 0.1F);
  }
  AddMatrix(layer + "attn_output.weight", int64_t{spec_.heads} * spec_.value_dim, spec_.embed, 2.0F);
  if (Is("gpt-oss")) {
    AddVector(layer + "attn_output.bias", spec_.embed, 0.0F, 0.1F);
    AddVector(layer + "attn_sinks.weight", spec_.heads, kSink, 1.0F);
  }
  if (HasHeadNorms()) {
    AddVector(layer + "attn_q_norm.weight", spec_.key_dim, kProjectionStd, 0.1F);
    AddVector(layer + "attn_k_norm.weight", spec_.key_dim, kProjectionStd, 0.1F);
  }
}

void Writer::AddFeedForward(const std::string& layer) {
  AddVector(layer + "ffn_norm.weight", spec_.embed, 1.0F, 0.1F);
  if (Is("plamo3") || Is("glm4")) {  // gate and up in one
    AddMatrix(layer + "ffn_up.weight", spec_.embed, int64_t{2} * spec_.ff, kProjectionStd);
  } else {
    AddMatrix(layer + "ffn_gate.weight", spec_.embed, spec_.ff, kProjectionStd);
    AddMatrix(layer + "ffn_up.weight", spec_.embed, spec_.ff, kProjectionStd);
  }
  AddMatrix(layer + "ffn_down.weight", spec_.ff, spec_.embed, 1.0F);
  if (HasPostNorms()) {
    // plamo3 names its post norms without ".weight". Gemma scales the embeddings up, so its layers have to follow.
    for (const char* name : {"post_attention_norm", "post_ffw_norm"}) {
      AddVector(layer + name + (Is("plamo3") ? "" : ".weight"), spec_.embed, IsGemma() ? 4.0F : 1.0F, 0.1F);
    }
  }
}

// The feed-forward part of gpt-oss.
void Writer::AddExperts(const std::string& layer) {
  AddVector(layer + "post_attention_norm.weight", spec_.embed, 1.0F, 0.1F);
  AddMatrix(layer + "ffn_gate_inp.weight", spec_.embed, kExperts, 1.0F);
  AddVector(layer + "ffn_gate_inp.bias", kExperts, 0.0F, 0.1F);
  const auto add = [&](const std::string& name, int64_t inputs, int64_t outputs) {
    Random random(spec_.seed, name);
    const float deviation = 1.0F / std::sqrt(static_cast<float>(inputs));
    AddTensor(name + ".weight", {inputs, outputs, kExperts}, [&](int64_t) { return deviation * random.Normal(); });
    AddTensor(name + ".bias", {outputs, kExperts}, [&](int64_t) { return 0.1F * random.Normal(); });
  };
  add(layer + "ffn_gate_exps", spec_.embed, spec_.ff);
  add(layer + "ffn_up_exps", spec_.embed, spec_.ff);
  add(layer + "ffn_down_exps", spec_.ff, spec_.embed);
}

// Mamba 1. A is stored as -exp(A_log), as llama.cpp's converter does.
void Writer::AddRecurrent(const std::string& layer) {
  const int64_t inner = int64_t{2} * spec_.embed, state = 8, time_rank = 8, kernel = 4;
  AddVector(layer + "attn_norm.weight", spec_.embed, 1.0F, 0.1F);
  AddMatrix(layer + "ssm_in.weight", spec_.embed, 2 * inner, 1.0F);
  AddMatrix(layer + "ssm_conv1d.weight", kernel, inner, 1.0F);
  AddVector(layer + "ssm_conv1d.bias", inner, 0.0F, 0.1F);
  AddMatrix(layer + "ssm_x.weight", inner, time_rank + 2 * state, 2.0F);
  AddMatrix(layer + "ssm_dt.weight", time_rank, inner, 1.0F);
  AddVector(layer + "ssm_dt.bias", inner, -2.0F, 0.5F);
  AddTensor(layer + "ssm_a", {state, inner}, [&](int64_t i) { return -static_cast<float>(i % state + 1); });
  AddVector(layer + "ssm_d", inner, 1.0F, 0.1F);
  AddMatrix(layer + "ssm_out.weight", inner, spec_.embed, 2.0F);
}

// LFM2's layers without attention.
void Writer::AddConvolution(const std::string& layer) {
  AddVector(layer + "attn_norm.weight", spec_.embed, 1.0F, 0.1F);
  AddMatrix(layer + "shortconv.conv.weight", kConvolution, spec_.embed, 1.0F);
  AddMatrix(layer + "shortconv.in_proj.weight", spec_.embed, int64_t{3} * spec_.embed, 1.0F);
  AddMatrix(layer + "shortconv.out_proj.weight", spec_.embed, spec_.embed, 2.0F);
}

Status Writer::Write(const std::string& path) {
  const bool recurrent = Is("mamba");
  gguf_set_val_str(gguf_.get(), "general.architecture", spec_.architecture.c_str());
  gguf_set_val_str(gguf_.get(), "general.name", "tiny random model");
  SetInt("block_count", spec_.layers);
  SetInt("context_length", spec_.context);
  SetInt("embedding_length", spec_.embed);
  SetFloat("attention.layer_norm_rms_epsilon", 1e-5F);
  if (recurrent) {
    SetInt("feed_forward_length", 0);
    SetInt("attention.head_count", 0);
    SetInt("ssm.conv_kernel", 4);
    SetInt("ssm.inner_size", 2 * spec_.embed);
    SetInt("ssm.state_size", 8);
    SetInt("ssm.time_step_rank", 8);
  } else {
    AddAttentionMetadata();
  }
  AddTokenizer();
  AddShared();
  AddRopeFactors();
  for (int i = 0; i < spec_.layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    if (recurrent) {
      AddRecurrent(layer);
    } else {
      IsConvolution(i) ? AddConvolution(layer) : AddAttention(layer);
      Is("gpt-oss") ? AddExperts(layer) : AddFeedForward(layer);
    }
  }
  if (!gguf_write_to_file(gguf_.get(), path.c_str(), /*only_meta=*/false)) {
    return {StatusCode::kIo, "cannot write " + path};
  }
  return {};
}

bool NeedsSquareAttention(const TinyModelSpec& spec) {
  return spec.architecture == "qwen2" || spec.architecture == "qwen2vl" || spec.architecture == "lfm2";
}

Status Check(const TinyModelSpec& spec) {
  const auto invalid = [](const char* why) {
    return Status(StatusCode::kInvalidArgument, std::string("tiny model: ") + why);
  };
  using Names = std::initializer_list<const char*>;
  const auto is = [&](Names names) { return std::find(names.begin(), names.end(), spec.architecture) != names.end(); };
  if (!is({"llama", "smollm3", "qwen2", "qwen2vl", "glm4", "gemma2", "gemma3", "gpt-oss", "plamo3", "mamba", "lfm2"}))
    return invalid("unknown architecture");
  if (spec.layers < 1 || spec.heads < 1 || spec.kv_heads < 1 || spec.key_dim < 4 || spec.key_dim % 2 != 0) {
    return invalid("a size is too small or key_dim is odd");
  }
  if (spec.heads % spec.kv_heads != 0) return invalid("heads is no multiple of kv_heads");
  if (spec.value_dim != spec.key_dim && !is({"plamo3"})) return invalid("value_dim != key_dim needs plamo3");
  if (spec.sliding_window > 0 && !is({"gemma2", "gemma3", "gpt-oss", "plamo3"}))
    return invalid("a sliding window needs gemma2, gemma3, gpt-oss or plamo3");
  if (spec.sliding_window == 0 && is({"gemma2", "gpt-oss"})) return invalid("it needs a sliding window");
  if (spec.tied && is({"gpt-oss"})) return invalid("it needs an output matrix");
  if (spec.rope_dims < 2 || spec.rope_dims % 2 != 0 || spec.rope_dims > spec.key_dim) {
    return invalid("rope_dims is odd or no part of key_dim");
  }
  if (spec.rope_dims != spec.key_dim && !is({"glm4", "gemma3", "plamo3"}))
    return invalid("rope_dims != key_dim needs glm4, gemma3 or plamo3");
  const std::string& scaling = spec.rope_scaling;
  if (!scaling.empty() && scaling != "linear" && scaling != "yarn" &&
      !(is({"llama"}) && (scaling == "llama3" || scaling == "longrope"))) {
    return invalid("an unknown rope_scaling, or one that needs llama");
  }
  if (NeedsSquareAttention(spec) && spec.embed != spec.heads * spec.key_dim) {
    return invalid("qwen2, qwen2vl and lfm2 need embed = heads * key_dim");
  }
  return {};
}

}  // namespace

Status WriteTinyModel(const TinyModelSpec& given, const std::string& path) {
  TinyModelSpec spec = given;
  if (spec.value_dim == 0) spec.value_dim = spec.key_dim;
  if (spec.rope_dims == 0) spec.rope_dims = spec.key_dim;
  if (spec.embed == 0) spec.embed = NeedsSquareAttention(spec) ? spec.heads * spec.key_dim : 128;
  if (spec.ff == 0) spec.ff = 2 * spec.embed;
  if (spec.rope_base_window == 0.0F) spec.rope_base_window = spec.rope_base;
  QKV_RETURN_IF_ERROR(Check(spec));
  return Writer(spec).Write(path);
}

}  // namespace qkvshare
