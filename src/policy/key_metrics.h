// The metric in which each KV head's keys are rounded, from queries that its keys were met by.
#pragma once

#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/channel_profile.h"
#include "quant/error_metric.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Of all queries of the window, taken to the space of the codes: [layer][kv_head]. Empty for an empty window.
// kInvalidArgument where its layers are not those of kv, kNonFinite naming the layer. Cost: dim^2 / 2 multiply-adds a
// query and head, and dim^3 / 3 a KV head.
Result<KeyMetrics> MeasureKeyMetrics(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                     int threads);

}  // namespace qkvshare
