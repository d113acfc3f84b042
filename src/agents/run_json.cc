#include "agents/run_json.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "agents/shallow_json.h"

namespace qkvshare {
namespace {

using nlohmann::json;

constexpr double kMaxBits = 16;
constexpr uint64_t kMaxUs = 1'000'000'000'000;  // eleven days: sums of them fit

json ToJson(const HandedCard& card) { return {{"path", card.path}, {"id", card.id}, {"tokens", card.tokens}}; }

json ToJson(const std::vector<HandedCard>& cards) {
  json array = json::array();
  for (const HandedCard& card : cards) array.push_back(ToJson(card));
  return array;
}

json ToJson(const TurnRecord& record) {
  json stages = json::array();
  for (const auto& [name, us] : record.stages) stages.push_back({{"stage", name}, {"us", us}});
  return {{"turn", record.turn},
          {"agent", record.agent},
          {"outcome", OutcomeName(record.outcome)},
          {"prompt", record.prompt},
          {"text", record.text},
          {"mode", record.mode},
          {"reason", record.reason},
          {"taken", ToJson(record.taken)},
          {"gives", ToJson(record.gives)},
          {"card", ToJson(record.card)},
          {"taken_tokens", record.taken_tokens},
          {"read_tokens", record.read_tokens},
          {"generated_tokens", record.generated_tokens},
          {"taken_bytes", record.taken_bytes},
          {"card_bytes", record.card_bytes},
          {"code_bits", record.code_bits},
          {"policy", record.policy},
          {"note", record.note},
          {"features", record.features},
          {"stages", stages},
          {"ttft_us", record.ttft_us},
          {"worker", record.worker},
          {"resumed", record.resumed}};
}

std::string Line(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

// The fields of one object. Of several errors the first one counts.
class Fields {
 public:
  Fields(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) Fail("is not an object");
  }

  void Get(const char* key, std::string* out) {
    if (const json* value = Find(key, "text", &json::is_string)) *out = value->get<std::string>();
  }
  void Get(const char* key, bool* out) {
    if (const json* value = Find(key, "true or false", &json::is_boolean)) *out = value->get<bool>();
  }
  void Get(const char* key, uint32_t* out) { *out = static_cast<uint32_t>(Count(key, UINT32_MAX)); }
  void Get(const char* key, uint64_t* out) { *out = Count(key, UINT64_MAX); }
  void Get(const char* key, int64_t* out) { *out = static_cast<int64_t>(Count(key, kMaxUs)); }
  void GetBits(const char* key, double* out) {
    const json* value = Find(key, "a number", &json::is_number);
    if (value == nullptr) return;
    *out = value->get<double>();
    if (*out < 0 || *out > kMaxBits) Fail(fmt::format("has a '{}' that is not from 0 to {}", key, kMaxBits));
  }
  void Get(const char* key, HandedCard* out) {
    if (const json* value = Find(key, "an object", &json::is_object)) GetCard({*value, key}, out);
  }
  void Get(const char* key, std::vector<HandedCard>* out) {
    for (const json& entry : List(key)) GetCard({entry, fmt::format("an entry of '{}'", key)}, &out->emplace_back());
  }
  void Get(const char* key, std::vector<std::string>* out) {
    for (const json& entry : List(key)) {
      if (!entry.is_string()) return Fail(fmt::format("has an entry of '{}' that is not text", key));
      out->push_back(entry.get<std::string>());
    }
  }
  void Get(const char* key, std::vector<std::pair<std::string, int64_t>>* out) {
    for (const json& entry : List(key)) {
      auto& [name, us] = out->emplace_back();
      Fields fields(entry, fmt::format("an entry of '{}'", key));
      fields.Get("stage", &name);
      fields.Get("us", &us);
      Adopt(fields);
    }
  }
  const Status& status() const { return status_; }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = Status(StatusCode::kCorrupt, fmt::format("{} {}", name_, what));
  }

 private:
  using Test = bool (json::*)() const;
  // Null, and an error, where it is not there or is something else.
  const json* Find(const char* key, const char* kind, Test is_kind) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end() && ((*found).*is_kind)()) return &*found;
    Fail(fmt::format("has no '{}' that is {}", key, kind));
    return nullptr;
  }
  uint64_t Count(const char* key, uint64_t most) {
    const json* value = Find(key, "a whole number", &json::is_number_unsigned);
    const uint64_t count = value == nullptr ? 0 : value->get<uint64_t>();
    if (count <= most) return count;
    Fail(fmt::format("has a '{}' of more than {}", key, most));
    return 0;
  }
  const json& List(const char* key) {
    static const json kNothing = json::array();
    const json* value = Find(key, "a list", &json::is_array);
    return value == nullptr ? kNothing : *value;
  }
  void GetCard(Fields fields, HandedCard* card) {
    fields.Get("path", &card->path);
    fields.Get("id", &card->id);
    fields.Get("tokens", &card->tokens);
    Adopt(fields);
  }
  void Adopt(const Fields& part) {
    if (status_.ok()) status_ = part.status_;
  }

  const json& object_;
  std::string name_;
  Status status_;
};

}  // namespace

std::string TurnRecordToJson(const TurnRecord& record) { return Line(ToJson(record)); }

Result<TurnRecord> TurnRecordFromJson(const std::string& text) {
  // The parser takes a zero byte for the end and would pass over what follows.
  if (text.find('\0') != std::string::npos) {
    return Status(StatusCode::kCorrupt, "the record of a turn holds a zero byte");
  }
  const json object = ParseShallow(text);
  Fields fields(object, "the record of a turn");
  TurnRecord record;
  std::string outcome;
  fields.Get("turn", &record.turn);
  fields.Get("agent", &record.agent);
  fields.Get("outcome", &outcome);
  fields.Get("prompt", &record.prompt);
  fields.Get("text", &record.text);
  fields.Get("mode", &record.mode);
  fields.Get("reason", &record.reason);
  fields.Get("taken", &record.taken);
  fields.Get("gives", &record.gives);
  fields.Get("card", &record.card);
  fields.Get("taken_tokens", &record.taken_tokens);
  fields.Get("read_tokens", &record.read_tokens);
  fields.Get("generated_tokens", &record.generated_tokens);
  fields.Get("taken_bytes", &record.taken_bytes);
  fields.Get("card_bytes", &record.card_bytes);
  fields.GetBits("code_bits", &record.code_bits);
  fields.Get("policy", &record.policy);
  fields.Get("note", &record.note);
  fields.Get("features", &record.features);
  fields.Get("stages", &record.stages);
  fields.Get("ttft_us", &record.ttft_us);
  fields.Get("worker", &record.worker);
  fields.Get("resumed", &record.resumed);
  QKV_RETURN_IF_ERROR(fields.status());
  const Result<Outcome> known = OutcomeFromName(outcome);
  if (!known) return Status(StatusCode::kCorrupt, "the record of a turn has no known 'outcome'");
  record.outcome = *known;
  return record;
}

std::string AsUtf8(const std::string& text) { return json::parse(Line(text)).get<std::string>(); }

std::string RunRecordToJson(const RunRecord& record) {
  json turns = json::array();
  uint64_t taken = 0, read = 0, generated = 0, taken_bytes = 0, card_bytes = 0;
  int64_t ttft_us = 0, reprefill_us = 0;
  for (const TurnRecord& turn : record.turns) {
    turns.push_back(ToJson(turn));
    turns.back()["reprefill_us"] = record.ReprefillUs(turn);
    taken += turn.taken_tokens;
    read += turn.read_tokens;
    generated += turn.generated_tokens;
    taken_bytes += turn.taken_bytes;
    card_bytes += turn.card_bytes;
    ttft_us += turn.ttft_us;
    reprefill_us += record.ReprefillUs(turn);
  }
  const json totals = {{"taken_tokens", taken},       {"read_tokens", read},      {"generated_tokens", generated},
                       {"taken_bytes", taken_bytes},  {"card_bytes", card_bytes}, {"ttft_us", ttft_us},
                       {"reprefill_us", reprefill_us}};
  return Line({{"topology", record.topology},
               {"model", record.model},
               {"folder", record.folder},
               {"prefill_us_per_token", record.prefill_us_per_token},
               {"total_us", record.total_us},
               {"turns", turns},
               {"totals", totals}});
}

}  // namespace qkvshare
