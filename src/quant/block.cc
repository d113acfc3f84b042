#include "quant/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

namespace qkvshare {
namespace {

// Aligned to cache lines: vectors that cross them are slow.
struct alignas(64) Row : std::array<float, kMaxHeadDim> {};
struct alignas(64) TileCodes : std::array<uint8_t, kTileTokens * kMaxHeadDim> {};
struct alignas(64) TileColumns : std::array<float, kTileTokens * kMaxHeadDim> {};

}  // namespace

BlockLayout BlockLayout::Make(size_t dim, std::span<const int> level_bits, std::span<const uint32_t> level_size) {
  BlockLayout layout;
  layout.dim = dim;
  size_t place = 0;
  size_t scales = 0;
  size_t offset = 0;
  for (size_t i = 0; i < level_bits.size(); ++i) {
    Run run;
    run.bits = level_bits[i];
    run.first = place;
    run.tokens = level_size[i];
    run.full_offset = offset;
    run.first_scale = scales;
    offset += TileBytes(run.full_tokens(), dim, run.bits);
    place += run.tokens;
    if (run.bits < 16) scales += run.tokens;
    layout.runs.push_back(run);
  }
  for (Run& run : layout.runs) {
    run.tail_offset = offset;
    offset += TileBytes(run.tokens - run.full_tokens(), dim, run.bits);
  }
  layout.scales_offset = offset;
  layout.bytes = AlignUp(offset + scales * sizeof(RowScale), kBlockAlignment);
  return layout;
}

BlockCodec::BlockCodec(const Kernels& kernels, Side side, size_t dim, const ChannelProfile& profile,
                       const ErrorMetric* metric)
    : kernels_(kernels),
      side_(side),
      dim_(dim),
      rotation_block_(RotationBlock(dim)),
      has_profile_(!profile.empty()),
      metric_(metric) {
  for (size_t c = 0; c < profile.mean.size(); ++c) {
    mean_[c] = HalfToFloat(profile.mean[c]);
    scale_[c] = HalfToFloat(profile.scale[c]);
    inverse_scale_[c] = 1.0f / scale_[c];
  }
}

RowSpace BlockCodec::Space() const {
  if (!has_profile_) return {dim_, rotation_block_, nullptr, nullptr, nullptr};
  return {dim_, rotation_block_, mean_.data(), scale_.data(), inverse_scale_.data()};
}

Status BlockCodec::NonFinite(size_t token) const {
  return {StatusCode::kNonFinite, fmt::format("the {} of token {} hold NaN or Inf", SideName(side_), token)};
}

void BlockCodec::TransformQuery(float* query) const {
  for (size_t c = 0; has_profile_ && c < dim_; ++c) query[c] *= scale_[c];
  kernels_.rotate(query, dim_, rotation_block_);
}

// Up to kTileTokens rows. codes: [n, dim]; scales, errors: [n].
Status BlockCodec::QuantizeTile(const HeadRows& rows, const uint32_t* tokens, size_t n, int bits, uint8_t* codes,
                                RowScale* scales, float* errors) const {
  const RowSpace space = Space();
  Row x;
  if (!InMetric(bits)) {
    for (size_t i = 0; i < n; ++i) {
      if (!kernels_.transform_row(rows.row(tokens[i]), space, x.data())) return NonFinite(tokens[i]);
      errors[i] = kernels_.quantize_row(x.data(), dim_, bits, codes + i * dim_, scales + i);
    }
    return {};
  }
  TileColumns columns;
  std::fill_n(columns.begin(), dim_ * kTileTokens, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    if (!kernels_.transform_row(rows.row(tokens[i]), space, x.data())) return NonFinite(tokens[i]);
    for (size_t c = 0; c < dim_; ++c) columns[c * kTileTokens + i] = x[c];
  }
  kernels_.round_tile(*metric_, columns.data(), n, bits, codes, scales, errors);
  return {};
}

// At 16 bits there are none.
Status BlockCodec::CheckExact(const HeadRows& rows, float* errors) const {
  for (size_t token = 0; token < rows.tokens; ++token) {
    if (!std::all_of(rows.row(token), rows.row(token) + dim_, IsFiniteHalf)) return NonFinite(token);
    errors[token] = 0;
  }
  return {};
}

Status BlockCodec::MeasureErrors(const HeadRows& rows, int bits, float* errors) const {
  if (bits == 16) return CheckExact(rows, errors);
  TileCodes codes;
  std::array<RowScale, kTileTokens> scales;
  std::array<uint32_t, kTileTokens> tokens;
  for (size_t done = 0; done < rows.tokens; done += kTileTokens) {
    const size_t n = std::min(kTileTokens, rows.tokens - done);
    std::iota(tokens.begin(), tokens.end(), static_cast<uint32_t>(done));
    QKV_RETURN_IF_ERROR(QuantizeTile(rows, tokens.data(), n, bits, codes.data(), scales.data(), errors + done));
  }
  return {};
}

Status BlockCodec::PackTileOf(const HeadRows& rows, const BlockLayout::Run& run, const uint32_t* tokens, size_t n,
                              uint8_t* tile, RowScale* scales) const {
  if (run.bits < 16) {
    TileCodes codes;
    std::array<float, kTileTokens> errors;
    QKV_RETURN_IF_ERROR(QuantizeTile(rows, tokens, n, run.bits, codes.data(), scales, errors.data()));
    PackTile(side_, codes.data(), n, dim_, run.bits, tile);
    return {};
  }
  for (size_t i = 0; i < n; ++i) {
    const Half* row = rows.row(tokens[i]);
    if (!std::all_of(row, row + dim_, IsFiniteHalf)) return NonFinite(tokens[i]);
    std::memcpy(tile + i * dim_ * sizeof(Half), row, dim_ * sizeof(Half));
  }
  return {};
}

Status BlockCodec::Pack(const HeadRows& rows, const TokenOrder& order, const BlockLayout& layout, uint8_t* out) const {
  size_t payload_end = layout.scales_offset;
  for (const BlockLayout::Run& run : layout.runs) {
    for (size_t done = 0; done < run.tokens; done += kTileTokens) {
      const size_t n = std::min(kTileTokens, run.tokens - done);
      uint8_t* tile = out + (n == kTileTokens ? run.full_offset + TileBytes(done, dim_, run.bits) : run.tail_offset);
      std::array<RowScale, kTileTokens> scales;
      QKV_RETURN_IF_ERROR(PackTileOf(rows, run, &order.token_at[run.first + done], n, tile, scales.data()));
      if (run.bits == 16) continue;
      uint8_t* stored = out + layout.scales_offset + (run.first_scale + done) * sizeof(RowScale);
      std::memcpy(stored, scales.data(), n * sizeof(RowScale));
      payload_end += n * sizeof(RowScale);
    }
  }
  std::fill(out + payload_end, out + layout.bytes, uint8_t{0});
  return {};
}

Status BlockCodec::UnpackTileOf(const uint8_t* tile, const BlockLayout::Run& run, const uint32_t* tokens, size_t n,
                                const uint8_t* scales, size_t limit, Half* out, size_t stride) const {
  const auto corrupt = [&](size_t i) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the packed {} of token {} are out of range", SideName(side_), tokens[i]));
  };
  const RowSpace space = Space();
  TileCodes codes;
  if (run.bits < 16) UnpackTile(side_, tile, n, dim_, run.bits, codes.data());
  for (size_t i = 0; i < n; ++i) {
    if (tokens[i] >= limit) continue;
    Half* row = out + tokens[i] * stride;
    if (run.bits == 16) {
      std::memcpy(row, tile + i * dim_ * sizeof(Half), dim_ * sizeof(Half));
      if (!std::all_of(row, row + dim_, IsFiniteHalf)) return corrupt(i);
      continue;
    }
    RowScale scale = 0;
    std::memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    if (!IsValidScale(scale)) return corrupt(i);
    kernels_.restore_row(codes.data() + i * dim_, run.bits, scale, space, row);
  }
  return {};
}

Status BlockCodec::Unpack(const uint8_t* block, const TokenOrder& order, const BlockLayout& layout, size_t tokens,
                          Half* out, size_t stride) const {
  for (const BlockLayout::Run& run : layout.runs) {
    for (size_t done = 0; done < run.tokens; done += kTileTokens) {
      const size_t n = std::min(kTileTokens, run.tokens - done);
      const uint8_t* tile =
          block + (n == kTileTokens ? run.full_offset + TileBytes(done, dim_, run.bits) : run.tail_offset);
      const uint8_t* scales = block + layout.scales_offset + (run.first_scale + done) * sizeof(RowScale);
      QKV_RETURN_IF_ERROR(UnpackTileOf(tile, run, &order.token_at[run.first + done], n, scales, tokens, out, stride));
    }
  }
  return {};
}

}  // namespace qkvshare
