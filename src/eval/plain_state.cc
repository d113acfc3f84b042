#include "eval/plain_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "runtime/restore.h"

namespace qkvshare {

Result<std::unique_ptr<PlainContext>> MakePlain(const Model& model, const SessionOptions& options,
                                                const std::shared_ptr<const Card>& exact) {
  std::vector<uint8_t> state;
  {
    // Knows how llama.cpp lays out a state.
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
    const CardPart part{exact, 0, exact->tokens()};
    QKV_RETURN_IF_ERROR(CheckRestore({&part, 1}, session->card_context()));
    QKV_ASSIGN_OR_RETURN(state, BuildCardState({&part, 1}, session->card_context()));
  }
  QKV_ASSIGN_OR_RETURN(std::unique_ptr<PlainContext> plain, PlainContext::Create(model, options));
  QKV_RETURN_IF_ERROR(plain->SetState(state));
  return plain;
}

void SyncFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace qkvshare
