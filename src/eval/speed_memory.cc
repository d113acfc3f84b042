#include "eval/speed_memory.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/inject.h"

namespace qkvshare {
namespace {

// Memory that only this process has, in bytes; 0 where the system does not tell.
size_t PrivateBytes() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  size_t bytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "Private_Clean: %zu", &kib) == 1 ||
        std::sscanf(line.c_str(), "Private_Dirty: %zu", &kib) == 1) {
      bytes += kib * 1024;
    }
  }
  return bytes;
}

}  // namespace

// What one more receiver adds, after it has decoded a suffix.
Status MeasureMemory(const SpeedContext& context, SpeedReport* report) {
  context.Step("memory");
  for (const bool fused : {true, false}) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<size_t> bytes;
    for (int i = 0; i < 3; ++i) {
      SessionOptions options = fused ? context.FusedOptions() : context.Options(CacheType::kF16, context.depth());
      options.context = static_cast<uint32_t>(context.depth()) + 64;
      QKV_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Create(context.model(), options));
      const CardPart part{context.card(), 0, context.card()->tokens()};
      QKV_RETURN_IF_ERROR(
          InjectCards({&part, 1}, fused ? InjectMode::kFused : InjectMode::kRestore, session.get()).status());
      QKV_RETURN_IF_ERROR(session->Prefill(context.After(32), {}));
      sessions.push_back(std::move(session));
      bytes.push_back(PrivateBytes());
    }
    const size_t more = bytes[2] > bytes[1] ? bytes[2] - bytes[1] : 0;
    (fused ? report->receiver_bytes : report->restored_receiver_bytes) = more;
  }
  return {};
}

}  // namespace qkvshare
