#include "runtime/kv_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/parallel.h"

namespace qkvshare {
namespace {

struct Cell {
  int32_t position;
  uint32_t sequences;
  int32_t sequence;
};
static_assert(sizeof(Cell) == 12);

Status Unexpected(const std::string& what) {
  return {StatusCode::kUnsupported,
          "the state is not laid out as this software knows llama.cpp's states (" + what + ")"};
}

Status LacksRows(const char* what, const std::vector<int32_t>& there, const std::vector<int32_t>& all) {
  return {StatusCode::kUnsupported,
          fmt::format("the {} lacks rows of layers with a sliding window: it has {} of {} tokens", what, there.size(),
                      all.size())};
}

size_t Parts(const StateLayout& layout) { return layout.window() > 0 ? 2 : 1; }

size_t PartOf(const StateLayout& layout, size_t layer) { return layout.format(layer).window > 0 ? 1 : 0; }

// The layers of one part, in its order.
std::vector<size_t> LayersOf(const StateLayout& layout, size_t part) {
  std::vector<size_t> layers;
  for (size_t layer = 0; layer < layout.shapes.size(); ++layer) {
    if (PartOf(layout, layer) == part) layers.push_back(layer);
  }
  return layers;
}

// Where a state has what.
struct Contents {
  std::vector<std::vector<int32_t>> positions;   // of each part
  std::vector<size_t> key_offset, value_offset;  // of each layer

  std::vector<size_t>& offset(Side side) { return side == Side::kKeys ? key_offset : value_offset; }
  const std::vector<size_t>& offset(Side side) const { return side == Side::kKeys ? key_offset : value_offset; }
};

// The fields of one layer's rows before the rows themselves.
struct RowsHead {
  int32_t type = 0;
  uint64_t row_bytes = 0;  // where V is transposed: value bytes (low half) and row values (high half)
};

bool IsTransposed(const StateLayout& layout, Side side) { return side == Side::kValues && layout.transposed_values; }

size_t RowBytesOf(const StateLayout& layout, size_t layer, Side side) {
  return CacheRowBytes(layout.format(layer).rows(side).type, layout.shapes[layer].row_values(side));
}

RowsHead HeadOf(const StateLayout& layout, size_t layer, Side side) {
  const CacheType type = layout.format(layer).rows(side).type;
  const size_t values = layout.shapes[layer].row_values(side);
  const uint64_t row_bytes =
      IsTransposed(layout, side) ? CacheRowBytes(type, 1) | uint64_t{values} << 32 : CacheRowBytes(type, values);
  return {type == CacheType::kF16 ? layout.f16_type : GgmlTypeOf(type), row_bytes};
}

class StateReader {
 public:
  StateReader(ByteSpan bytes, const StateLayout& layout) : reader_(bytes), layout_(layout) {
    contents_.positions.resize(Parts(layout));
    contents_.key_offset.resize(layout.shapes.size());
    contents_.value_offset.resize(layout.shapes.size());
  }

  Result<uint32_t> ReadMagic() {
    uint32_t magic = 0;
    int32_t sequence = 0;
    if (!reader_.Get(&magic) || !reader_.Get(&sequence)) return Unexpected("too short");
    return magic;
  }

  // Reads all parts from `first` on. sorted: refuses cells that are not in the order of their positions.
  Result<Contents> Read(size_t first, bool sorted) {
    for (size_t part = first; part < Parts(layout_); ++part) {
      QKV_RETURN_IF_ERROR(ReadCells(sorted, &contents_.positions[part]));
      if (contents_.positions[part].empty())
        return Status(StatusCode::kInvalidArgument, "the sequence is empty: there is nothing to take");
      QKV_RETURN_IF_ERROR(ReadLayers(part));
    }
    if (reader_.remaining() > 0) return Unexpected(fmt::format("{} bytes too many", reader_.remaining()));
    return std::move(contents_);
  }

 private:
  Status ReadCells(bool sorted, std::vector<int32_t>* positions) {
    uint32_t streams = 0;
    uint32_t cells = 0;
    if (!reader_.Get(&streams) || !reader_.Get(&cells)) return Unexpected("too short");
    if (streams != 1) return Unexpected(fmt::format("{} streams", streams));
    if (cells > reader_.remaining() / sizeof(Cell)) return Unexpected(fmt::format("{} cells", cells));
    for (uint32_t i = 0; i < cells; ++i) {
      Cell cell{};
      if (!reader_.Get(&cell) || cell.sequences != 1)
        return Unexpected(fmt::format("cell {} is of {} sequences", i, cell.sequences));
      if (sorted && !positions->empty() && cell.position <= positions->back())
        return Unexpected("cells are not in order");
      positions->push_back(cell.position);
    }
    return {};
  }

  Status ReadLayers(size_t part) {
    uint32_t transposed = 0;
    uint32_t count = 0;
    if (!reader_.Get(&transposed) || !reader_.Get(&count)) return Unexpected("too short");
    if (transposed != static_cast<uint32_t>(layout_.transposed_values))
      return Unexpected(transposed != 0 ? "V is transposed" : "V is not transposed");
    const std::vector<size_t> layers = LayersOf(layout_, part);
    if (count != layers.size()) return Unexpected(fmt::format("{} layers, not {}", count, layers.size()));
    for (const Side side : {Side::kKeys, Side::kValues}) {
      for (const size_t layer : layers) QKV_RETURN_IF_ERROR(ReadRows(part, layer, side));
    }
    return {};
  }

  // Checks type and size of one layer's rows, and passes over them.
  Status ReadRows(size_t part, size_t layer, Side side) {
    const RowsHead expected = HeadOf(layout_, layer, side);
    RowsHead head;
    if (!reader_.Get(&head.type) || !reader_.Get(&head.row_bytes)) return Unexpected("too short");
    if (head.type != expected.type) return Unexpected(fmt::format("rows of type {}", head.type));
    if (head.row_bytes != expected.row_bytes)
      return Unexpected(fmt::format("rows of {} bytes, not {}", head.row_bytes, expected.row_bytes));
    contents_.offset(side)[layer] = reader_.offset();
    const size_t bytes = contents_.positions[part].size() * RowBytesOf(layout_, layer, side);
    return reader_.Skip(bytes) ? Status() : Unexpected("too short");
  }

  ByteReader reader_;
  const StateLayout& layout_;
  Contents contents_;
};

Result<Contents> ReadState(ByteSpan bytes, const StateLayout& layout, size_t first_part, bool sorted) {
  StateReader reader(bytes, layout);
  QKV_ASSIGN_OR_RETURN(const uint32_t magic, reader.ReadMagic());
  if (magic != layout.magic) return Unexpected("wrong magic");
  return reader.Read(first_part, sorted);
}

Result<Contents> ReadWholeState(ByteSpan bytes, const StateLayout& layout) {
  QKV_ASSIGN_OR_RETURN(Contents contents, ReadState(bytes, layout, 0, /*sorted=*/true));
  if (contents.positions.back() != contents.positions.front())
    return LacksRows("state", contents.positions.back(), contents.positions.front());
  return contents;
}

// The bytes of a state of these positions, its rows left zero, and where the rows go.
Contents LayOut(const StateLayout& layout, std::span<const int32_t> positions, std::vector<uint8_t>* bytes) {
  Contents contents;
  contents.key_offset.resize(layout.shapes.size());
  contents.value_offset.resize(layout.shapes.size());
  ByteWriter writer(bytes);
  writer.Put(layout.magic);
  writer.Put(int32_t{0});
  for (size_t part = 0; part < Parts(layout); ++part) {
    const std::vector<size_t> layers = LayersOf(layout, part);
    writer.Put(uint32_t{1});
    writer.Put(static_cast<uint32_t>(positions.size()));
    for (const int32_t position : positions) writer.Put(Cell{position, 1, 0});
    writer.Put(static_cast<uint32_t>(layout.transposed_values));
    writer.Put(static_cast<uint32_t>(layers.size()));
    for (const Side side : {Side::kKeys, Side::kValues}) {
      for (const size_t layer : layers) {
        const RowsHead head = HeadOf(layout, layer, side);
        writer.Put(head.type);
        writer.Put(head.row_bytes);
        contents.offset(side)[layer] = bytes->size();
        bytes->resize(bytes->size() + positions.size() * RowBytesOf(layout, layer, side));
      }
    }
  }
  return contents;
}

// in: [rows, columns] values of `value_bytes` bytes; out: [columns, rows].
void Transpose(const uint8_t* in, size_t rows, size_t columns, size_t value_bytes, uint8_t* out) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c)
      std::memcpy(out + (c * rows + r) * value_bytes, in + (r * columns + c) * value_bytes, value_bytes);
  }
}

Status DecodeLayer(const StateLayout& layout, size_t layer, Side side, const uint8_t* rows, size_t tokens,
                   std::vector<Half>* out) {
  const size_t values = layout.shapes[layer].row_values(side);
  const RowFormat format = layout.format(layer).rows(side);
  std::vector<uint8_t> by_token;
  if (IsTransposed(layout, side)) {
    by_token.resize(tokens * RowBytesOf(layout, layer, side));
    Transpose(rows, values, tokens, CacheRowBytes(format.type, 1), by_token.data());
    rows = by_token.data();
  }
  out->resize(tokens * values);
  Status status = DecodeRows(format, rows, tokens, values, out->data());
  if (status.ok()) return status;
  return {status.code(),
          fmt::format("{} of layer {}, {}", side == Side::kKeys ? "keys" : "values", layer, status.message())};
}

Status EncodeLayer(const StateLayout& layout, size_t layer, Side side, size_t tokens, const FillRows& fill,
                   uint8_t* out) {
  const size_t values = layout.shapes[layer].row_values(side);
  const RowFormat format = layout.format(layer).rows(side);
  if (format.plain() && !IsTransposed(layout, side)) return fill(layer, side, reinterpret_cast<Half*>(out));
  std::vector<Half> rows(tokens * values);
  QKV_RETURN_IF_ERROR(fill(layer, side, rows.data()));
  if (!IsTransposed(layout, side)) {
    EncodeRows(format, rows.data(), tokens, values, out);
    return {};
  }
  std::vector<uint8_t> by_token(tokens * RowBytesOf(layout, layer, side));
  EncodeRows(format, rows.data(), tokens, values, by_token.data());
  Transpose(by_token.data(), tokens, values, CacheRowBytes(format.type, 1), out);
  return {};
}

Status RepeatPart(ByteSpan bytes, std::span<const int32_t> positions, ByteReader* reader, ByteWriter* out) {
  uint32_t streams = 0, cells = 0, transposed = 0, layers = 0;
  Cell cell{};
  if (!reader->Get(&streams) || !reader->Get(&cells) || !reader->Get(&cell) || !reader->Get(&transposed) ||
      !reader->Get(&layers) || streams != 1 || cells != 1) {
    return Unexpected("no part of one token");
  }
  out->Put(streams);
  out->Put(static_cast<uint32_t>(positions.size()));
  for (const int32_t position : positions) out->Put(Cell{position, 1, 0});
  out->Put(transposed);
  out->Put(layers);
  for (uint64_t i = 0; i < uint64_t{2} * layers; ++i) {
    RowsHead head;
    if (!reader->Get(&head.type) || !reader->Get(&head.row_bytes)) return Unexpected("too short");
    out->Put(head.type);
    out->Put(head.row_bytes);
    const bool in_runs = transposed != 0 && i >= layers;
    const uint64_t run_bytes = in_runs ? head.row_bytes & 0xFFFFFFFF : head.row_bytes;
    for (uint64_t run = 0; run < (in_runs ? head.row_bytes >> 32 : 1); ++run) {
      const size_t at = reader->offset();
      if (!reader->Skip(run_bytes)) return Unexpected("too short");
      for (size_t t = 0; t < positions.size(); ++t) out->PutBytes(bytes.data() + at, run_bytes);
    }
  }
  return {};
}

// A row of one part of one of several states.
struct Source {
  int32_t position;
  size_t state, row;
};

// Where the rows of one part are, in the order of their positions.
std::vector<Source> SourcesOf(const std::vector<Contents>& states, size_t part) {
  std::vector<Source> sources;
  for (size_t state = 0; state < states.size(); ++state) {
    const std::vector<int32_t>& positions = states[state].positions[part];
    for (size_t row = 0; row < positions.size(); ++row) sources.push_back({positions[row], state, row});
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.position < b.position; });
  return sources;
}

// The rows of one layer and side in one state.
struct Piece {
  ByteSpan bytes;
  size_t rows;
};

// Copies rows, as the cache has them, to where they go in order.
void CopyRows(const StateLayout& layout, size_t layer, Side side, std::span<const Source> sources,
              const std::vector<Piece>& from, uint8_t* to) {
  // Transposed, a row is spread over as many runs as it has values.
  const size_t runs = IsTransposed(layout, side) ? layout.shapes[layer].row_values(side) : 1;
  const size_t bytes = RowBytesOf(layout, layer, side) / runs;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Piece& piece = from[sources[i].state];
    for (size_t run = 0; run < runs; ++run) {
      std::memcpy(to + (run * sources.size() + i) * bytes,
                  piece.bytes.data() + (run * piece.rows + sources[i].row) * bytes, bytes);
    }
  }
}

// Positions in order, each once.
Result<std::vector<int32_t>> PositionsOf(std::span<const Source> sources) {
  std::vector<int32_t> positions;
  for (const Source& source : sources) positions.push_back(source.position);
  if (std::adjacent_find(positions.begin(), positions.end()) != positions.end())
    return Unexpected("a position has several rows");
  return positions;
}

}  // namespace

uint32_t StateLayout::window() const {
  return std::accumulate(formats.begin(), formats.end(), 0u,
                         [](uint32_t window, const LayerFormat& format) { return std::max(window, format.window); });
}

Result<StateLayout> LearnStateLayout(ByteSpan one_token_state, const std::vector<LayerShape>& shapes,
                                     const std::vector<LayerFormat>& formats, bool transposed_values) {
  StateLayout layout{0, GgmlTypeOf(CacheType::kF16), shapes, formats, transposed_values};
  StateReader reader(one_token_state, layout);
  QKV_ASSIGN_OR_RETURN(const uint32_t magic, reader.ReadMagic());
  const Result<Contents> contents = reader.Read(0, /*sorted=*/true);
  if (!contents) return Status(StatusCode::kUnsupported, contents.status().message());
  for (const std::vector<int32_t>& positions : contents->positions) {
    if (positions.size() != 1) return Unexpected(fmt::format("{} cells for one token", positions.size()));
  }
  layout.magic = magic;
  return layout;
}

Result<std::vector<uint8_t>> RepeatToken(ByteSpan one_token_state, std::span<const int32_t> positions) {
  std::vector<uint8_t> repeated;
  ByteWriter writer(&repeated);
  ByteReader reader(one_token_state);
  uint64_t magic_and_sequence = 0;
  if (!reader.Get(&magic_and_sequence)) return Unexpected("too short");
  writer.Put(magic_and_sequence);
  while (reader.remaining() > 0) QKV_RETURN_IF_ERROR(RepeatPart(one_token_state, positions, &reader, &writer));
  return repeated;
}

Result<std::vector<uint8_t>> CompleteState(std::vector<std::vector<uint8_t>> states, const StateLayout& layout) {
  std::vector<Contents> contents;
  for (const std::vector<uint8_t>& state : states) {
    const size_t first_part = contents.empty() ? 0 : Parts(layout) - 1;
    QKV_ASSIGN_OR_RETURN(Contents read, ReadState(state, layout, first_part, /*sorted=*/false));
    contents.push_back(std::move(read));
  }
  std::vector<std::vector<Source>> sources;
  std::vector<std::vector<int32_t>> positions;
  for (size_t part = 0; part < Parts(layout); ++part) {
    sources.push_back(SourcesOf(contents, part));
    QKV_ASSIGN_OR_RETURN(std::vector<int32_t> ordered, PositionsOf(sources.back()));
    positions.push_back(std::move(ordered));
  }
  if (positions.back() != positions.front()) return LacksRows("cache", positions.back(), positions.front());
  if (states.size() == 1 && contents.front().positions == positions) return std::move(states.front());
  std::vector<uint8_t> whole;
  const Contents out = LayOut(layout, positions.front(), &whole);
  for (size_t layer = 0; layer < layout.shapes.size(); ++layer) {
    const size_t part = PartOf(layout, layer);
    for (const Side side : {Side::kKeys, Side::kValues}) {
      std::vector<Piece> from;
      for (size_t i = 0; i < states.size(); ++i) {
        from.push_back(
            {ByteSpan(states[i]).subspan(contents[i].offset(side)[layer]), contents[i].positions[part].size()});
      }
      CopyRows(layout, layer, side, sources[part], from, whole.data() + out.offset(side)[layer]);
    }
  }
  return whole;
}

Result<std::vector<int32_t>> CheckState(ByteSpan bytes, const StateLayout& layout) {
  QKV_ASSIGN_OR_RETURN(Contents contents, ReadWholeState(bytes, layout));
  return std::move(contents.positions.front());
}

Result<KvState> KvState::Parse(std::vector<uint8_t> bytes, const StateLayout& layout, int threads) {
  QKV_ASSIGN_OR_RETURN(Contents contents, ReadWholeState(bytes, layout));
  KvState state;
  state.bytes_ = std::move(bytes);
  state.positions_ = std::move(contents.positions.front());
  state.shapes_ = layout.shapes;
  const size_t layers = layout.shapes.size();
  state.keys_.resize(layers);
  state.values_.resize(layers);
  QKV_RETURN_IF_ERROR(ParallelFor(2 * layers, threads, [&](size_t i) {
    const Side side = i < layers ? Side::kKeys : Side::kValues;
    const size_t layer = i % layers;
    Rows& rows = (side == Side::kKeys ? state.keys_ : state.values_)[layer];
    rows.offset = contents.offset(side)[layer];
    if (layout.format(layer).rows(side).plain() && !IsTransposed(layout, side)) return Status();
    return DecodeLayer(layout, layer, side, state.bytes_.data() + rows.offset, state.tokens(), &rows.decoded);
  }));
  return state;
}

const Half* KvState::data(const Rows& rows) const {
  // Offsets are even: every field and row before has an even size, and so has the buffer's alignment.
  return rows.decoded.empty() ? reinterpret_cast<const Half*>(bytes_.data() + rows.offset) : rows.decoded.data();
}

KvView KvState::view() const {
  KvView view;
  view.tokens = tokens();
  for (size_t i = 0; i < shapes_.size(); ++i) view.layers.push_back({shapes_[i], data(keys_[i]), data(values_[i])});
  return view;
}

Result<std::vector<uint8_t>> BuildState(const StateLayout& layout, std::span<const int32_t> positions, int threads,
                                        const FillRows& fill) {
  std::vector<uint8_t> bytes;
  const Contents contents = LayOut(layout, positions, &bytes);
  const size_t layers = layout.shapes.size();
  QKV_RETURN_IF_ERROR(ParallelFor(2 * layers, threads, [&](size_t i) {
    const Side side = i < layers ? Side::kKeys : Side::kValues;
    const size_t layer = i % layers;
    return EncodeLayer(layout, layer, side, positions.size(), fill, bytes.data() + contents.offset(side)[layer]);
  }));
  return bytes;
}

}  // namespace qkvshare
