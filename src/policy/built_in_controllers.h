// The files of data/controllers, as the build puts them into the program (cmake/QkvControllers.cmake).
#pragma once

#include <span>

namespace qkvshare {

struct BuiltInController {
  const char* name;  // of the file, without .json
  const char* json;
};

std::span<const BuiltInController> BuiltInControllerFiles();

}  // namespace qkvshare
