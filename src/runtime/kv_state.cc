#include "runtime/kv_state.h"

#include <fmt/format.h>

#include "base/parallel.h"
#include "ggml.h"

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

struct Head {
  uint32_t magic = 0;
  std::vector<int32_t> positions;
};

Status ReadHead(ByteReader* reader, Head* head) {
  int32_t sequence = 0;
  uint32_t streams = 0;
  uint32_t cells = 0;
  if (!reader->Get(&head->magic) || !reader->Get(&sequence) || !reader->Get(&streams) || !reader->Get(&cells))
    return Unexpected("too short");
  if (streams != 1) return Unexpected(fmt::format("{} streams", streams));
  if (cells > reader->remaining() / sizeof(Cell)) return Unexpected(fmt::format("{} cells", cells));
  for (uint32_t i = 0; i < cells; ++i) {
    Cell cell{};
    if (!reader->Get(&cell) || cell.sequences != 1)
      return Unexpected(fmt::format("cell {} is of {} sequences", i, cell.sequences));
    if (!head->positions.empty() && cell.position <= head->positions.back())
      return Unexpected("cells are not in order");
    head->positions.push_back(cell.position);
  }
  return {};
}

// Reads type and row size of one layer's rows, and passes over them.
Status ReadRows(ByteReader* reader, size_t tokens, size_t row_bytes, size_t* offset) {
  int32_t type = 0;
  uint64_t stored_row_bytes = 0;
  if (!reader->Get(&type) || !reader->Get(&stored_row_bytes)) return Unexpected("too short");
  if (type != GGML_TYPE_F16) return Unexpected(fmt::format("rows of type {}", type));
  if (stored_row_bytes != row_bytes)
    return Unexpected(fmt::format("rows of {} bytes, not {}", stored_row_bytes, row_bytes));
  *offset = reader->offset();
  return reader->Skip(tokens * row_bytes) ? Status() : Unexpected("too short");
}

struct Body {
  std::vector<size_t> key_offset, value_offset;
};

Status ReadBody(ByteReader* reader, size_t tokens, const std::vector<LayerShape>& shapes, Body* body) {
  uint32_t transposed = 0;
  uint32_t layers = 0;
  if (!reader->Get(&transposed) || !reader->Get(&layers)) return Unexpected("too short");
  if (transposed != 0) return Unexpected("V is transposed");
  if (layers != shapes.size()) return Unexpected(fmt::format("{} layers, not {}", layers, shapes.size()));
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const LayerShape& shape : shapes) {
      size_t offset = 0;
      QKV_RETURN_IF_ERROR(ReadRows(reader, tokens, shape.row_values(side) * sizeof(Half), &offset));
      (side == Side::kKeys ? body->key_offset : body->value_offset).push_back(offset);
    }
  }
  return reader->remaining() == 0 ? Status() : Unexpected(fmt::format("{} bytes too many", reader->remaining()));
}

Status ReadState(ByteSpan bytes, const StateLayout& layout, Head* head, Body* body) {
  ByteReader reader(bytes);
  QKV_RETURN_IF_ERROR(ReadHead(&reader, head));
  if (head->magic != layout.magic) return Unexpected("wrong magic");
  if (head->positions.empty()) return {StatusCode::kInvalidArgument, "the sequence is empty: there is nothing to take"};
  return ReadBody(&reader, head->positions.size(), layout.shapes, body);
}

}  // namespace

Result<StateLayout> LearnStateLayout(ByteSpan one_token_state, const std::vector<LayerShape>& shapes) {
  ByteReader reader(one_token_state);
  Head head;
  QKV_RETURN_IF_ERROR(ReadHead(&reader, &head));
  if (head.positions.size() != 1) return Unexpected(fmt::format("{} cells for one token", head.positions.size()));
  Body body;
  QKV_RETURN_IF_ERROR(ReadBody(&reader, 1, shapes, &body));
  return StateLayout{head.magic, GGML_TYPE_F16, shapes};
}

Result<std::vector<int32_t>> CheckState(ByteSpan bytes, const StateLayout& layout) {
  Head head;
  Body body;
  QKV_RETURN_IF_ERROR(ReadState(bytes, layout, &head, &body));
  return head.positions;
}

Result<KvState> KvState::Parse(std::vector<uint8_t> bytes, const StateLayout& layout) {
  Head head;
  Body body;
  QKV_RETURN_IF_ERROR(ReadState(bytes, layout, &head, &body));
  KvState state;
  state.bytes_ = std::move(bytes);
  state.positions_ = std::move(head.positions);
  state.shapes_ = layout.shapes;
  state.key_offset_ = std::move(body.key_offset);
  state.value_offset_ = std::move(body.value_offset);
  return state;
}

KvView KvState::view() const {
  KvView view;
  view.tokens = tokens();
  for (size_t i = 0; i < shapes_.size(); ++i) {
    // Offsets are even: every field before the rows has an even size, and so has the buffer's alignment.
    const auto rows = [&](size_t offset) { return reinterpret_cast<const Half*>(bytes_.data() + offset); };
    view.layers.push_back({shapes_[i], rows(key_offset_[i]), rows(value_offset_[i])});
  }
  return view;
}

Result<std::vector<uint8_t>> BuildState(const StateLayout& layout, std::span<const int32_t> positions, int threads,
                                        const FillRows& fill) {
  std::vector<uint8_t> bytes;
  ByteWriter writer(&bytes);
  writer.Put(layout.magic);
  writer.Put(int32_t{0});
  writer.Put(uint32_t{1});
  writer.Put(static_cast<uint32_t>(positions.size()));
  for (const int32_t position : positions) writer.Put(Cell{position, 1, 0});
  writer.Put(uint32_t{0});
  writer.Put(static_cast<uint32_t>(layout.shapes.size()));
  struct Rows {
    size_t layer, offset;
    Side side;
  };
  std::vector<Rows> rows;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (size_t layer = 0; layer < layout.shapes.size(); ++layer) {
      const uint64_t row_bytes = layout.shapes[layer].row_values(side) * sizeof(Half);
      writer.Put(layout.f16_type);
      writer.Put(row_bytes);
      rows.push_back({layer, bytes.size(), side});
      bytes.resize(bytes.size() + positions.size() * row_bytes);
    }
  }
  QKV_RETURN_IF_ERROR(ParallelFor(rows.size(), threads, [&](size_t i) {
    return fill(rows[i].layer, rows[i].side, reinterpret_cast<Half*>(bytes.data() + rows[i].offset));
  }));
  return bytes;
}

}  // namespace qkvshare
