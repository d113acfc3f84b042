// How much memory one more receiver of a card takes.
#pragma once

#include "eval/speed.h"
#include "eval/speed_context.h"
#include "qkvshare/status.h"

namespace qkvshare {

Result<ReceiverMemory> MeasureMemory(const SpeedContext& context);

}  // namespace qkvshare
