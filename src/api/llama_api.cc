// Contexts that an application has: cards in and out of their sequences.
#include "qkvshare/llama.h"

#include <algorithm>
#include <span>
#include <utility>

#include "api/api_support.h"

namespace api = qkvshare::api;
using qkvshare::CardContext;
using qkvshare::CardPart;
using qkvshare::Result;
using qkvshare::Status;
using qkvshare::StatusCode;

namespace {

Status CheckBound(const qkv_attention* attention) {
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"attention", attention}}));
  if (attention->context->handle() != nullptr) return {};
  return {StatusCode::kInvalidArgument, "there is no context yet: call qkv_attention_bind first"};
}

// Where each card goes.
Result<std::vector<CardPart>> PartsOf(std::span<const qkv_placed_card> cards) {
  std::vector<CardPart> parts;
  for (const qkv_placed_card& placed : cards) {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"a card of cards", placed.card}}));
    const std::shared_ptr<const qkvshare::Card>& card = placed.card->card;
    if (placed.offset == QKV_NEXT) {
      QKV_RETURN_IF_ERROR(AppendCard(card, &parts));
    } else {
      parts.push_back({card, placed.offset, card->tokens()});
    }
    if (placed.tokens > 0) parts.back().tokens = placed.tokens;
  }
  return parts;
}

Result<qkvshare::PackedCard> Pack(const qkv_attention* attention, int32_t sequence, std::span<const int32_t> tokens,
                                  const qkv_pack_options* options) {
  const CardContext& context = *attention->context;
  QKV_RETURN_IF_ERROR(context.CheckSequence(sequence));
  const auto unknown = [&](int32_t token) { return token < 0 || token >= context.model().vocab_size(); };
  if (std::any_of(tokens.begin(), tokens.end(), unknown)) {
    return Status(StatusCode::kInvalidArgument, "a token id is not in the model's vocabulary");
  }
  return api::Pack({context, tokens, nullptr, sequence}, attention->restored.contains(sequence), options);
}

}  // namespace

qkv_status qkv_model_borrow(llama_model* llama, const char* path, qkv_model** model, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"llama", llama}, {"path", path}, {"model", model}}));
    return api::GiveModel(qkvshare::Model::Borrow(llama, path), model);
  });
}

qkv_status qkv_attention_create(const qkv_model* model, llama_context_params* params, qkv_attention** attention,
                                qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"model", model}, {"params", params}, {"attention", attention}}));
    auto handle = std::make_unique<qkv_attention>();
    handle->model = model->model;
    QKV_ASSIGN_OR_RETURN(handle->context, CardContext::Create(*model->model, /*fused=*/true));
    handle->context->SetCallback(params);
    *attention = handle.release();
    return {};
  });
}

void qkv_attention_free(qkv_attention* attention) { delete attention; }

qkv_status qkv_attention_bind(qkv_attention* attention, llama_context* context, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"attention", attention}, {"context", context}}));
    return attention->context->Bind(context);
  });
}

qkv_status qkv_attention_get_info(const qkv_attention* attention, qkv_attention_info* info, size_t info_size,
                                  qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"attention", attention}, {"info", info}}));
    const Status& fused = attention->context->fused();
    api::CopyOut(qkv_attention_info{fused.ok(), fused.message().c_str()}, info, info_size);
    return {};
  });
}

qkv_status qkv_attention_inject(qkv_attention* attention, int32_t sequence, const qkv_placed_card* cards,
                                size_t card_count, qkv_inject mode, qkv_injection* injection, size_t injection_size,
                                qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"cards", cards}}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::InjectMode way, api::InjectModeOf(mode));
    QKV_ASSIGN_OR_RETURN(const std::vector<CardPart> parts, PartsOf({cards, card_count}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::Injection done, InjectCards(parts, way, attention->context.get(), sequence));
    attention->restored.erase(sequence);
    if (done.mode == qkvshare::InjectMode::kRestore) attention->restored.insert(sequence);
    api::GiveInjection(done, parts.back().end(), &attention->inject_reason, injection, injection_size);
    return {};
  });
}

qkv_status qkv_attention_detach(qkv_attention* attention, int32_t sequence, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(attention->context->CheckSequence(sequence));
    attention->context->Clear(sequence);
    attention->restored.erase(sequence);
    return {};
  });
}

qkv_status qkv_attention_copy(qkv_attention* attention, int32_t from, int32_t to, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(attention->context->Copy(from, to));
    attention->restored.erase(to);
    if (attention->restored.contains(from)) attention->restored.insert(to);
    return {};
  });
}

qkv_status qkv_attention_decode(qkv_attention* attention, const llama_batch* batch, int32_t* result, qkv_error* error) {
  int32_t code = -1;
  const qkv_status status = api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"batch", batch}}));
    return attention->context->Decode(*batch, &code);
  });
  if (result != nullptr) *result = code;
  return status;
}

qkv_status qkv_attention_pack_file(const qkv_attention* attention, int32_t sequence, const int32_t* tokens,
                                   size_t token_count, const qkv_pack_options* options, const char* path,
                                   qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"tokens", tokens}, {"path", path}}));
    QKV_RETURN_IF_ERROR(qkvshare::CheckReplaceableCard(path));
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard card, Pack(attention, sequence, {tokens, token_count}, options));
    return card.Write(path);
  });
}

qkv_status qkv_attention_pack_memory(const qkv_attention* attention, int32_t sequence, const int32_t* tokens,
                                     size_t token_count, const qkv_pack_options* options, uint8_t** card,
                                     size_t* card_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(CheckBound(attention));
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"tokens", tokens}, {"card", card}, {"card_bytes", card_bytes}}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard packed, Pack(attention, sequence, {tokens, token_count}, options));
    api::Owned<uint8_t>(packed.Bytes()).Give(card, card_bytes);
    return {};
  });
}
