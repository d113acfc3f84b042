// Opens arbitrary bytes as a card: once as they are, once with their checksums and digests made right, so that
// mutations get past them. What opens is unpacked, by every set of kernels alike; and it is copied to another card,
// which must hold the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "card/card.h"
#include "card/card_flatten.h"
#include "card/card_slice.h"
#include "card/card_test_util.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

constexpr size_t kMaxValues = 1 << 20;  // of one side of one layer

void Require(bool condition) {
  if (!condition) std::abort();
}

void UnpackAll(const Card& card) {
  std::vector<Half> out;
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const size_t values = card.tokens() * card.shape(layer).row_values(side);
      if (values > kMaxValues) continue;
      for (const size_t tokens : {size_t{card.tokens()}, size_t{card.tokens() / 2}}) {
        out.assign(values, 0);
        const Status status = card.Unpack(ScalarKernels(), layer, side, tokens, out.data());
        Require(status.ok() || status.code() == StatusCode::kCorrupt);
        for (const Kernels* kernels : AvailableKernels()) {
          std::vector<Half> same(values, 0);
          Require(card.Unpack(*kernels, layer, side, tokens, same.data()).message() == status.message());
          Require(!status.ok() || same == out);
        }
        if (!status.ok()) continue;
        for (const Half h : out) Require(IsFiniteHalf(h));
      }
    }
  }
}

// A chain of this card alone.
void Flatten(const Card& card) {
  if (card.has_parent()) return;  // and so has no context
  const std::shared_ptr<const Card> chain[] = {{std::shared_ptr<void>(), &card}};
  const Result<PackedCard> flat = FlattenCards(chain, 1);
  if (!flat) {  // rule 90, or names that are longer when they are written again
    Require(flat.status().code() == StatusCode::kCorrupt || flat.status().code() == StatusCode::kOutOfRange);
    return;
  }
  const Result<Card> copy = Card::FromBytes(flat->Bytes());
  Require(copy && copy->VerifyDigests().ok() && copy->tokens() == card.tokens());
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const size_t values = card.tokens() * card.shape(layer).row_values(side);
      if (values > kMaxValues) continue;
      std::vector<Half> rows(values);
      std::vector<Half> copied(values);
      Require(card.Unpack(ScalarKernels(), layer, side, card.tokens(), rows.data()).ok());
      Require(copy->Unpack(ScalarKernels(), layer, side, card.tokens(), copied.data()).ok());
      Require(rows == copied);
    }
  }
}

// Its second half, copied.
void Slice(const Card& card) {
  const uint32_t first = card.tokens() / 2;
  const Result<PackedCard> packed = SliceCard(card, first, card.tokens() - first, 1);
  if (!packed) {  // as above
    Require(packed.status().code() == StatusCode::kCorrupt || packed.status().code() == StatusCode::kOutOfRange);
    return;
  }
  const Result<Card> part = Card::FromBytes(packed->Bytes());
  Require(part && part->VerifyDigests().ok() && part->tokens() == card.tokens() - first);
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const size_t row = card.shape(layer).row_values(side);
      if (card.tokens() * row > kMaxValues) continue;
      const std::vector<Half> copied = card_test::UnpackSide(*part, layer, side, part->tokens());
      std::vector<Half> all = card_test::UnpackSide(card, layer, side, card.tokens());
      Require(!copied.empty());
      // The first half may hold what no reader takes.
      Require(all.empty() ||
              std::equal(copied.begin(), copied.end(), all.begin() + static_cast<ptrdiff_t>(first * row)));
    }
  }
}

// Whether it opened. The bytes lie in a block of their own size, so that a sanitizer sees each read past their end.
bool OpenAndUse(const std::vector<uint8_t>& bytes, bool sealed) {
  const Result<Card> card = Card::FromSpan(bytes);
  if (!card) {
    Require(!card.status().message().empty());
    return false;
  }
  Require(card->tokens() > 0 && card->layers() > 0 && card->file_bytes() == bytes.size());
  const bool intact = card->VerifyDigests().ok();
  Require(intact || !sealed);
  UnpackAll(*card);
  Flatten(*card);
  Slice(*card);
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  bytes.shrink_to_fit();
  OpenAndUse(bytes, false);
  card_test::Reseal(&bytes);
  OpenAndUse(bytes, true);
  return 0;
}
