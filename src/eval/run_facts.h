// What results follow from besides what was asked for: model, context, software, machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

// Versions of this software, of the card format and of llama.cpp, and the kernels in use. kInvalidArgument as
// SelectAttendKernels.
Result<nlohmann::ordered_json> SoftwareFacts();
// Name, and digest of all that it is.
nlohmann::ordered_json ModelFacts(const Model& model);
// Cache types, RoPE, threads, flash attention.
nlohmann::ordered_json SessionFacts(const Session& session);

// All of the options that plan and card follow from, but for what is known of one context: its segments, predictions,
// anchors and probe.
nlohmann::ordered_json PackFacts(const PackOptions& options);

// Which program this is: the digest of its file (empty where it cannot be read), its version, and the instruction sets
// that llama.cpp uses here. Results of several programs may go together where all else is the same, and those of
// several CPUs, which round in their own ways. Not times.
nlohmann::ordered_json ProducerFacts();

// The digest of a text that contexts are made of by repeating it: the same for contexts of any length.
std::string TextDigest(const Model& model, const std::string& text);

}  // namespace qkvshare
