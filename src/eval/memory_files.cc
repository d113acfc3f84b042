#include "eval/memory_files.h"

#include <fmt/format.h>

#include <utility>

#include "eval/kept_context.h"
#include "eval/plain_state.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {

Result<std::unique_ptr<MemoryFiles>> MemoryFiles::Write(const Model& model, const MemoryRequest& request,
                                                        std::vector<int32_t> tokens) {
  std::unique_ptr<MemoryFiles> files(new MemoryFiles());
  files->depth_ = request.depth;
  files->tokens_ = std::move(tokens);
  QKV_ASSIGN_OR_RETURN(files->run_, RunFolder::Make(request.folder));
  const auto step = [&](const std::string& name) {
    if (request.on_step) request.on_step(name);
  };
  SessionOptions options = request.session;
  options.context = static_cast<uint32_t>(request.depth + kKeptRoom);
  std::shared_ptr<const Card> exact;
  {
    QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(model, options));
    const auto progress = [&](size_t done, size_t total) { step(fmt::format("prefill {}/{}", done, total)); };
    QKV_ASSIGN_OR_RETURN(KeptContext kept, TakeKeptContext(std::span(files->tokens_).first(request.depth), options,
                                                           request.folder, session.get(), progress));
    exact = std::move(kept.exact);
    step("packing");
    RestoreTimes restore_times;
    QKV_RETURN_IF_ERROR(RestoreCard(*exact, request.depth, session.get(), &restore_times));
    PackOptions pack;
    pack.code_bits = request.bits;
    PackTimes times;
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(*session, pack, &times));
    QKV_RETURN_IF_ERROR(packed.Write(files->card()));
  }
  step("writing the F16 state");
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<PlainContext> plain, MakePlain(model, options, exact));
  QKV_RETURN_IF_ERROR(plain->SaveFile(files->state(), std::span(files->tokens_).first(request.depth)));
  return files;
}

std::vector<int32_t> MemoryFiles::After(size_t from, size_t count) const {
  const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(depth_ + from);
  return {begin, begin + static_cast<ptrdiff_t>(count)};
}

}  // namespace qkvshare
