#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/npz.h"
#include "card/card.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

struct UnpackFlags {
  std::string card;
  std::string output;
  std::string layers;
  bool float32 = false;
  bool json = false;
};

template <typename T>
ByteSpan BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

// "0,3-5" -> 0, 3, 4, 5, in this order of layers and each once; empty: all.
Result<std::vector<size_t>> ParseLayers(const std::string& text, size_t layers) {
  std::vector<bool> wanted(layers, text.empty());
  const Status wrong(StatusCode::kInvalidArgument,
                     fmt::format("--layers {}: give layers from 0 to {}, as in 0,3-5", text, layers - 1));
  const char* at = text.data();
  const char* end = at + text.size();
  const auto number = [&](size_t* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next;
    return error == std::errc() && *value < layers;
  };
  for (bool more = !text.empty(); more;) {
    size_t first = 0;
    if (!number(&first)) return wrong;
    size_t last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last) || last < first) return wrong;
    }
    std::fill(wanted.begin() + static_cast<ptrdiff_t>(first), wanted.begin() + static_cast<ptrdiff_t>(last) + 1, true);
    more = at != end;
    if (more && *at++ != ',') return wrong;
  }
  std::vector<size_t> list;
  for (size_t layer = 0; layer < layers; ++layer)
    if (wanted[layer]) list.push_back(layer);
  return list;
}

class Unpacker {
 public:
  Unpacker(const Card& card, const UnpackFlags& flags) : card_(card), flags_(flags) {}

  Status Run() {
    QKV_ASSIGN_OR_RETURN(const std::vector<size_t> layers, ParseLayers(flags_.layers, card_.layers()));
    QKV_RETURN_IF_ERROR(CheckSize(layers));
    QKV_ASSIGN_OR_RETURN(kernels_, SelectKernels());
    QKV_ASSIGN_OR_RETURN(NpzWriter file, NpzWriter::Create(flags_.output));
    QKV_RETURN_IF_ERROR(AddFacts(&file));
    std::atomic<bool> interrupted{false};
    const InterruptScope interrupt([&] { interrupted = true; });
    ProgressLine line("unpacking");
    for (size_t i = 0; i < layers.size(); ++i) {
      if (interrupted) return {StatusCode::kCancelled, "interrupted; nothing was written"};
      QKV_RETURN_IF_ERROR(AddRows(layers[i], Side::kKeys, fmt::format("layer{}_keys", layers[i]), &file));
      QKV_RETURN_IF_ERROR(AddRows(layers[i], Side::kValues, fmt::format("layer{}_values", layers[i]), &file));
      line.Update(i + 1, layers.size(), "layers");
    }
    unpacked_layers_ = layers.size();
    return file.Finish();
  }
  size_t unpacked_layers() const { return unpacked_layers_; }

 private:
  size_t ItemBytes() const { return flags_.float32 ? sizeof(float) : sizeof(Half); }

  // Before the work: an .npz without zip64 has less than 4 GiB.
  Status CheckSize(const std::vector<size_t>& layers) const {
    uint64_t bytes = card_.tokens() * (sizeof(int32_t) * 2 + 1) + (4 << 20);  // the rest is small
    for (const size_t layer : layers) {
      const LayerShape& shape = card_.shape(layer);
      const size_t values = shape.row_values(Side::kKeys) + shape.row_values(Side::kValues);
      bytes += uint64_t{card_.tokens()} * values * ItemBytes();
    }
    if (bytes <= NpzWriter::kMaxBytes) return {};
    return {
        StatusCode::kOutOfRange,
        fmt::format("these layers take {}, and an .npz file holds 4 GiB; give fewer by --layers", FormatBytes(bytes))};
  }

  Status AddFacts(NpzWriter* file) const {
    const uint64_t tokens = card_.tokens();
    const std::vector<int32_t> ids(card_.token_ids().begin(), card_.token_ids().end());
    const std::vector<int32_t> positions(card_.positions().begin(), card_.positions().end());
    std::vector<uint8_t> levels;
    for (const Level level : card_.plan().levels) levels.insert(levels.end(), {level.key_bits, level.value_bits});
    std::vector<int8_t> adjustments;
    for (size_t layer = 0; layer < card_.layers(); ++layer) {
      const LayerAdjustment adjustment = card_.plan().adjustment(layer);
      adjustments.insert(adjustments.end(), {adjustment.keys, adjustment.values});
    }
    const std::string info = CardInfoToJson(card_.info());
    QKV_RETURN_IF_ERROR(file->Add("token_ids", "<i4", {tokens}, BytesOf(ids)));
    QKV_RETURN_IF_ERROR(file->Add("positions", "<i4", {tokens}, BytesOf(positions)));
    QKV_RETURN_IF_ERROR(file->Add("level_of_token", "|u1", {tokens}, card_.plan().level_of_token));
    QKV_RETURN_IF_ERROR(file->Add("levels", "|u1", {card_.plan().levels.size(), 2}, levels));
    QKV_RETURN_IF_ERROR(file->Add("layer_adjustments", "|i1", {card_.layers(), 2}, BytesOf(adjustments)));
    return file->Add("info", "|u1", {info.size()}, {reinterpret_cast<const uint8_t*>(info.data()), info.size()});
  }

  Status AddRows(size_t layer, Side side, const std::string& name, NpzWriter* file) const {
    const LayerShape& shape = card_.shape(layer);
    const std::vector<uint64_t> dims = {card_.tokens(), shape.kv_heads, shape.dim(side)};
    std::vector<Half> rows(card_.tokens() * shape.row_values(side));
    QKV_RETURN_IF_ERROR(card_.Unpack(*kernels_, layer, side, card_.tokens(), rows.data()));
    if (!flags_.float32) return file->Add(name, "<f2", dims, BytesOf(rows));
    std::vector<float> floats(rows.size());
    std::transform(rows.begin(), rows.end(), floats.begin(), HalfToFloat);
    return file->Add(name, "<f4", dims, BytesOf(floats));
  }

  const Card& card_;
  const UnpackFlags& flags_;
  const Kernels* kernels_ = nullptr;
  size_t unpacked_layers_ = 0;
};

Status RunUnpack(const UnpackFlags& flags) {
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {flags.card}));
  QKV_RETURN_IF_ERROR(CheckKind(flags.output, "PK\x03\x04", "an .npz file"));
  QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(flags.card));
  Unpacker unpacker(card, flags);
  QKV_RETURN_IF_ERROR(unpacker.Run());
  const char* dtype = flags.float32 ? "float32" : "float16";
  if (flags.json) {
    PrintJson({{"output", flags.output},
               {"tokens", card.tokens()},
               {"layers", unpacker.unpacked_layers()},
               {"dtype", dtype}});
  } else {
    fmt::print("{}: {} tokens, keys and values of {} layers as {}\n", flags.output, card.tokens(),
               unpacker.unpacked_layers(), dtype);
  }
  return {};
}

}  // namespace

Command AddUnpack(CLI::App* app) {
  auto flags = std::make_shared<UnpackFlags>();
  app->footer(
      "Example:\n  qkvshare unpack report.card -o report.npz --layers 0,10-12\n"
      "Arrays: layer0_keys, layer0_values... [tokens, kv_heads, head_dim], keys with RoPE applied; token_ids, "
      "positions,\n"
      "level_of_token [tokens]; levels [levels, 2]: bits of keys and values; layer_adjustments [layers, 2]: steps by "
      "which\n"
      "a layer is wider or narrower; info: JSON text as bytes.\n"
      "Like the card, they can be turned back into the text. No model is needed.");
  app->add_option("card", flags->card, "The card")->required();
  app->add_option("-o,--output", flags->output, "The .npz file to write")->required()->check(NotEmpty());
  app->add_option("--layers", flags->layers, "Only these, as in 0,3-5")->check(NotEmpty());
  app->add_flag("--float32", flags->float32, "Rows as float32 instead of float16");
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunUnpack(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
