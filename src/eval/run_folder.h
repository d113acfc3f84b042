// A folder for the files of one run.
#pragma once

#include <memory>
#include <string>

#include "qkvshare/status.h"

namespace qkvshare {

// Removed with all that is in it by its destructor; or, where the process was killed, by the next Make. A process has
// one at a time below a parent.
class RunFolder {
 public:
  // Makes `parent`/run-PID, and `parent` where it is not there, after removing the folders of processes that are gone.
  // kNotFound, kIo.
  static Result<std::unique_ptr<RunFolder>> Make(const std::string& parent);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit RunFolder(std::string path);

  std::string path_;
};

}  // namespace qkvshare
