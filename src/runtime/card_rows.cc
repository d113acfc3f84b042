#include "runtime/card_rows.h"

#include <utility>

#include "runtime/restore.h"

namespace qkvshare {

Result<EarlierRows> RowsOfCards(std::vector<CardPart> parts, const CardContext& context) {
  EarlierRows rows;
  if (parts.empty()) return rows;
  QKV_RETURN_IF_ERROR(CheckRestore(parts, context));
  QKV_RETURN_IF_ERROR(CheckCardList(parts));
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  rows.tokens = parts.back().end();
  rows.fill = [parts = std::move(parts), &context, kernels](size_t layer, Side side, uint32_t kv_head, Half* out) {
    for (const CardPart& part : parts) {
      const size_t dim = part.card->shape(layer).dim(side);
      QKV_RETURN_IF_ERROR(part.card->UnpackHead(*kernels, layer, side, kv_head, part.tokens, out, dim));
      if (side == Side::kKeys && part.shift() != 0)
        MoveKeys(context.facts().ropes[layer], part.shift(), dim, part.tokens, out);
      out += part.tokens * dim;
    }
    return Status();
  };
  return rows;
}

}  // namespace qkvshare
