// A window of queries that moves on with a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/attention_window.h"

namespace qkvshare {

// Adds one token's queries: row `row` of those of a decode call, layer by layer, to a window that is empty or of the
// same model. last_visible: as in the window.
void AppendQueries(const std::vector<LayerQueries>& call, size_t row, uint32_t last_visible, AttentionWindow* window);

// Leaves the queries of tokens [first, end).
void LeaveQueries(uint32_t first, uint32_t end, AttentionWindow* window);

}  // namespace qkvshare
