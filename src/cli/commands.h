// The commands. Each adds its flags to the app and returns what runs it; that returns an exit code.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace qkvshare::cli {

using Command = std::function<int()>;

Command AddPack(CLI::App* app);
Command AddRun(CLI::App* app);
Command AddInfo(CLI::App* app);
Command AddVerify(CLI::App* app);
Command AddCalibrate(CLI::App* app);
Command AddUnpack(CLI::App* app);
Command AddFlatten(CLI::App* app);
Command AddAgents(CLI::App* app);
Command AddModels(CLI::App* app);
Command AddEval(CLI::App* app);
Command AddReport(CLI::App* app);

}  // namespace qkvshare::cli
