// The C++ face of qkvshare/llama.h, which says what each call does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qkvshare/llama.h"
#include "qkvshare/qkvshare.hpp"

namespace qkv {

inline Result<Model> BorrowModel(llama_model* llama, const std::string& path) {
  qkv_model* model = nullptr;
  QKV_RETURN_IF_ERROR(
      detail::Call([&](qkv_error* error) { return qkv_model_borrow(llama, path.c_str(), &model, error); }));
  return Model(model);
}

// As qkv_placed_card.
struct PlacedCard {
  const Card* card = nullptr;
  uint32_t offset = QKV_NEXT;
  uint32_t tokens = 0;
};

class Attention {
 public:
  static Result<Attention> Create(const Model& model, llama_context_params* params) {
    qkv_attention* attention = nullptr;
    QKV_RETURN_IF_ERROR(
        detail::Call([&](qkv_error* error) { return qkv_attention_create(model.get(), params, &attention, error); }));
    return Attention(attention);
  }
  Status Bind(llama_context* context) {
    return detail::Call([&](qkv_error* error) { return qkv_attention_bind(get(), context, error); });
  }

  qkv_attention_info info() const {
    qkv_attention_info info{};
    qkv_attention_get_info(get(), &info, sizeof info, nullptr);
    return info;
  }
  Result<Injection> Inject(int32_t sequence, std::span<const PlacedCard> cards, qkv_inject mode = QKV_INJECT_AUTO) {
    std::vector<qkv_placed_card> list;
    for (const PlacedCard& placed : cards)
      list.push_back({placed.card == nullptr ? nullptr : placed.card->get(), placed.offset, placed.tokens});
    list.emplace_back();  // so that there is an array
    return detail::CallForInjection([&](qkv_injection* done, size_t size, qkv_error* error) {
      return qkv_attention_inject(get(), sequence, list.data(), list.size() - 1, mode, done, size, error);
    });
  }
  Result<Injection> Inject(int32_t sequence, const Card& card, qkv_inject mode = QKV_INJECT_AUTO) {
    const PlacedCard placed{&card};
    return Inject(sequence, {&placed, 1}, mode);
  }
  Status Detach(int32_t sequence) {
    return detail::Call([&](qkv_error* error) { return qkv_attention_detach(get(), sequence, error); });
  }
  Status Copy(int32_t from, int32_t to) {
    return detail::Call([&](qkv_error* error) { return qkv_attention_copy(get(), from, to, error); });
  }
  // result: llama_decode's; may be null.
  Status Decode(const llama_batch& batch, int32_t* result = nullptr) {
    return detail::Call([&](qkv_error* error) { return qkv_attention_decode(get(), &batch, result, error); });
  }

  Status PackFile(int32_t sequence, std::span<const int32_t> tokens, const std::string& path,
                  const PackOptions& options = {}) const {
    const detail::BoundPackOptions bound(options);
    return detail::Call([&](qkv_error* error) {
      return qkv_attention_pack_file(get(), sequence, detail::Data(tokens), tokens.size(), bound.get(), path.c_str(),
                                     error);
    });
  }
  Result<std::vector<uint8_t>> PackMemory(int32_t sequence, std::span<const int32_t> tokens,
                                          const PackOptions& options = {}) const {
    const detail::BoundPackOptions bound(options);
    return detail::CallForArray<std::vector<uint8_t>>([&](uint8_t** card, size_t* bytes, qkv_error* error) {
      return qkv_attention_pack_memory(get(), sequence, detail::Data(tokens), tokens.size(), bound.get(), card, bytes,
                                       error);
    });
  }
  qkv_attention* get() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(qkv_attention* attention) const { qkv_attention_free(attention); }
  };
  explicit Attention(qkv_attention* attention) : handle_(attention) {}
  std::unique_ptr<qkv_attention, Free> handle_;
};

}  // namespace qkv
