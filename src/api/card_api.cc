// Cards: open, check, look into, put into a session.
#include <algorithm>

#include "api/api_support.h"
#include "base/hash.h"
#include "quant/half.h"
#include "quant/kernels.h"
#include "runtime/restore.h"

namespace api = qkvshare::api;
using qkvshare::Card;
using qkvshare::Half;
using qkvshare::Result;
using qkvshare::Session;
using qkvshare::Side;
using qkvshare::Status;
using qkvshare::StatusCode;

namespace {

Status Give(Result<Card> opened, qkv_card** card) {
  if (!opened) return opened.status();
  auto handle = std::make_unique<qkv_card>(qkv_card{std::make_shared<const Card>(*std::move(opened)), "", "", ""});
  handle->content_id = qkvshare::ToHex(handle->card->content_id());
  handle->model_fingerprint = qkvshare::ToHex(handle->card->identity().model);
  handle->info_json = CardInfoToJson(handle->card->info());
  *card = handle.release();
  return {};
}

Status CheckLayer(const Card& card, size_t layer) {
  if (layer < card.layers()) return {};
  return {StatusCode::kInvalidArgument, "layer: the card has " + std::to_string(card.layers()) + ", from 0"};
}

Result<Side> SideOf(qkv_side side) {
  if (side == QKV_KEYS) return Side::kKeys;
  if (side == QKV_VALUES) return Side::kValues;
  return Status(StatusCode::kInvalidArgument, "side: give QKV_KEYS or QKV_VALUES");
}

// Every value of the card can be dequantized.
Status CheckValues(const Card& card) {
  QKV_ASSIGN_OR_RETURN(const qkvshare::Kernels* kernels, qkvshare::SelectKernels());
  std::vector<Half> rows;
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      rows.resize(card.tokens() * card.shape(layer).row_values(side));
      QKV_RETURN_IF_ERROR(card.Unpack(*kernels, layer, side, card.tokens(), rows.data()));
    }
  }
  return {};
}

Status Unpack(const Card& card, size_t layer, qkv_side which, size_t tokens, qkv_dtype dtype, void* out, size_t bytes) {
  QKV_RETURN_IF_ERROR(CheckLayer(card, layer));
  QKV_ASSIGN_OR_RETURN(const Side side, SideOf(which));
  if (dtype != QKV_F16 && dtype != QKV_F32) return {StatusCode::kInvalidArgument, "dtype: give QKV_F16 or QKV_F32"};
  if (tokens == 0 || tokens > card.tokens()) {
    return {StatusCode::kInvalidArgument, "token_count: the card has " + std::to_string(card.tokens())};
  }
  const size_t values = tokens * card.shape(layer).row_values(side);
  const size_t needed = values * (dtype == QKV_F16 ? sizeof(Half) : sizeof(float));
  if (bytes != needed) {
    return {StatusCode::kInvalidArgument,
            "row_bytes: " + std::to_string(needed) + " are needed, " + std::to_string(bytes) + " were given"};
  }
  QKV_ASSIGN_OR_RETURN(const qkvshare::Kernels* kernels, qkvshare::SelectKernels());
  std::vector<Half> rows(values);  // so that a failure leaves the caller's as they were
  QKV_RETURN_IF_ERROR(card.Unpack(*kernels, layer, side, tokens, rows.data()));
  if (dtype == QKV_F16) {
    std::memcpy(out, rows.data(), needed);
  } else {
    std::transform(rows.begin(), rows.end(), static_cast<float*>(out), qkvshare::HalfToFloat);
  }
  return {};
}

}  // namespace

qkv_status qkv_card_open(const char* path, qkv_card** card, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"path", path}, {"card", card}}));
    return Give(Card::Open(path), card);
  });
}

qkv_status qkv_card_from_bytes(const uint8_t* bytes, size_t byte_count, qkv_card** card, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"bytes", bytes}, {"card", card}}));
    return Give(Card::FromBytes({bytes, bytes + byte_count}), card);
  });
}

void qkv_card_free(qkv_card* card) { delete card; }

qkv_status qkv_card_verify(const qkv_card* card, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}}));
    QKV_RETURN_IF_ERROR(card->card->VerifyDigests());
    return CheckValues(*card->card);
  });
}

qkv_status qkv_card_get_info(const qkv_card* card, qkv_card_info* info, size_t info_size, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"info", info}}));
    const Card& inner = *card->card;
    const qkvshare::CardInfo& says = inner.info();
    qkv_card_info value{};
    value.tokens = inner.tokens();
    value.layers = inner.layers();
    value.content_id = card->content_id.c_str();
    value.model_fingerprint = card->model_fingerprint.c_str();
    value.model_name = says.model_name.c_str();
    value.agent = says.sender.c_str();
    value.policy = says.policy.c_str();
    value.info_json = card->info_json.c_str();
    value.code_bits = inner.average_code_bits();
    value.total_bits = inner.average_total_bits();
    value.card_bytes = inner.file_bytes();
    value.f16_bytes = inner.fp16_bytes();
    api::CopyOut(value, info, info_size);
    return {};
  });
}

qkv_status qkv_card_get_token_ids(const qkv_card* card, const int32_t** token_ids, size_t* token_count,
                                  qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"token_ids", token_ids}, {"token_count", token_count}}));
    *token_ids = card->card->token_ids().data();
    *token_count = card->card->tokens();
    return {};
  });
}

qkv_status qkv_card_get_positions(const qkv_card* card, const int32_t** positions, size_t* token_count,
                                  qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"positions", positions}, {"token_count", token_count}}));
    *positions = card->card->positions().data();
    *token_count = card->card->tokens();
    return {};
  });
}

qkv_status qkv_card_get_layer_shape(const qkv_card* card, size_t layer, qkv_layer_shape* shape, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"shape", shape}}));
    QKV_RETURN_IF_ERROR(CheckLayer(*card->card, layer));
    const qkvshare::LayerShape& inner = card->card->shape(layer);
    *shape = {inner.kv_heads, inner.key_dim, inner.value_dim};
    return {};
  });
}

qkv_status qkv_card_get_token_bits(const qkv_card* card, size_t layer, qkv_side side, uint8_t* bits, size_t bit_count,
                                   qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"bits", bits}}));
    QKV_RETURN_IF_ERROR(CheckLayer(*card->card, layer));
    QKV_ASSIGN_OR_RETURN(const Side which, SideOf(side));
    if (bit_count != card->card->tokens()) {
      return {StatusCode::kInvalidArgument,
              "bit_count: the card has " + std::to_string(card->card->tokens()) + " tokens"};
    }
    const qkvshare::BitPlan& plan = card->card->plan();
    const std::vector<int> bits_of_level = plan.SideBitsOf(layer, which);
    for (size_t token = 0; token < bit_count; ++token) {
      bits[token] = static_cast<uint8_t>(bits_of_level[plan.level_of_token[token]]);
    }
    return {};
  });
}

qkv_status qkv_card_unpack(const qkv_card* card, size_t layer, qkv_side side, size_t token_count, qkv_dtype dtype,
                           void* rows, size_t row_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"card", card}, {"rows", rows}}));
    return Unpack(*card->card, layer, side, token_count, dtype, rows, row_bytes);
  });
}

qkv_status qkv_session_restore(qkv_session* session, const qkv_card* card, size_t token_count, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"card", card}}));
    const size_t tokens = token_count == 0 ? card->card->tokens() : token_count;
    qkvshare::RestoreTimes times;
    Status status = RestoreCard(*card->card, tokens, session->session.get(), &times);
    const size_t held = session->session->tokens().size();
    session->restored = status.ok() ? held : std::min(session->restored, held);  // a failed injection empties it
    return status;
  });
}

qkv_status qkv_session_inject(qkv_session* session, const qkv_card* const* cards, size_t card_count, size_t token_count,
                              qkv_inject mode, qkv_injection* injection, size_t injection_size, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"cards", cards}}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::InjectMode way, api::InjectModeOf(mode));
    std::vector<std::shared_ptr<const Card>> list;
    for (const qkv_card* card : std::span(cards, card_count)) {
      QKV_RETURN_IF_ERROR(api::CheckNotNull({{"a card of cards", card}}));
      list.push_back(card->card);
    }
    QKV_ASSIGN_OR_RETURN(std::vector<qkvshare::CardPart> parts, qkvshare::PlaceCards(list));
    const size_t all = parts.back().end();
    if (token_count > all) {
      return {StatusCode::kInvalidArgument, "token_count: the cards have " + std::to_string(all) + " tokens"};
    }
    if (token_count > 0) parts = FirstTokens(std::move(parts), token_count);
    Session& inner = *session->session;
    const Result<qkvshare::Injection> done = InjectCards(parts, way, &inner);
    const size_t held = inner.tokens().size();
    if (!done) {
      session->restored = std::min(session->restored, held);  // a failed injection empties it
      return done.status();
    }
    session->restored = done->mode == qkvshare::InjectMode::kRestore ? held : 0;
    api::GiveInjection(*done, held, &session->inject_reason, injection, injection_size);
    return {};
  });
}
