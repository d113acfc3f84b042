// Agent A reads a text and packs what it has read; agent B goes on from the card and answers a question about it.
// Usage: handover MODEL.gguf TEXT_FILE QUESTION CARD
#include <fstream>
#include <iostream>
#include <iterator>
#include <qkvshare/qkvshare.hpp>
#include <string>

namespace {

qkv::SessionOptions Context() {
  qkv::SessionOptions options;
  options.context = 2048;
  return options;
}

// Reads the text as a user's turn and leaves a card of it.
qkv::Status AgentA(const std::string& model_path, const std::string& text, const std::string& card_path) {
  QKV_ASSIGN_OR_RETURN(const qkv::Model model, qkv::Model::Load(model_path));
  qkv::PackOptions pack;
  pack.agent = "A";
  pack.bits = 8;
  pack.conversation = {{"user", text}};
  QKV_ASSIGN_OR_RETURN(const std::string prompt, model.ChatTemplate(pack.conversation, false));
  QKV_ASSIGN_OR_RETURN(qkv::Session session, qkv::Session::Create(model, Context()));
  qkv::PrefillOptions prefill;
  prefill.on_progress = [](size_t done, size_t total) {
    std::cerr << "\rA has read " << done << " of " << total << " tokens";
    return true;  // false would cancel
  };
  QKV_RETURN_IF_ERROR(session.PrefillText(prompt, prefill));
  std::cerr << '\n';
  return session.PackFile(card_path, pack);
}

// Goes on from the card: nothing of the text is read again.
qkv::Status AgentB(const std::string& model_path, const std::string& card_path, const std::string& question) {
  QKV_ASSIGN_OR_RETURN(const qkv::Card card, qkv::Card::Open(card_path));
  QKV_ASSIGN_OR_RETURN(const qkv::Model model, qkv::Model::Load(model_path));
  QKV_ASSIGN_OR_RETURN(qkv::Session session, qkv::Session::Create(model, Context()));
  QKV_RETURN_IF_ERROR(session.Restore(card));
  QKV_ASSIGN_OR_RETURN(const std::string turn, model.ChatNextTurn(question));
  QKV_RETURN_IF_ERROR(session.PrefillText(turn));
  qkv::GenerateOptions generate;
  generate.temp = 0;
  generate.on_piece = [](std::string_view piece) { return static_cast<bool>(std::cout << piece << std::flush); };
  QKV_ASSIGN_OR_RETURN(const qkv::Generation answer, session.Generate(generate));
  std::cerr << "\nB took " << card.info().tokens << " tokens from " << card.info().agent << "'s card and generated "
            << answer.tokens.size() << '\n';
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: handover MODEL.gguf TEXT_FILE QUESTION CARD\n";
    return 2;
  }
  const std::string model = argv[1];
  const std::string card = argv[4];
  std::ifstream file(argv[2]);
  if (!file) {
    std::cerr << "error: cannot read " << argv[2] << '\n';
    return 1;
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  qkv::Status status = AgentA(model, text, card);
  if (status.ok()) status = AgentB(model, card, argv[3]);
  if (!status.ok()) std::cerr << "error: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
