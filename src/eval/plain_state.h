// llama.cpp alone with a context that is known as an exact card: what measurements compare cards with.
#pragma once

#include <memory>
#include <string>

#include "card/card.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/plain_context.h"
#include "runtime/session.h"

namespace qkvshare {

// A context of these options whose own cache, of whatever type, holds the card's tokens: what restoring the card gives
// a session. Errors: Session::Create, CheckRestore, BuildCardState, PlainContext::SetState.
Result<std::unique_ptr<PlainContext>> MakePlain(const Model& model, const SessionOptions& options,
                                                const std::shared_ptr<const Card>& exact);

// So that the disk is not still at work while times are taken.
void SyncFile(const std::string& path);

}  // namespace qkvshare
