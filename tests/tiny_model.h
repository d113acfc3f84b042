// Small seeded random GGUF models for tests: every attention shape that cards must carry, without a download.
#pragma once

#include <cstdint>
#include <string>

#include "qkvshare/status.h"

namespace qkvshare {

// The template that models trained on ChatML carry.
inline constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Two specs that differ in seed have the same shapes and other weights; specs that differ in anything else have the
// same values in all tensors of the same name and shape.
struct TinyModelSpec {
  // "llama":   interleaved RoPE.
  // "smollm3": as llama, but layers 3, 7, 11... have no RoPE.
  // "qwen2":   NEOX RoPE and Q, K and V biases, with a few large outliers in K's; embed must be heads * key_dim.
  // "qwen2vl": as qwen2, with RoPE of several positions a token (MROPE).
  // "glm4":    as llama, but RoPE may turn a part of the channels.
  // "gemma2":  attention with a soft cap, NEOX RoPE; must have a sliding window.
  // "gemma3":  Q and K norms, NEOX RoPE, may have a sliding window with its own RoPE base.
  // "gpt-oss": attention with sinks, two experts, NEOX RoPE; must have a sliding window and an output matrix.
  // "plamo3":  as gemma3, and the only one here that takes value_dim != key_dim.
  // "mamba":   recurrent, no attention at all; uses only layers, embed, vocab and the tokenizer's settings.
  // "lfm2":    hybrid: layers 0, 2, 4... are convolutions, the others attention as llama's; embed as qwen2's.
  std::string architecture = "llama";
  int layers = 2;
  int heads = 4;
  int kv_heads = 2;
  int key_dim = 64;
  int value_dim = 0;  // 0: key_dim
  int rope_dims = 0;  // that RoPE turns, the first of a head; 0: key_dim; others for glm4, gemma3 and plamo3 only
  int embed = 0;      // 0: heads * key_dim for qwen2, qwen2vl and lfm2, else 128
  int ff = 0;         // 0: 2 * embed
  int vocab = 0;      // 0: as many as the tokenizer needs; more are padded with unused tokens
  float rope_base = 10000.0F;
  float rope_base_window = 0.0F;  // of layers with a window; 0: rope_base
  // Tokens; gemma2, gemma3, gpt-oss and plamo3 only: layers 0, 2, 4... have the window, the others none.
  int sliding_window = 0;
  // "linear" or "yarn": by 4, from a quarter of `context`. Llama only: "llama3" (frequency factors), or "longrope"
  // (contexts over half of `context` use other factors). Empty: none.
  std::string rope_scaling;
  bool tied = true;           // the output matrix is the embedding matrix
  bool half_matrices = true;  // F16 matrices, else F32; vectors are always F32
  bool nan_logits = false;    // its output is no numbers, though its cache is
  float key_bias = 20.0F;     // qwen2 and qwen2vl: of the outliers in K
  int context = 2048;
  bool add_bos = false;
  std::string pre;                      // tokenizer.ggml.pre; empty: qwen2's for qwen2 and qwen2vl, else smollm's
  std::string chat_template = kChatMl;  // empty: none
  uint32_t seed = 1;
};

// Writes the model, the same bytes on every machine. Its tokenizer is byte-level BPE with 256 byte tokens, some merges
// (" the", "ing", " cut" and such, so that a cut inside a word changes the tokens) and the control tokens <|endoftext|>
// (BOS), <|im_start|> and <|im_end|> (EOS). Logits have a standard deviation of about 3.
// Errors: kInvalidArgument (a shape that the architecture cannot have), kIo.
Status WriteTinyModel(const TinyModelSpec& spec, const std::string& path);

}  // namespace qkvshare
