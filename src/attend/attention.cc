#include "attend/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "quant/tile.h"

namespace qkvshare {
namespace {

constexpr Half kMinusInfinity = 0xFC00;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Places of the block before it belong to tokens that the source shows.
size_t VisibleEnd(const AttentionSource& source, const TokenBlock& block) {
  const int32_t* positions = source.card->positions.data() + block.place;
  return static_cast<size_t>(std::lower_bound(positions, positions + block.tokens, source.end) - positions);
}

bool IsPacked(const BlockLayout& layout) {
  return std::any_of(layout.runs.begin(), layout.runs.end(), [](const auto& run) { return run.bits < 16; });
}

bool AreNeighbours(std::span<const uint32_t> cells) {
  return std::adjacent_find(cells.begin(), cells.end(), [](uint32_t a, uint32_t b) { return b != a + 1; }) ==
         cells.end();
}

}  // namespace

// What is prepared before any item: queries, [kv_heads, query rows of the plan, ...], and what they see of the own
// cache.
struct AttentionWorkspace::Queries {
  std::vector<float> exact;
  std::vector<int8_t> packed;
  std::vector<float> scale, bias;
  std::vector<int32_t> sum;
  std::vector<uint32_t> cells;    // [own units of the plan, cells]: those that some token of the unit sees, in order
  std::vector<uint32_t> visible;  // how many, of each
};

// What one thread needs for one item.
struct AttentionWorkspace::Scratch {
  struct alignas(64) Tile : std::array<uint8_t, kTileTokens * kMaxHeadDim> {};

  explicit Scratch(size_t rows)
      : scores(rows * kMaxBlockTokens),
        weights(rows * kMaxBlockTokens),
        rescale(rows),
        unit(rows),
        zeros(rows),
        first_visible(rows),
        mask(rows) {}

  std::vector<float> scores;     // [rows, kMaxBlockTokens]
  std::vector<int16_t> weights;  // the same
  std::vector<float> rescale, unit, zeros;
  std::vector<uint32_t> first_visible;
  std::vector<const Half*> mask;
  std::vector<Half> own_keys, own_values, own_mask;  // of a block of them, where they are not neighbours
  Tile codes, tile;                                  // of a partial tile
  std::array<RowScale, kTileTokens> tail_scales;     // of one
};

AttentionWorkspace::AttentionWorkspace(const Kernels& kernels, const AttendKernels& attend)
    : kernels_(kernels), attend_(attend), queries_(std::make_unique<Queries>()), scratch_(kMaxThreads) {}
AttentionWorkspace::~AttentionWorkspace() = default;

void AttentionWorkspace::Reserve(const AttentionPlan& plan) {
  const AttentionShape& shape = plan.shape();
  const size_t rows = plan.query_rows_ * shape.kv_heads;
  const auto grow = [](auto* vector, size_t size) {
    if (vector->size() < size) vector->resize(size);
  };
  grow(&queries_->exact, rows * shape.key_dim);
  grow(&queries_->packed, rows * PackedQueryStride(shape.key_dim));
  grow(&queries_->scale, rows);
  grow(&queries_->bias, rows);
  grow(&queries_->sum, rows);
  grow(&queries_->cells, plan.own_units_ * shape.cells);
  grow(&queries_->visible, plan.own_units_);
  grow(&partials_, plan.partial_rows_ * (2 + 2 * static_cast<size_t>(shape.value_dim)));
}

// One thread's work on one node.
class AttentionWorker {
 public:
  AttentionWorker(const AttentionRun& run, AttentionWorkspace::Scratch* scratch)
      : plan_(run.plan_),
        shape_(run.plan_.shape()),
        node_(run.node_),
        kernels_(run.workspace_->kernels_),
        attend_(run.workspace_->attend_),
        queries_(*run.workspace_->queries_),
        partials_(run.workspace_->partials_.data()),
        scratch_(*scratch) {}

  size_t query_items() const { return plan_.units_.size() * shape_.kv_heads; }
  void Prepare(size_t item);
  void Attend(const AttentionPlan::Item& item);
  void Merge(const AttentionPlan::Group& group);

 private:
  // Of the item under way.
  struct Rows {
    size_t count = 0;
    const float* exact = nullptr;
    PackedQueries packed;
    float *max = nullptr, *sum = nullptr, *packed_values = nullptr, *exact_values = nullptr;
  };

  Rows RowsOf(const AttentionPlan::Item& item);
  void PrepareRow(const AttentionSource& source, size_t kv_head, size_t row);
  void AttendBlock(const AttentionPlan::Item& item, const TokenBlock& block, const Rows& rows);
  void AttendOwn(const AttentionPlan::Item& item, const Rows& rows);
  void AttendCells(const AttentionPlan::Item& item, std::span<const uint32_t> cells, const Rows& rows);
  bool FindFirstVisible(const AttentionPlan::Unit& unit, const TokenBlock& block);
  void FindVisibleCells(const AttentionPlan::Unit& unit);
  OwnRows Gather(const OwnRows& rows, size_t kv_head, std::span<const uint32_t> cells, size_t dim,
                 std::vector<Half>* copy) const;
  void GatherMask(const AttentionPlan::Unit& unit, std::span<const uint32_t> cells);
  void Softmax(size_t tokens, size_t end, bool windowed, bool masked, const Rows& rows);
  // A partial tile as a full one, in scratch memory, with its scales.
  std::pair<const uint8_t*, const RowScale*> FullTile(Side side, const BlockLayout& layout, const uint8_t* block,
                                                      const TokenBlock& tokens);
  std::pair<const uint8_t*, const RowScale*> Tiles(Side side, const BlockLayout& layout, const uint8_t* block,
                                                   const TokenBlock& tokens);
  float* PartialMax(size_t row) const { return partials_ + row; }
  float* PartialSum(size_t row) const { return partials_ + plan_.partial_rows_ + row; }
  float* PartialValues(size_t row, bool exact) const {
    return partials_ + 2 * plan_.partial_rows_ + (exact ? plan_.partial_rows_ + row : row) * shape_.value_dim;
  }
  void MergeRow(const AttentionPlan::Group& group, uint32_t token, uint32_t head);
  // The row of this token and head in an item's partial results; false where the item's source is not the token's.
  bool FindPartial(const AttentionPlan::Item& item, uint32_t token, uint32_t head, size_t* row) const;

  const AttentionPlan& plan_;
  const AttentionShape& shape_;
  const AttentionNode& node_;
  const Kernels& kernels_;
  const AttendKernels& attend_;
  AttentionWorkspace::Queries& queries_;
  float* partials_;
  AttentionWorkspace::Scratch& scratch_;
};

// ---- Queries ----

void AttentionWorker::Prepare(size_t item) {
  const AttentionPlan::Unit& unit = plan_.units_[item / shape_.kv_heads];
  const size_t kv_head = item % shape_.kv_heads;
  const AttentionSource& source = plan_.sources_[unit.source];
  if (source.card == nullptr && kv_head == 0) FindVisibleCells(unit);
  size_t row = kv_head * plan_.query_rows_ + unit.row;
  for (uint32_t i = 0; i < unit.tokens; ++i) {
    const uint32_t token = source.tokens[unit.first + i];
    for (uint32_t h = 0; h < shape_.group(); ++h, ++row) {
      const float* q = node_.q + token * node_.q_token_stride + (kv_head * shape_.group() + h) * node_.q_head_stride;
      float* exact = &queries_.exact[row * shape_.key_dim];
      for (size_t c = 0; c < shape_.key_dim; ++c) exact[c] = q[c] * node_.scale;
      if (source.shift != 0) node_.rotate(unit.source, exact);
      if (source.card != nullptr) PrepareRow(source, kv_head, row);
    }
  }
}

void AttentionWorker::PrepareRow(const AttentionSource& source, size_t kv_head, size_t row) {
  const PackedLayer& layer = source.card->layers[node_.layer];
  if (!IsPacked(layer.keys)) return;
  const size_t dim = shape_.key_dim;
  const float* exact = &queries_.exact[row * dim];
  alignas(64) std::array<float, kMaxHeadDim> q;
  std::copy_n(exact, dim, q.begin());
  float bias = 0;
  if (!layer.scale.empty()) {
    const float* mean = &layer.mean[kv_head * dim];
    const float* scale = &layer.scale[kv_head * dim];
    for (size_t c = 0; c < dim; ++c) bias += q[c] * mean[c];
    for (size_t c = 0; c < dim; ++c) q[c] *= scale[c];
  }
  kernels_.rotate(q.data(), dim, RotationBlock(dim));
  const size_t stride = PackedQueryStride(dim);
  queries_.scale[row] =
      attend_.quantize_query(q.data(), dim, &queries_.packed[row * stride], stride, &queries_.sum[row]);
  queries_.bias[row] = bias;
}

// Cells that some token of the unit sees. Others may hold anything, and so count for nothing: neither do their values,
// nor their number, on which the order of sums would depend.
void AttentionWorker::FindVisibleCells(const AttentionPlan::Unit& unit) {
  const uint32_t* tokens = plan_.sources_[unit.source].tokens.data() + unit.first;
  const auto seen = [&](uint32_t cell) {
    return std::any_of(tokens, tokens + unit.tokens,
                       [&](uint32_t token) { return node_.mask[token * node_.mask_stride + cell] != kMinusInfinity; });
  };
  uint32_t* cells = queries_.cells.data() + unit.cells * shape_.cells;
  uint32_t count = 0;
  for (uint32_t cell = 0; cell < shape_.cells; ++cell) {
    if (node_.mask == nullptr || seen(cell)) cells[count++] = cell;
  }
  queries_.visible[unit.cells] = count;
  if (node_.cell_order == nullptr) return;
  const std::vector<int32_t>& order = *node_.cell_order;
  const auto before = [&](uint32_t a, uint32_t b) { return order[a] != order[b] ? order[a] < order[b] : a < b; };
  if (std::is_sorted(cells, cells + count, before)) return;
  if (std::any_of(cells, cells + count, [&](uint32_t cell) { return order[cell] < 0; })) return;
  std::sort(cells, cells + count, before);
}

// ---- One item ----

AttentionWorker::Rows AttentionWorker::RowsOf(const AttentionPlan::Item& item) {
  const AttentionPlan::Unit& unit = plan_.units_[item.unit];
  const size_t first = item.kv_head * plan_.query_rows_ + unit.row;
  const size_t stride = PackedQueryStride(shape_.key_dim);
  Rows rows;
  rows.count = static_cast<size_t>(unit.tokens) * shape_.group();
  rows.exact = &queries_.exact[first * shape_.key_dim];
  rows.packed = {&queries_.packed[first * stride], stride, &queries_.scale[first], &queries_.sum[first],
                 &queries_.bias[first]};
  rows.max = PartialMax(item.partial);
  rows.sum = PartialSum(item.partial);
  rows.packed_values = PartialValues(item.partial, false);
  rows.exact_values = PartialValues(item.partial, true);
  return rows;
}

void AttentionWorker::Attend(const AttentionPlan::Item& item) {
  const Rows rows = RowsOf(item);
  std::fill_n(rows.max, rows.count, kNothing);
  std::fill_n(rows.sum, rows.count, 0.0f);
  std::fill_n(rows.packed_values, rows.count * shape_.value_dim, 0.0f);
  std::fill_n(rows.exact_values, rows.count * shape_.value_dim, 0.0f);
  const AttentionCard* card = plan_.sources_[plan_.units_[item.unit].source].card;
  if (card != nullptr) {
    for (uint32_t i = item.begin; i < item.end; ++i) AttendBlock(item, card->blocks[i], rows);
    return;
  }
  AttendOwn(item, rows);
}

bool AttentionWorker::FindFirstVisible(const AttentionPlan::Unit& unit, const TokenBlock& block) {
  const AttentionSource& source = plan_.sources_[unit.source];
  const int32_t* positions = source.card->positions.data() + block.place;
  bool any = false;
  uint32_t* out = scratch_.first_visible.data();
  for (uint32_t i = 0; i < unit.tokens; ++i) {
    const int64_t last_hidden =
        int64_t{node_.positions[source.tokens[unit.first + i]]} - int64_t{node_.window} - source.shift;
    const auto first =
        static_cast<uint32_t>(std::upper_bound(positions, positions + block.tokens, last_hidden) - positions);
    any = any || first < block.tokens;
    for (uint32_t h = 0; h < shape_.group(); ++h) *out++ = first;
  }
  return any;
}

std::pair<const uint8_t*, const RowScale*> AttentionWorker::FullTile(Side side, const BlockLayout& layout,
                                                                     const uint8_t* block, const TokenBlock& tokens) {
  const BlockLayout::Run& run = layout.runs[tokens.level];
  scratch_.codes.fill(0);
  scratch_.tail_scales.fill(0);
  UnpackTile(side, block + run.tail_offset, tokens.tokens, layout.dim, run.bits, scratch_.codes.data());
  PackTile(side, scratch_.codes.data(), kTileTokens, layout.dim, run.bits, scratch_.tile.data());
  std::memcpy(scratch_.tail_scales.data(),
              block + layout.scales_offset + (run.first_scale + tokens.first) * sizeof(RowScale),
              tokens.tokens * sizeof(RowScale));
  return {scratch_.tile.data(), scratch_.tail_scales.data()};
}

std::pair<const uint8_t*, const RowScale*> AttentionWorker::Tiles(Side side, const BlockLayout& layout,
                                                                  const uint8_t* block, const TokenBlock& tokens) {
  if (tokens.tail) return FullTile(side, layout, block, tokens);
  const BlockLayout::Run& run = layout.runs[tokens.level];
  const uint8_t* scales = block + layout.scales_offset + (run.first_scale + tokens.first) * sizeof(RowScale);
  return {block + run.full_offset + TileBytes(tokens.first, layout.dim, run.bits),
          reinterpret_cast<const RowScale*>(scales)};
}

void AttentionWorker::Softmax(size_t tokens, size_t end, bool windowed, bool masked, const Rows& rows) {
  SoftmaxBlock block;
  block.rows = rows.count;
  block.tokens = AlignUp(tokens, kTileTokens);
  block.stride = kMaxBlockTokens;
  block.scores = scratch_.scores.data();
  block.softcap = node_.softcap;
  block.first_visible = windowed ? scratch_.first_visible.data() : nullptr;
  block.end = end;
  block.mask = masked ? scratch_.mask.data() : nullptr;
  block.max = rows.max;
  block.sum = rows.sum;
  block.rescale = scratch_.rescale.data();
  attend_.softmax(block);
  for (size_t row = 0; row < rows.count; ++row) {
    const float factor = scratch_.rescale[row];
    if (factor == 1.0f) continue;
    float* packed = rows.packed_values + row * shape_.value_dim;
    float* exact = rows.exact_values + row * shape_.value_dim;
    for (size_t c = 0; c < shape_.value_dim; ++c) packed[c] *= factor;
    for (size_t c = 0; c < shape_.value_dim; ++c) exact[c] *= factor;
  }
}

void AttentionWorker::AttendBlock(const AttentionPlan::Item& item, const TokenBlock& block, const Rows& rows) {
  const AttentionPlan::Unit& unit = plan_.units_[item.unit];
  const size_t end = VisibleEnd(plan_.sources_[unit.source], block);
  const bool windowed = node_.window > 0;
  if (end == 0) return;
  if (windowed && !FindFirstVisible(unit, block)) return;
  const PackedLayer& layer = plan_.sources_[unit.source].card->layers[node_.layer];
  const size_t tiles = (block.tokens + kTileTokens - 1) / kTileTokens;

  const BlockLayout::Run& keys = layer.keys.runs[block.level];
  const uint8_t* key_block = layer.key_blocks[item.kv_head];
  float* scores = scratch_.scores.data();
  const auto exact_rows = [&](const BlockLayout::Run& run, const uint8_t* start, size_t dim) {
    return reinterpret_cast<const Half*>(
        start + (block.tail ? run.tail_offset : run.full_offset + TileBytes(block.first, dim, 16)));
  };
  if (keys.bits == 16) {
    attend_.exact_key_dots(exact_rows(keys, key_block, shape_.key_dim), shape_.key_dim, block.tokens, shape_.key_dim,
                           rows.exact, rows.count, scores, kMaxBlockTokens);
  } else {
    const auto [codes, scales] = Tiles(Side::kKeys, layer.keys, key_block, block);
    attend_.key_dots(codes, keys.bits, tiles, shape_.key_dim, scales, rows.packed, rows.count, scores, kMaxBlockTokens);
  }
  Softmax(block.tokens, end, windowed, false, rows);

  const BlockLayout::Run& values = layer.values.runs[block.level];
  const uint8_t* value_block = layer.value_blocks[item.kv_head];
  if (values.bits == 16) {
    attend_.exact_value_sums(exact_rows(values, value_block, shape_.value_dim), shape_.value_dim, block.tokens,
                             shape_.value_dim, scores, kMaxBlockTokens, rows.count, rows.exact_values);
    return;
  }
  const auto [codes, scales] = Tiles(Side::kValues, layer.values, value_block, block);
  int16_t* weights = scratch_.weights.data();
  attend_.quantize_weights(scores, kMaxBlockTokens, tiles * kTileTokens, rows.count, scales, values.bits, weights,
                           scratch_.unit.data(), scratch_.zeros.data());
  attend_.value_sums(codes, values.bits, tiles, shape_.value_dim, weights, kMaxBlockTokens, scratch_.unit.data(),
                     scratch_.zeros.data(), rows.count, rows.packed_values);
}

// These cells' rows, in one piece.
OwnRows AttentionWorker::Gather(const OwnRows& rows, size_t kv_head, std::span<const uint32_t> cells, size_t dim,
                                std::vector<Half>* copy) const {
  const Half* first = rows.data + kv_head * rows.head_stride;
  if (AreNeighbours(cells)) return {first + cells.front() * rows.cell_stride, rows.cell_stride, 0};
  copy->resize(kMaxBlockTokens * dim);
  for (size_t i = 0; i < cells.size(); ++i) std::copy_n(first + cells[i] * rows.cell_stride, dim, &(*copy)[i * dim]);
  return {copy->data(), dim, 0};
}

void AttentionWorker::GatherMask(const AttentionPlan::Unit& unit, std::span<const uint32_t> cells) {
  scratch_.own_mask.assign(unit.tokens * kMaxBlockTokens, kMinusInfinity);
  size_t row = 0;
  for (uint32_t i = 0; i < unit.tokens; ++i) {
    Half* mask = &scratch_.own_mask[i * kMaxBlockTokens];
    const Half* given = node_.mask + plan_.sources_[unit.source].tokens[unit.first + i] * node_.mask_stride;
    for (size_t j = 0; j < cells.size(); ++j) mask[j] = given[cells[j]];
    for (uint32_t h = 0; h < shape_.group(); ++h) scratch_.mask[row++] = mask;
  }
}

void AttentionWorker::AttendOwn(const AttentionPlan::Item& item, const Rows& rows) {
  const AttentionPlan::Unit& unit = plan_.units_[item.unit];
  const uint32_t* cells = queries_.cells.data() + unit.cells * shape_.cells;
  const size_t end = std::min(item.end, queries_.visible[unit.cells]);
  for (size_t first = item.begin; first < end; first += kMaxBlockTokens)
    AttendCells(item, {cells + first, std::min(kMaxBlockTokens, end - first)}, rows);
}

void AttentionWorker::AttendCells(const AttentionPlan::Item& item, std::span<const uint32_t> cells, const Rows& rows) {
  const OwnRows keys = Gather(node_.keys, item.kv_head, cells, shape_.key_dim, &scratch_.own_keys);
  const OwnRows values = Gather(node_.values, item.kv_head, cells, shape_.value_dim, &scratch_.own_values);
  if (node_.mask != nullptr) GatherMask(plan_.units_[item.unit], cells);
  float* scores = scratch_.scores.data();
  attend_.exact_key_dots(keys.data, keys.cell_stride, cells.size(), shape_.key_dim, rows.exact, rows.count, scores,
                         kMaxBlockTokens);
  Softmax(cells.size(), cells.size(), false, node_.mask != nullptr, rows);
  attend_.exact_value_sums(values.data, values.cell_stride, cells.size(), shape_.value_dim, scores, kMaxBlockTokens,
                           rows.count, rows.exact_values);
}

// ---- Merging ----

bool AttentionWorker::FindPartial(const AttentionPlan::Item& item, uint32_t token, uint32_t head, size_t* row) const {
  const AttentionPlan::Unit& unit = plan_.units_[item.unit];
  const auto first = plan_.sources_[unit.source].tokens.begin() + unit.first;
  const auto found = std::lower_bound(first, first + unit.tokens, token);
  if (found == first + unit.tokens || *found != token) return false;
  *row = item.partial + static_cast<size_t>(found - first) * shape_.group() + head;
  return true;
}

void AttentionWorker::MergeRow(const AttentionPlan::Group& group, uint32_t token, uint32_t head) {
  const AttentionPlan::Item* items = &plan_.items_[group.first_item];
  const size_t dim = shape_.value_dim;
  const size_t q_head = group.kv_head * shape_.group() + head;
  float max = node_.sinks != nullptr ? node_.sinks[q_head] : kNothing;
  size_t row = 0;
  for (uint32_t i = 0; i < group.items; ++i) {
    if (FindPartial(items[i], token, head, &row)) max = std::max(max, *PartialMax(row));
  }
  alignas(64) std::array<float, kMaxHeadDim> packed;
  alignas(64) std::array<float, kMaxHeadDim> exact;
  std::fill_n(packed.begin(), dim, 0.0f);
  std::fill_n(exact.begin(), dim, 0.0f);
  float sum = node_.sinks != nullptr ? std::exp(node_.sinks[q_head] - max) : 0.0f;
  for (uint32_t i = 0; i < group.items; ++i) {
    if (!FindPartial(items[i], token, head, &row) || *PartialMax(row) == kNothing) continue;
    const float factor = std::exp(*PartialMax(row) - max);
    sum += factor * *PartialSum(row);
    const float* packed_part = PartialValues(row, false);
    const float* exact_part = PartialValues(row, true);
    for (size_t c = 0; c < dim; ++c) packed[c] += factor * packed_part[c];
    for (size_t c = 0; c < dim; ++c) exact[c] += factor * exact_part[c];
  }
  kernels_.rotate(packed.data(), dim, RotationBlock(dim));
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  float* out = node_.out + (static_cast<size_t>(token) * shape_.heads + q_head) * dim;
  for (size_t c = 0; c < dim; ++c) out[c] = (packed[c] + exact[c]) * inverse;
}

void AttentionWorker::Merge(const AttentionPlan::Group& group) {
  for (uint32_t i = 0; i < group.tokens; ++i) {
    for (uint32_t head = 0; head < shape_.group(); ++head) MergeRow(group, group.first_token + i, head);
  }
}

// ---- A run ----

AttentionRun::AttentionRun(const AttentionPlan& plan, AttentionNode node, AttentionWorkspace* workspace)
    : plan_(plan), node_(std::move(node)), workspace_(workspace), items_left_(plan.groups_.size()) {
  Reset();
}

void AttentionRun::Reset() {
  next_query_ = queries_done_ = next_item_ = 0;
  for (size_t i = 0; i < items_left_.size(); ++i) items_left_[i] = plan_.groups_[i].items;
}

void AttentionRun::Run(int thread) {
  std::unique_ptr<AttentionWorkspace::Scratch>& scratch = workspace_->scratch_[static_cast<size_t>(thread)];
  const size_t rows = AttentionPlan::MaxRows(plan_.shape());
  if (scratch == nullptr || scratch->rescale.size() < rows)
    scratch = std::make_unique<AttentionWorkspace::Scratch>(rows);
  AttentionWorker worker(*this, scratch.get());
  const auto queries = static_cast<uint32_t>(worker.query_items());
  for (uint32_t i = next_query_.fetch_add(1); i < queries; i = next_query_.fetch_add(1)) {
    worker.Prepare(i);
    queries_done_.fetch_add(1, std::memory_order_release);
  }
  for (int spins = 0; queries_done_.load(std::memory_order_acquire) < queries; ++spins) {
    if (spins > 1000) std::this_thread::yield();
  }
  const auto items = static_cast<uint32_t>(plan_.items_.size());
  for (uint32_t i = next_item_.fetch_add(1); i < items; i = next_item_.fetch_add(1)) {
    worker.Attend(plan_.items_[i]);
    const uint32_t group = plan_.items_[i].group;
    if (items_left_[group].fetch_sub(1, std::memory_order_acq_rel) == 1) worker.Merge(plan_.groups_[group]);
  }
}

}  // namespace qkvshare
