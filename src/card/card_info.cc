#include "card/card_info.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "card/format.h"

namespace qkvshare {
namespace {

using nlohmann::json;

Status Corrupt(const std::string& what) { return {StatusCode::kCorrupt, "card info: " + what}; }

Status GetText(const json& object, const char* key, std::string* out) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return Corrupt(fmt::format("'{}' is missing or not a string", key));
  *out = it->get<std::string>();
  return {};
}

Status GetCount(const json& object, const char* key, uint32_t* out) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned() || it->get<uint64_t>() > UINT32_MAX) {
    return Corrupt(fmt::format("'{}' is missing or not a 32-bit count", key));
  }
  *out = it->get<uint32_t>();
  return {};
}

Status GetArray(const json& object, const char* key, const json** out) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return Corrupt(fmt::format("'{}' is missing or not an array", key));
  *out = &*it;
  return {};
}

Status ParseReader(const json& object, SegmentReader* reader) {
  if (!object.is_object()) return Corrupt("a reader is not an object");
  QKV_RETURN_IF_ERROR(GetText(object, "agent", &reader->agent));
  QKV_RETURN_IF_ERROR(GetCount(object, "distance", &reader->distance));
  return reader->distance > 0 ? Status() : Corrupt("a reader is at distance 0");
}

Status ParseSegment(const json& object, Segment* segment) {
  if (!object.is_object()) return Corrupt("a segment is not an object");
  QKV_RETURN_IF_ERROR(GetText(object, "role", &segment->role));
  QKV_RETURN_IF_ERROR(GetText(object, "owner", &segment->owner));
  QKV_RETURN_IF_ERROR(GetText(object, "parent", &segment->parent));
  QKV_RETURN_IF_ERROR(GetCount(object, "first_token", &segment->first_token));
  QKV_RETURN_IF_ERROR(GetCount(object, "tokens", &segment->tokens));
  const json* readers = nullptr;
  QKV_RETURN_IF_ERROR(GetArray(object, "readers", &readers));
  for (const json& entry : *readers) QKV_RETURN_IF_ERROR(ParseReader(entry, &segment->readers.emplace_back()));
  return {};
}

Status ParseContext(const json& array, std::vector<ContextCard>* context) {
  if (!array.is_array() || array.empty() || array.size() > card_format::kMaxContextCards) {
    return Corrupt(fmt::format("'context' is not an array of 1 to {} cards", card_format::kMaxContextCards));
  }
  for (const json& object : array) {
    if (!object.is_object()) return Corrupt("a card of the context is not an object");
    ContextCard& entry = context->emplace_back();
    std::string id;
    QKV_RETURN_IF_ERROR(GetText(object, "card", &id));
    const std::optional<Digest> digest = DigestFromHex(id);
    if (!digest) return Corrupt("'card' is not a content id");
    entry.card = *digest;
    QKV_RETURN_IF_ERROR(GetCount(object, "tokens", &entry.tokens));
  }
  return {};
}

Status ParseInfo(const json& object, CardInfo* info) {
  if (!object.is_object()) return Corrupt("not a JSON object");
  QKV_RETURN_IF_ERROR(GetText(object, "model_name", &info->model_name));
  QKV_RETURN_IF_ERROR(GetText(object, "architecture", &info->architecture));
  QKV_RETURN_IF_ERROR(GetText(object, "sender", &info->sender));
  QKV_RETURN_IF_ERROR(GetText(object, "policy", &info->policy));
  QKV_RETURN_IF_ERROR(GetText(object, "created", &info->created));
  QKV_RETURN_IF_ERROR(GetText(object, "writer", &info->writer));
  QKV_RETURN_IF_ERROR(GetText(object, "cache_type", &info->cache_type));
  QKV_RETURN_IF_ERROR(GetText(object, "rounding", &info->rounding));
  const json* features = nullptr;
  QKV_RETURN_IF_ERROR(GetArray(object, "features", &features));
  for (const json& feature : *features) {
    if (!feature.is_string()) return Corrupt("a feature is not a string");
    info->features.push_back(feature.get<std::string>());
  }
  const json* segments = nullptr;
  QKV_RETURN_IF_ERROR(GetArray(object, "segments", &segments));
  for (const json& entry : *segments) QKV_RETURN_IF_ERROR(ParseSegment(entry, &info->segments.emplace_back()));
  const auto context = object.find("context");
  return context == object.end() ? Status() : ParseContext(*context, &info->context);
}

}  // namespace

Status CheckSegments(const std::vector<Segment>& segments, uint32_t tokens) {
  uint32_t next = 0;
  for (const Segment& segment : segments) {
    if (segment.first_token != next) {
      return Corrupt(fmt::format("a segment starts at token {}, not at {}", segment.first_token, next));
    }
    if (segment.tokens == 0 || segment.tokens > tokens - next) {
      return Corrupt("a segment is empty or runs past the last token");
    }
    next += segment.tokens;
  }
  if (next != tokens) return Corrupt(fmt::format("segments cover {} of {} tokens", next, tokens));
  return {};
}

Status CheckContextCards(const std::vector<ContextCard>& context, const Digest& parent, uint32_t first_token,
                         int32_t position_offset) {
  if (context.empty()) return {};
  uint64_t tokens = 0;
  for (const ContextCard& entry : context) {
    if (entry.tokens == 0) return Corrupt("no tokens of a card of the context");
    tokens += entry.tokens;
  }
  if (tokens != first_token) return Corrupt(fmt::format("the context has {} tokens, not {}", tokens, first_token));
  if (context.back().card != parent) return Corrupt("the context does not end with the parent");
  if (position_offset < 0 || static_cast<uint32_t>(position_offset) != first_token) {
    return Corrupt(fmt::format("the context ends at {}, but the card starts at {}", first_token, position_offset));
  }
  return {};
}

std::string CardInfoToJson(const CardInfo& info) {
  json segments = json::array();
  for (const Segment& segment : info.segments) {
    json readers = json::array();
    for (const SegmentReader& reader : segment.readers) {
      readers.push_back({{"agent", reader.agent}, {"distance", reader.distance}});
    }
    segments.push_back({{"role", segment.role},
                        {"owner", segment.owner},
                        {"parent", segment.parent},
                        {"first_token", segment.first_token},
                        {"tokens", segment.tokens},
                        {"readers", readers}});
  }
  json object = {{"model_name", info.model_name}, {"architecture", info.architecture}, {"sender", info.sender},
                 {"policy", info.policy},         {"created", info.created},           {"writer", info.writer},
                 {"features", info.features},     {"cache_type", info.cache_type},     {"rounding", info.rounding},
                 {"segments", segments}};
  for (const ContextCard& entry : info.context) {
    object["context"].push_back({{"card", ToHex(entry.card)}, {"tokens", entry.tokens}});
  }
  // Invalid UTF-8 in a name is replaced: names are for people.
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<CardInfo> CardInfoFromJson(const std::string& text) {
  // The parser takes a zero byte for the end and would pass over what follows.
  if (text.find('\0') != std::string::npos) return Corrupt("holds a zero byte");
  // The callback bounds the depth, so that no input can exhaust the stack.
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= 6; };
  const json object = json::parse(text, shallow, /*allow_exceptions=*/false);
  CardInfo info;
  QKV_RETURN_IF_ERROR(ParseInfo(object, &info));
  return info;
}

}  // namespace qkvshare
