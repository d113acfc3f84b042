#include "eval/machine_facts.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace qkvshare {
namespace {

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

nlohmann::ordered_json MachineFacts() { return {{"cpu", CpuName()}, {"cores", std::thread::hardware_concurrency()}}; }

}  // namespace qkvshare
