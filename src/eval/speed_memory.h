// How much memory one more receiver of a card takes.
#pragma once

#include "eval/speed.h"
#include "eval/speed_context.h"
#include "qkvshare/status.h"

namespace qkvshare {

Status MeasureMemory(const SpeedContext& context, SpeedReport* report);

}  // namespace qkvshare
