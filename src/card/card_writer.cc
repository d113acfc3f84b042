#include "card/card_writer.h"

#include <array>

#include "base/file.h"
#include "card/card_assembly.h"
#include "card/format.h"
#include "quant/block.h"

namespace qkvshare {

using namespace card_format;  // NOLINT(google-build-using-namespace): this file is the format

Result<PackedCard> PackCard(const KvView& kv, const BitPlan& plan, const KeyProfiles& profiles,
                            const CardContent& content, int threads, const KeyMetrics& metrics) {
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const ChannelProfile none;
  const auto quantize = [&](const BlockPlace& place, const TokenOrder& order, const BlockLayout& layout, uint8_t* out) {
    const bool has_profile = place.side == Side::kKeys && !profiles.empty();
    const ChannelProfile& profile = has_profile ? profiles[place.layer][place.kv_head] : none;
    const bool in_metric = place.side == Side::kKeys && !metrics.empty();
    const BlockCodec codec(*kernels, place.side, layout.dim, profile,
                           in_metric ? &metrics[place.layer][place.kv_head] : nullptr);
    return codec.Pack(kv.head(place.layer, place.side, place.kv_head), order, layout, out);
  };
  return AssembleCard({kv.tokens, ShapesOf(kv), plan, profiles, content}, threads, quantize);
}

std::vector<ByteSpan> PackedCard::Pieces() const {
  static constexpr std::array<uint8_t, kSectionAlignment> kZeros{};
  std::vector<ByteSpan> pieces = {head_};
  size_t end = head_.size();
  for (const std::vector<uint8_t>& section : sections_) {
    const size_t offset = AlignUp(end, kSectionAlignment);
    pieces.emplace_back(kZeros.data(), offset - end);
    pieces.emplace_back(section);
    end = offset + section.size();
  }
  return pieces;
}

size_t PackedCard::file_bytes() const {
  size_t bytes = 0;
  for (const ByteSpan piece : Pieces()) bytes += piece.size();
  return bytes;
}

std::vector<uint8_t> PackedCard::Bytes() const {
  std::vector<uint8_t> bytes;
  for (const ByteSpan piece : Pieces()) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

Status PackedCard::Write(const std::string& path) const { return WriteFileAtomic(path, Pieces()); }

size_t CardOverheadBytes(const KvView& kv, const CardContent& content) {
  size_t bytes = sizeof(FileHeader) + sizeof(Geometry) + 2 * kMaxLevels + CardInfoToJson(content.info).size() + 64;
  bytes += kv.tokens * (2 * sizeof(int32_t) + 1) + content.anchors.size() * sizeof(AnchorEntry);
  bytes += (kSingleSections + 2 * kv.layers.size()) * (sizeof(SectionEntry) + kSectionAlignment - 1);
  for (const LayerRows& rows : kv.layers) {
    bytes += sizeof(LayerEntry) + 2 * rows.shape.row_values(Side::kKeys) * sizeof(Half);
    bytes += 2 * rows.shape.kv_heads * (kBlockAlignment - 1);
  }
  return bytes;
}

}  // namespace qkvshare
