#include "eval/card_loss.h"

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/card_list.h"
#include "runtime/inject.h"

namespace qkvshare {

Result<Fidelity> MeasureCardLoss(Session* session, const std::shared_ptr<const Card>& card, size_t last) {
  const std::vector<int32_t> tokens = session->tokens();
  if (!std::ranges::equal(tokens, card->token_ids()) || session->attached() > 0 || tokens.size() < 2)
    return Status(StatusCode::kInvalidArgument, "the session does not hold the tokens of a card of two or more");
  const size_t before = tokens.size() - std::min(last, tokens.size() / 2);
  const std::span<const int32_t> scored = std::span(tokens).subspan(before);
  QKV_RETURN_IF_ERROR(session->Truncate(before));
  QKV_ASSIGN_OR_RETURN(const LogitRows reference, ScoreTokens(session, scored, 0));
  session->Clear();
  const CardPart part{card, 0, static_cast<uint32_t>(before)};
  QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, InjectMode::kRestore, session).status());
  QKV_ASSIGN_OR_RETURN(const LogitRows other, ScoreTokens(session, scored, 0));
  session->Clear();
  FidelityMeter meter;
  meter.Add(reference, other);
  return meter.Result();
}

}  // namespace qkvshare
