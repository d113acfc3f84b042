#include "eval/cache_round_trip.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

namespace qkvshare {
namespace {

constexpr uint32_t kSmallContext = 256;

double CodeBits(CacheType type) {
  switch (type) {
    case CacheType::kF16:
    case CacheType::kBF16: break;
    case CacheType::kQ8_0: return 8;
    case CacheType::kQ4_0: return 4;
  }
  return 16;
}

}  // namespace

Result<std::vector<LayerFormat>> CacheFormats(const Model& model, SessionOptions options, CacheType keys,
                                              CacheType values) {
  options.context = std::min(kSmallContext, model.training_context());
  options.cache_type_k = keys;
  options.cache_type_v = values;
  options.fused = false;
  options.card_tokens = 0;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
  const StateLayout& layout = session->state_layout();
  std::vector<LayerFormat> formats;
  for (size_t layer = 0; layer < layout.shapes.size(); ++layer) formats.push_back(layout.format(layer));
  return formats;
}

Result<std::vector<uint8_t>> RoundTripState(const KvView& rows, std::span<const LayerFormat> formats,
                                            const StateLayout& layout, int threads) {
  std::vector<int32_t> positions(rows.tokens);
  std::iota(positions.begin(), positions.end(), 0);
  return BuildState(layout, positions, threads, [&](size_t layer, Side side, Half* out) {
    const LayerRows& in = rows.layers[layer];
    const RowFormat& format = formats[layer].rows(side);
    const size_t values = in.shape.row_values(side);
    std::vector<uint8_t> cached(rows.tokens * CacheRowBytes(format.type, values));
    EncodeRows(format, side == Side::kKeys ? in.keys : in.values, rows.tokens, values, cached.data());
    return DecodeRows(format, cached.data(), rows.tokens, values, out);
  });
}

CacheSize SizeInCache(std::span<const LayerShape> shapes, CacheType keys, CacheType values, size_t tokens) {
  size_t row_bytes = 0;
  double code_bits = 0, channels = 0;
  for (const LayerShape& shape : shapes) {
    for (const auto& [side, type] : {std::pair{Side::kKeys, keys}, std::pair{Side::kValues, values}}) {
      const size_t count = shape.row_values(side);
      row_bytes += CacheRowBytes(type, count);
      code_bits += static_cast<double>(count) * CodeBits(type);
      channels += static_cast<double>(count);
    }
  }
  return {row_bytes * tokens, code_bits / channels, static_cast<double>(row_bytes) * 8 / channels};
}

}  // namespace qkvshare
