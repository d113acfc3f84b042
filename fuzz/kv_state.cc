// Reads sequence states of llama.cpp: the input's bytes as they are, and a valid state that the input edits, so that
// mutations get past the head. Whatever parses must be what BuildState makes of its positions and rows.
#include "runtime/kv_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

constexpr size_t kHeadBytes = 16;
constexpr size_t kCellBytes = 12;

void Require(bool condition) {
  if (!condition) std::abort();
}

// Two layers that differ in each size. 1 is ggml's number of the type F16.
const StateLayout& Layout() {
  static const StateLayout layout{0x56514b51, 1, {{1, 8, 16}, {2, 16, 8}}};
  return layout;
}

std::vector<uint8_t> Build(std::span<const int32_t> positions, const FillRows& fill) {
  Result<std::vector<uint8_t>> bytes = BuildState(Layout(), positions, 1, fill);
  Require(bool{bytes});
  return std::move(*bytes);
}

// A state of `tokens` tokens whose rows all differ.
std::vector<uint8_t> ValidState(size_t tokens) {
  std::vector<int32_t> positions(tokens);
  for (size_t i = 0; i < tokens; ++i) positions[i] = static_cast<int32_t>(3 * i);
  return Build(positions, [&](size_t layer, Side side, Half* rows) {
    const size_t values = tokens * Layout().shapes[layer].row_values(side);
    for (size_t i = 0; i < values; ++i) {
      rows[i] = static_cast<Half>(1000 * (2 * layer + (side == Side::kKeys ? 0 : 1)) + i);
    }
    return Status();
  });
}

// Each 4 bytes of the script are one edit: where (16 bits), how, and with what.
void Edit(ByteSpan script, std::vector<uint8_t>* bytes) {
  constexpr std::array<uint32_t, 8> kWords = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0x55555556, 0x15555556};
  for (; script.size() >= 4 && !bytes->empty(); script = script.subspan(4)) {
    const size_t at = (script[0] + 256U * script[1]) % bytes->size();
    const uint8_t value = script[3];
    switch (script[2] % 6) {
      case 0: (*bytes)[at] = value; break;
      case 1: (*bytes)[at] ^= static_cast<uint8_t>(1U << (value % 8)); break;
      case 2: std::memcpy(bytes->data() + at, &kWords[value % 8], std::min<size_t>(4, bytes->size() - at)); break;
      case 3: bytes->resize(at); break;
      case 4: bytes->insert(bytes->begin() + static_cast<std::ptrdiff_t>(at), value % 16, value); break;
      default:
        bytes->erase(bytes->begin() + static_cast<std::ptrdiff_t>(at),
                     bytes->begin() + static_cast<std::ptrdiff_t>(std::min(at + value % 16, bytes->size())));
    }
  }
}

// What parsed, built again: equal but for the sequence ids, which readers pass over.
void RequireRebuilds(const KvState& state, std::vector<uint8_t> bytes) {
  const KvView view = state.view();
  Require(view.tokens == state.tokens() && view.layers.size() == Layout().shapes.size());
  const std::vector<uint8_t> again = Build(state.positions(), [&](size_t layer, Side side, Half* rows) {
    const LayerRows& from = view.layers[layer];
    std::copy_n(side == Side::kKeys ? from.keys : from.values, view.tokens * from.shape.row_values(side), rows);
    return Status();
  });
  Require(again.size() == bytes.size());
  std::fill_n(bytes.begin() + 4, 4, 0);
  for (size_t i = 0; i < state.tokens(); ++i) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(kHeadBytes + i * kCellBytes + 8), 4, 0);
  }
  Require(again == bytes);
}

// The three readers agree with each other. The bytes lie in a block of their own size, so that a sanitizer sees each
// read past their end.
bool ReadAll(std::vector<uint8_t> bytes) {
  bytes.shrink_to_fit();
  const Result<std::vector<int32_t>> positions = CheckState(bytes, Layout());
  const Result<StateLayout> learned = LearnStateLayout(bytes, Layout().shapes);
  if (learned) {
    Require(learned->shapes == Layout().shapes && learned->f16_type == Layout().f16_type);
    const Result<std::vector<int32_t>> by_learned = CheckState(bytes, *learned);
    Require(by_learned && by_learned->size() == 1);
  } else {
    Require(learned.status().code() == StatusCode::kUnsupported && !learned.status().message().empty());
  }
  const Result<KvState> state = KvState::Parse(bytes, Layout());
  Require(bool{state} == bool{positions});
  if (!state) {
    const StatusCode code = state.status().code();
    Require(code == StatusCode::kUnsupported || code == StatusCode::kInvalidArgument);
    Require(code == positions.status().code() && state.status().message() == positions.status().message());
    return false;
  }
  Require(state->tokens() > 0 && state->positions() == *positions);
  Require(bool{learned} == (state->tokens() == 1));
  Require(std::equal(bytes.begin(), bytes.end(), state->bytes().begin(), state->bytes().end()));
  RequireRebuilds(*state, std::move(bytes));
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadAll({data, data + size});
  std::vector<uint8_t> valid = ValidState(size == 0 ? 1 : 1 + data[0] % 4);
  if (size > 0) Edit(ByteSpan(data, size).subspan(1), &valid);
  const bool read = ReadAll(std::move(valid));
  Require(read || size > 4);  // unedited, it reads
  return 0;
}
