// Packing what a session, or a sequence of a context, holds.
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
using qkvshare::PackSource;
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
  if (pack->policy == qkvshare::Policy::kLearned || pack->control_of == qkvshare::Policy::kLearned) {
    return {StatusCode::kUnsupported, "policy learned is not to be had here: use local"};
  }
  QKV_ASSIGN_OR_RETURN(pack->features, qkvshare::ParseFeatures(options.features));
  if (pack->features.NeedsPredictions()) {
    return {StatusCode::kUnsupported, "features: confidence and next_entropy are not to be had here; leave them out"};
  }
  QKV_ASSIGN_OR_RETURN(pack->rounding, qkvshare::KeyRoundingFromName(TextOr(options.rounding, "auto")));
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
Status ReadContext(const PackSource& source, const qkv_pack_options& options, PackOptions* pack) {
  const std::vector<qkvshare::PlacedCard>& cards = source.context.cards(source.sequence);
  std::vector<int32_t> tokens = TokensOf(PartsOf(cards));
  const auto attached = static_cast<uint32_t>(tokens.size());
  tokens.insert(tokens.end(), source.tokens.begin(), source.tokens.end());
  if (options.messages != nullptr) {
    QKV_RETURN_IF_ERROR(api::CheckMessages(options.messages, options.message_count));
    const auto messages = api::Messages(options.messages, options.message_count);
    pack->segments = SegmentsFrom(SegmentsOf(source.context.model(), messages, tokens, pack->sender), attached);
  }
  for (const qkv_reader& reader : std::span(options.readers, options.reader_count)) {
    std::vector<std::string> roles;
    if (reader.role != nullptr) roles.emplace_back(reader.role);
    QKV_RETURN_IF_ERROR(
        AddReader({reader.agent, reader.distance}, roles, pack->sender, source.tokens.size(), &pack->segments));
  }
  if (options.anchor_card_count > 0 && attached > 0) {
    return {StatusCode::kUnsupported, "anchor_cards: not for tokens that follow attached cards"};
  }
  for (size_t i = 0; i < options.anchor_card_count; ++i) {
    const std::string name = "anchor_cards[" + std::to_string(i) + "]";
    QKV_RETURN_IF_ERROR(AddAnchors(*options.anchor_cards[i]->card, {}, name, tokens, &pack->anchors));
  }
  return {};
}

Result<qkvshare::PackedCard> PackSession(const qkv_session* handle, const qkv_pack_options* options) {
  const Session& session = *handle->session;
  const std::span tokens(session.tokens());
  const PackSource source{session.card_context(), tokens.subspan(session.attached()), &session.window()};
  return api::Pack(source, handle->restored > 0, options);
}

}  // namespace

namespace qkvshare::api {

Result<PackedCard> Pack(const PackSource& source, bool restored, const qkv_pack_options* given) {
  qkv_pack_options options;
  qkv_pack_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(ReadOptions(given, &options));
  QKV_RETURN_IF_ERROR(CheckNotNull({{"agent", options.agent}}));
  QKV_RETURN_IF_ERROR(CheckUtf8(options.agent));
  QKV_RETURN_IF_ERROR(CheckArrays(options));
  if (restored) {
    return Status(StatusCode::kUnsupported,
                  "there are restored tokens of a card, and what a card holds must not be quantized twice");
  }
  if (source.tokens.empty()) {
    const bool has_cards = source.context.end(source.sequence) > 0;
    return Status(StatusCode::kInvalidArgument, has_cards ? "there are no tokens after the cards: nothing to pack"
                                                          : "the session is empty: there is nothing to pack");
  }
  PackOptions pack;
  pack.sender = options.agent;
  QKV_RETURN_IF_ERROR(ReadPolicy(options, &pack));
  if (options.profile != nullptr) {
    QKV_ASSIGN_OR_RETURN(StaticProfile profile, OpenStaticProfile(options.profile));
    pack.profile = std::make_shared<const StaticProfile>(std::move(profile));
  }
  QKV_ASSIGN_OR_RETURN(pack.layers,
                       ParseLayerBits(TextOr(options.layer_bits, ""), source.context.facts().layout.shapes.size()));
  QKV_RETURN_IF_ERROR(ReadContext(source, options, &pack));
  PackTimes times;
  return PackTokens(source, pack, &times);
}

}  // namespace qkvshare::api

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
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard card, PackSession(session, options));
    return card.Write(path);
  });
}

qkv_status qkv_session_pack_memory(const qkv_session* session, const qkv_pack_options* options, uint8_t** card,
                                   size_t* card_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"card", card}, {"card_bytes", card_bytes}}));
    QKV_ASSIGN_OR_RETURN(const qkvshare::PackedCard packed, PackSession(session, options));
    api::Owned<uint8_t>(packed.Bytes()).Give(card, card_bytes);
    return {};
  });
}
