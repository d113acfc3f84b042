#include "eval/header_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDigestCharacters = 32, kMostCharacters = 60;

constexpr std::array<std::pair<std::string_view, std::string_view>, 32> kFrom = {{
    {"input", "what is read: problems, prompts or text, their number, --seed"},
    {"answers", "other answers in --conversations, or another --first"},
    {"expected", "the right answers of --problems"},
    {"chains", "--count"},
    {"prompts", "how many"},
    {"hops", "--hops"},
    {"parallel", "-np"},
    {"predict", "-n"},
    {"seed", "--seed"},
    {"set", "--set"},
    {"chat", "--plain"},
    {"context", "--context; of chains it follows from the longest"},
    {"arm", "--arm"},
    {"arms", "--arm"},
    {"batch", "-ub"},
    {"threads", "-t"},
    {"rope", "--rope-freq-base, --rope-freq-scale"},
    {"cache_type_k", "-ctk"},
    {"cache_type_v", "-ctv"},
    {"flash_attention", "-fa"},
    {"model", "-m"},
    {"model_fingerprint", "-m: another model"},
    {"policy", "--policy"},
    {"code_bits", "--bits"},
    {"alpha", "--alpha"},
    {"levels", "--levels"},
    {"depths", "--depth"},
    {"suffix", "--suffix"},
    {"repeats", "--repeats"},
    {"kernels", "another machine, or QKV_FORCE_ISA"},
    {"llama_cpp", "another version of llama.cpp"},
    {"card_format", "another version of the card format"},
}};

std::string_view FromOf(const std::string& member) {
  const auto* const found = std::find_if(kFrom.begin(), kFrom.end(), [&](const auto& m) { return m.first == member; });
  return found == kFrom.end() ? std::string_view() : found->second;
}

bool IsDigest(const std::string& text) {
  return text.size() >= kDigestCharacters &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Empty where it would say nothing to people.
std::string ValueText(const Json& value) {
  if (value.is_string() && IsDigest(value.get<std::string>())) return "";
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  return text.size() > kMostCharacters ? "" : text;
}

// The member's name in the text, and what it is in each of the two.
struct Difference {
  std::string path, member;
  const Json *first, *second;
};

// The first thing in both that differs, as deep as it goes.
Difference Deepest(Difference at) {
  const Json &a = *at.first, &b = *at.second;
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      if (!b.contains(key) || b[key] == value) continue;
      return Deepest({key, key, &value, &b[key]});
    }
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i] && a[i].is_object()) return Deepest({at.path, at.member, &a[i], &b[i]});
    }
  }
  return at;
}

}  // namespace

std::string DifferenceText(const std::string& member, const Json& first, const Json& second,
                           const DifferenceNames& names) {
  const Difference at = Deepest({"", member, &first, &second});
  std::string text = fmt::format("\"{}\" differs", member);
  const std::string a = ValueText(*at.first), b = ValueText(*at.second);
  if (!a.empty() && !b.empty()) {
    text += names.first.empty() ? fmt::format(": {}{}{} and {}", at.path, at.path.empty() ? "" : " ", a, b)
                                : fmt::format(": {}{}{} {}, {} {}", at.path, at.path.empty() ? "" : " ", a, names.first,
                                              b, names.second);
  } else if (!at.path.empty()) {
    text += ": " + at.path;
  }
  const std::string_view from = FromOf(at.member);
  return from.empty() ? text : fmt::format("{} ({})", text, from);
}

}  // namespace qkvshare
