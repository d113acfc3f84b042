// Models of the C API: loading, facts, tokens, templates.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "qkvshare/qkvshare.h"
#include "tests/api_fixture.h"
#include "tests/tiny_model.h"

namespace qkvshare {
namespace {

TEST_F(ApiTest, Model) {
  qkv_model_info info{};
  Good(qkv_model_get_info(model_.get(), &info, sizeof info, &error_));
  EXPECT_STREQ(info.architecture, "llama");
  EXPECT_EQ(std::strlen(info.fingerprint), 64U);
  EXPECT_EQ(info.training_context, 2048U);
  EXPECT_GT(info.vocab_size, 256);
  qkv_model* model = nullptr;
  Bad(qkv_model_load(Path("none.gguf").c_str(), nullptr, &model, &error_), QKV_NOT_FOUND, "none.gguf");
  std::filesystem::copy_file(Path("model.gguf"), Path("cut.gguf"));
  std::filesystem::resize_file(Path("cut.gguf"), 1000);
  Bad(qkv_model_load(Path("cut.gguf").c_str(), nullptr, &model, &error_), QKV_CORRUPT, "cut.gguf");
  qkv_model_options options;
  qkv_model_options_default(&options, sizeof options);
  size_t calls = 0;
  options.progress_data = &calls;
  options.progress = [](void* data, size_t done, size_t total) {
    EXPECT_LE(done, total);
    ++*static_cast<size_t*>(data);
    return false;
  };
  Bad(qkv_model_load(Path("model.gguf").c_str(), &options, &model, &error_), QKV_CANCELLED, "cancelled");
  EXPECT_EQ(calls, 1U);
  EXPECT_EQ(model, nullptr);
}

TEST_F(ApiTest, TokensAndTemplates) {
  int32_t* tokens = nullptr;
  char* text = nullptr;
  size_t count = 0;
  size_t bytes = 0;
  Good(qkv_tokenize(model_.get(), kText.data(), kText.size(), true, &tokens, &count, &error_));
  Good(qkv_detokenize(model_.get(), tokens, count, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes), kText);
  EXPECT_EQ(text[bytes], '\0');
  qkv_free(tokens);
  qkv_free(text);
  Good(qkv_tokenize(model_.get(), "", 0, false, &tokens, &count, &error_));
  EXPECT_EQ(count, 0U);
  qkv_free(tokens);
  Bad(qkv_tokenize(model_.get(), "caf\xe9", 4, true, &tokens, &count, &error_), QKV_INVALID_ARGUMENT, "byte 3");
  const std::array<qkv_message, 2> messages = {qkv_message{"system", "Be brief."}, {"user", "Who?"}};
  Good(qkv_chat_template(model_.get(), messages.data(), 2, true, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n");
  qkv_free(text);
  Good(qkv_chat_next_turn(model_.get(), "Why?", 4, "", 0, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes), "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  qkv_free(text);
  Good(qkv_chat_next_turn(model_.get(), "Why?", 4, "an answer", 9, &text, &bytes, &error_));
  EXPECT_EQ(std::string(text, bytes).find("<|im_end|>\n<|im_start|>user"), 0U);
  qkv_free(text);
  TinyModelSpec plain;
  plain.chat_template = "";
  ASSERT_TRUE(WriteTinyModel(plain, Path("plain.gguf")).ok());
  const auto model = LoadModel("plain.gguf");
  Bad(qkv_chat_template(model.get(), messages.data(), 2, true, &text, &bytes, &error_), QKV_UNSUPPORTED, "template");
}

}  // namespace
}  // namespace qkvshare
