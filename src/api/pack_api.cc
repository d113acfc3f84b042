// Packing what a session holds.
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/api_support.h"
#include "card/static_profile.h"
#include "policy/policy.h"
#include "runtime/pack_text.h"
#include "runtime/prompt.h"
#include "runtime/sender.h"

namespace api = qkvshare::api;
using qkvshare::PackOptions;
using qkvshare::Result;
using qkvshare::Session;
using qkvshare::Status;
using qkvshare::StatusCode;

namespace {

std::string TextOr(const char* text, const char* otherwise) { return text == nullptr ? otherwise : text; }

// Arrays and what they hold.
Status CheckArrays(const qkv_pack_options& options) {
  if (options.message_count > 0) QKV_RETURN_IF_ERROR(api::CheckNotNull({{"messages", options.messages}}));
  if (options.reader_count > 0) QKV_RETURN_IF_ERROR(api::CheckNotNull({{"readers", options.readers}}));
  for (const qkv_reader& reader : std::span(options.readers, options.reader_count)) {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"the agent of a reader", reader.agent}}));
    QKV_RETURN_IF_ERROR(qkvshare::CheckUtf8(reader.agent));
  }
  if (options.anchor_card_count > 0) QKV_RETURN_IF_ERROR(api::CheckNotNull({{"anchor_cards", options.anchor_cards}}));
  for (const qkv_card* card : std::span(options.anchor_cards, options.anchor_card_count)) {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"a card of anchor_cards", card}}));
  }
  return {};
}

// How bits are given: all that does not depend on the session.
Status ReadPolicy(const qkv_pack_options& options, PackOptions* pack) {
  const PackOptions defaults;
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"policy", options.policy}, {"features", options.features}}));
  QKV_ASSIGN_OR_RETURN(pack->policy, qkvshare::PolicyFromName(options.policy));
  QKV_ASSIGN_OR_RETURN(pack->control_of,
                       qkvshare::PolicyFromName(TextOr(options.control_of, qkvshare::PolicyName(defaults.control_of))));
  QKV_ASSIGN_OR_RETURN(pack->features, qkvshare::ParseFeatures(options.features));
  if (pack->features.NeedsPredictions()) {
    return {StatusCode::kUnsupported, "features: confidence and next_entropy are not to be had here; leave them out"};
  }
  QKV_ASSIGN_OR_RETURN(pack->levels, qkvshare::ParseLevels(TextOr(options.levels, "")));
  pack->policy_seed = options.seed;
  pack->alpha = options.alpha;
  pack->code_bits = options.bits;
  pack->max_bytes = options.max_bytes;
  pack->protected_tokens = options.protect_last;
  QKV_RETURN_IF_ERROR(qkvshare::CheckPackOptions(*pack));
  qkvshare::GivenOptions given;
  if (options.control_of != nullptr) given.control_of = "control_of";
  if (options.seed != defaults.policy_seed) given.seed = "seed";
  if (options.alpha != defaults.alpha) given.alpha = "alpha";
  if (options.anchor_card_count > 0) given.anchors = "anchor_cards";
  return qkvshare::CheckGivenOptions(*pack, given);
}

// What is known of the tokens and of those who will use them.
Status ReadContext(const qkv_session& handle, const qkv_pack_options& options, PackOptions* pack) {
  const std::vector<int32_t>& tokens = handle.session->tokens();
  if (options.messages != nullptr) {
    QKV_RETURN_IF_ERROR(api::CheckMessages(options.messages, options.message_count));
    pack->segments =
        SegmentsOf(*handle.model, api::Messages(options.messages, options.message_count), tokens, pack->sender);
  }
  for (const qkv_reader& reader : std::span(options.readers, options.reader_count)) {
    std::vector<std::string> roles;
    if (reader.role != nullptr) roles.emplace_back(reader.role);
    QKV_RETURN_IF_ERROR(
        AddReader({reader.agent, reader.distance}, roles, pack->sender, tokens.size(), &pack->segments));
  }
  for (size_t i = 0; i < options.anchor_card_count; ++i) {
    const std::string name = "anchor_cards[" + std::to_string(i) + "]";
    QKV_RETURN_IF_ERROR(AddAnchors(options.anchor_cards[i]->card, name, tokens, &pack->anchors));
  }
  return {};
}

Result<qkvshare::PackedCard> Pack(const qkv_session* handle, const qkv_pack_options* given) {
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(api::ReadOptions(given, &options));
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"agent", options.agent}}));
  QKV_RETURN_IF_ERROR(qkvshare::CheckUtf8(options.agent));
  QKV_RETURN_IF_ERROR(CheckArrays(options));
  const Session& session = *handle->session;
  if (handle->restored > 0) {
    return Status(StatusCode::kUnsupported,
                  "the session holds tokens of a card, and what a card holds must not be quantized twice");
  }
  if (session.tokens().empty()) {
    return Status(StatusCode::kInvalidArgument, "the session is empty: there is nothing to pack");
  }
  PackOptions pack;
  pack.sender = options.agent;
  QKV_RETURN_IF_ERROR(ReadPolicy(options, &pack));
  if (options.profile != nullptr) {
    QKV_ASSIGN_OR_RETURN(qkvshare::StaticProfile profile, qkvshare::OpenStaticProfile(options.profile));
    pack.profile = std::make_shared<const qkvshare::StaticProfile>(std::move(profile));
  }
  QKV_ASSIGN_OR_RETURN(pack.layers,
                       qkvshare::ParseLayerBits(TextOr(options.layer_bits, ""), session.state_layout().shapes.size()));
  QKV_RETURN_IF_ERROR(ReadContext(*handle, options, &pack));
  qkvshare::PackTimes times;
  return PackSession(session, pack, &times);
}

}  // namespace

qkv_status qkv_pack_options_default(qkv_pack_options* options, size_t struct_size) {
  const PackOptions defaults;
  qkv_pack_options value{};
  value.bits = defaults.code_bits;
  value.max_bytes = defaults.max_bytes;
  value.policy = qkvshare::PolicyName(defaults.policy);
  value.agent = "agent";
  value.features = "default";
  value.alpha = defaults.alpha;
  value.seed = defaults.policy_seed;
  return api::SetDefaults(value, options, struct_size);
}

qkv_status qkv_session_pack_file(const qkv_session* session, const qkv_pack_options* options, const char* path,
                                 qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"path", path}}));
    QKV_RETURN_IF_ERROR(qkvshare::CheckReplaceableCard(path));
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard card, Pack(session, options));
    return card.Write(path);
  });
}

qkv_status qkv_session_pack_memory(const qkv_session* session, const qkv_pack_options* options, uint8_t** card,
                                   size_t* card_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"card", card}, {"card_bytes", card_bytes}}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard packed, Pack(session, options));
    api::Owned<uint8_t>(packed.Bytes()).Give(card, card_bytes);
    return {};
  });
}
