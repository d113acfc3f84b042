// Flags that several commands share, and what they stand for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "card/card_chain.h"
#include "qkvshare/status.h"
#include "runtime/inject.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace qkvshare::cli {

// A text that is not empty: an unset variable must not pass for a flag that was left out.
CLI::Validator NotEmpty();
// A number in [low, high], and no NaN.
CLI::Validator Finite(double low, double high);
// A whole number in [low, high], in decimal digits.
CLI::Validator Count(uint64_t low, uint64_t high = UINT64_MAX);

// Of the model and of contexts of it.
struct ModelFlags {
  std::string model = "smollm2-135m";
  int gpu_layers = 0;
  SessionOptions session;

  // -m, -t, -ub, --rope-freq-base, --rope-freq-scale.
  void AddModelTo(CLI::App* app);
  // These, and -ngl, -c, -ctk, -ctv, -fa.
  void AddTo(CLI::App* app);
  // Shows progress while it loads. Flags that contradict each other are refused before.
  Result<std::unique_ptr<Model>> Load() const;
};

// --inject.
CLI::Option* AddInject(CLI::App* app, InjectMode* mode);

// -p, -f, --messages, or standard input; --chat and -sys make a conversation of the text.
struct PromptFlags {
  std::optional<std::string> text;  // may be empty
  std::string file;
  std::string messages_file;
  std::string system;
  bool chat = false;

  void AddTo(CLI::App* app);
};

// A prompt's text, and the messages that it was made from, if it was.
struct Prompt {
  std::string text;
  std::vector<ChatMessage> messages;
};

// Reads the prompt: -p, -f (- for standard input) or --messages (a JSON array of {"role", "content"}). With none of
// them, standard input, unless it is a terminal. Messages, and the text with --chat, go through the model's chat
// template, with the start of the assistant's turn if add_generation_prompt. kInvalidArgument: more than one, no UTF-8,
// wrong JSON.
Result<Prompt> ReadPrompt(const PromptFlags& flags, const Model& model, bool add_generation_prompt);

// What was found besides the cards that were given: a line each, for standard error.
std::string FoundText(const std::vector<ChainCard>& chain);

// Checked before the work: kNotFound, kIo or kInvalidArgument where no file can be written at `path`, or where it is
// one of the inputs.
Status CheckTarget(const std::string& path, const std::vector<std::string>& inputs);
Status CheckTarget(const std::string& path, const ModelFlags& model, const PromptFlags& prompt);
// CheckTarget, and kInvalidArgument where something else than a card is there.
Status CheckCardTarget(const std::string& path, const ModelFlags& model, const PromptFlags& prompt);

}  // namespace qkvshare::cli
