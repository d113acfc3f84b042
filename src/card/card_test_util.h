// For tests, benchmarks and fuzzing: synthetic KV rows, and cards taken apart and sealed again.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "card/card.h"
#include "card/card_writer.h"
#include "card/format.h"

namespace qkvshare::card_test {

// Gaussian rows of a few layers, with a large bias in some key channels. Owns what view() shows.
struct SyntheticKv {
  SyntheticKv(size_t token_count, std::vector<LayerShape> layer_shapes, uint32_t seed)
      : tokens(token_count), shapes(std::move(layer_shapes)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (const LayerShape& shape : shapes) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        std::vector<Half>& out = rows.emplace_back(tokens * shape.row_values(side));
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = FloatToHalf(normal(random) + (side == Side::kKeys && i % shape.dim(side) == 3 ? 50.0f : 0.0f));
        }
      }
    }
  }
  KvView view() const {
    KvView kv;
    kv.tokens = tokens;
    for (size_t i = 0; i < shapes.size(); ++i)
      kv.layers.push_back({shapes[i], rows[2 * i].data(), rows[2 * i + 1].data()});
    return kv;
  }

  size_t tokens;
  std::vector<LayerShape> shapes;
  std::vector<std::vector<Half>> rows;  // keys and values of layer 0, of layer 1, ...
};

// Rows of the first tokens: [tokens, kv_heads * dim]. Empty where they cannot be read.
inline std::vector<Half> UnpackSide(const Card& card, size_t layer, Side side, size_t tokens) {
  std::vector<Half> rows(tokens * card.shape(layer).row_values(side));
  const Status status = card.Unpack(ScalarKernels(), layer, side, tokens, rows.data());
  return status.ok() ? rows : std::vector<Half>();
}

inline CardContent Content(size_t tokens) {
  CardContent content;
  for (size_t i = 0; i < tokens; ++i) {
    content.token_ids.push_back(static_cast<int32_t>(i * 37 % 5000));
    content.positions.push_back(static_cast<int32_t>(10 + i));
  }
  content.identity.model.fill(0x11);
  content.identity.rope.fill(0x22);
  content.identity.first_rope = {64, 2, 10000.0f, 1.0f, 0.0f, 1.0f};
  content.info = {"tiny", "llama", "agent-a", "", "2026-01-02T03:04:05Z", "qkvshare 0.1.0", {}};
  content.info.segments.push_back({"prompt", "agent-a", "", 0, static_cast<uint32_t>(tokens)});
  return content;
}

// A delta card's content that uses every field.
inline CardContent RichContent(size_t tokens) {
  CardContent content = Content(tokens);
  content.hop = 2;
  content.parent.fill(0x33);
  content.first_token = 100;
  content.exact_tokens = 0;
  content.protected_tokens = 1;
  content.profile.kind = ProfileKind::kStatic;
  content.profile.id.fill(0x44);
  content.anchors = {{3, 0.25f}, {static_cast<uint32_t>(99 + tokens), 1.0f}};
  content.windows = {512, 0};
  content.info.segments[0].readers = {{"agent-b", 1}, {"agent-c", 2}};
  content.info.features = {"attention", "prior"};
  content.info.cache_type = "f16";
  return content;
}

// Of a card that continues the parent from token `first` of its context on, with its profile.
inline CardContent DeltaContent(const Card& parent, uint32_t first, size_t tokens) {
  CardContent content = Content(tokens);
  content.hop = parent.hop() + 1;
  content.parent = parent.content_id();
  content.first_token = first;
  content.exact_tokens = 0;
  content.profile.kind = ProfileKind::kInherited;
  const int32_t start = parent.positions()[first - parent.first_token() - 1] + 1;
  for (size_t i = 0; i < tokens; ++i) content.positions[i] = start + static_cast<int32_t>(i);
  return content;
}

// Levels repeat through the tokens; the first is exact.
inline BitPlan MixedPlan(size_t tokens) {
  BitPlan plan = {"mixed", {kLevels.begin(), kLevels.end()}, {}};
  for (size_t i = 0; i < tokens; ++i) plan.level_of_token.push_back(static_cast<uint8_t>((i * 7 + 5) % kLevels.size()));
  return plan;
}

// Makes checksums, digests and content id right again, as far as the sections lie inside the card.
inline void Reseal(std::vector<uint8_t>* card) {
  using namespace card_format;  // NOLINT(google-build-using-namespace)
  FileHeader header;
  if (card->size() < sizeof header) return;
  std::memcpy(&header, card->data(), sizeof header);
  const size_t room = (card->size() - sizeof header) / sizeof(SectionEntry);
  const size_t sections = std::min<size_t>(header.section_count, room);
  uint8_t* table = card->data() + sizeof header;
  for (size_t i = 0; i < sections; ++i) {
    SectionEntry entry;
    std::memcpy(&entry, table + i * sizeof entry, sizeof entry);
    if (entry.offset > card->size() || entry.bytes > card->size() - entry.offset) continue;
    const ByteSpan section = ByteSpan(*card).subspan(entry.offset, entry.bytes);
    entry.checksum = Xxh3(section);
    entry.digest = Blake2b(section);
    std::memcpy(table + i * sizeof entry, &entry, sizeof entry);
  }
  const ByteSpan sealed(table, sections * sizeof(SectionEntry));
  header.content_id = Blake2b(sealed);
  std::memcpy(card->data(), &header, sizeof header);
  std::vector<uint8_t> checked(card->begin(), card->begin() + offsetof(FileHeader, checksum));
  checked.insert(checked.end(), sealed.begin(), sealed.end());
  header.checksum = Xxh3(checked);
  std::memcpy(card->data(), &header, sizeof header);
}

// A card as its sections, to change their size.
struct Parts {
  card_format::FileHeader header;
  std::vector<card_format::SectionEntry> entries;
  std::vector<std::vector<uint8_t>> sections;

  explicit Parts(const std::vector<uint8_t>& card) {
    std::memcpy(&header, card.data(), sizeof header);
    entries.resize(header.section_count);
    std::memcpy(entries.data(), card.data() + sizeof header, entries.size() * sizeof entries[0]);
    for (const auto& entry : entries) {
      const auto first = card.begin() + static_cast<std::ptrdiff_t>(entry.offset);
      sections.emplace_back(first, first + static_cast<std::ptrdiff_t>(entry.bytes));
    }
  }
  std::vector<uint8_t>& section(card_format::SectionType type) { return sections[static_cast<size_t>(type) - 1]; }
  // Places every section anew and seals the card.
  std::vector<uint8_t> Assemble() {
    std::vector<uint8_t> card(sizeof header + entries.size() * sizeof entries[0]);
    for (size_t i = 0; i < entries.size(); ++i) {
      card.resize(AlignUp(card.size(), card_format::kSectionAlignment));
      entries[i].offset = card.size();
      entries[i].bytes = sections[i].size();
      card.insert(card.end(), sections[i].begin(), sections[i].end());
    }
    header.section_count = static_cast<uint32_t>(entries.size());
    header.file_bytes = card.size();
    std::memcpy(card.data(), &header, sizeof header);
    std::memcpy(card.data() + sizeof header, entries.data(), entries.size() * sizeof entries[0]);
    Reseal(&card);
    return card;
  }
};

// Overwrites bytes at an offset with a value.
template <typename T>
void Patch(std::vector<uint8_t>* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

}  // namespace qkvshare::card_test
