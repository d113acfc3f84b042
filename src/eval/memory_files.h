// What the cases of a measurement of memory take: a context as a card and as llama.cpp's F16 state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/memory.h"
#include "eval/run_folder.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

class MemoryFiles {
 public:
  // tokens: of the context (request.depth), and what follows it. The context is taken from the request's folder, or
  // prefilled and kept there; the files are of this object, and go with it.
  static Result<std::unique_ptr<MemoryFiles>> Write(const Model& model, const MemoryRequest& request,
                                                    std::vector<int32_t> tokens);

  std::string card() const { return Path("context.card"); }
  std::string state() const { return Path("context.state"); }
  // Of this run, by name.
  std::string Path(const std::string& name) const { return run_->path() + "/" + name; }
  // `count` tokens, `from` tokens after the context.
  std::vector<int32_t> After(size_t from, size_t count) const;

 private:
  MemoryFiles() = default;

  size_t depth_ = 0;
  std::vector<int32_t> tokens_;
  std::unique_ptr<RunFolder> run_;
};

}  // namespace qkvshare
