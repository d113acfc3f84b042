#include "runtime/probe_queries.h"

#include <algorithm>
#include <utility>

namespace qkvshare {
namespace {

Status CheckProbe(const Session& session, std::span<const std::vector<int32_t>> instructions, int sequence) {
  const auto invalid = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
  QKV_RETURN_IF_ERROR(session.CheckSequence(sequence));
  const size_t tokens = session.tokens(sequence).size();
  if (tokens == session.attached(sequence)) return invalid("probe: there are no tokens to pack that it could look at");
  size_t longest = 0;
  for (const std::vector<int32_t>& instruction : instructions) {
    if (instruction.empty()) return invalid("probe: an instruction has no tokens");
    longest = std::max(longest, instruction.size());
  }
  if (longest == 0) return invalid("probe: there are no instructions");
  return session.CheckRoom(tokens + longest, sequence);
}

Status Probe(Session* session, std::span<const int32_t> instruction, int sequence, AttentionWindow* queries) {
  PrefillOptions prefill;
  prefill.window = static_cast<uint32_t>(instruction.size());
  prefill.window_stride = static_cast<uint32_t>((instruction.size() + kProbeQueries - 1) / kProbeQueries);
  const size_t tokens = session->tokens(sequence).size();
  const Status status = session->Prefill(instruction, prefill, sequence);
  if (status.ok()) AppendWindow(session->window(sequence), queries);
  const Status truncated = session->Truncate(tokens, sequence);
  return status.ok() ? truncated : status;
}

}  // namespace

Result<AttentionWindow> ProbeWindow(Session* session, std::span<const std::vector<int32_t>> instructions,
                                    int sequence) {
  QKV_RETURN_IF_ERROR(CheckProbe(*session, instructions, sequence));
  AttentionWindow own = session->window(sequence);
  AttentionWindow queries;
  Status status;
  for (size_t i = 0; i < instructions.size() && status.ok(); ++i)
    status = Probe(session, instructions[i], sequence, &queries);
  if (!own.empty()) session->SetWindow(std::move(own), sequence);
  if (!status.ok()) return status;
  queries.end = static_cast<uint32_t>(session->tokens(sequence).size() - session->attached(sequence));
  return queries;
}

}  // namespace qkvshare
