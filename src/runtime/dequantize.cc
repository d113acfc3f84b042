#include "runtime/dequantize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "llama.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

constexpr const char* kGgufMagic = "GGUF";

// As a file that is removed unless it is done.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path), temporary_(fmt::format("{}.{}.tmp", path, getpid())) {}
  ~Output() {
    std::error_code error;
    std::filesystem::remove(temporary_, error);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  const std::string& temporary() const { return temporary_; }
  Status Commit() const {
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    return error ? Status(StatusCode::kIo, fmt::format("{}: {}", path_, error.message())) : Status();
  }

 private:
  std::string path_, temporary_;
};

}  // namespace

Status DequantizeModel(const std::string& input, const std::string& output, FloatType type, int threads) {
  std::error_code error;
  if (!std::filesystem::exists(input, error)) return {StatusCode::kNotFound, input + " does not exist"};
  if (std::filesystem::equivalent(input, output, error)) {
    return {StatusCode::kInvalidArgument, output + " is the input; choose another name"};
  }
  QKV_RETURN_IF_ERROR(CheckReplaceable(output));
  QKV_RETURN_IF_ERROR(CheckKind(output, kGgufMagic, "a model"));
  InitBackend();
  TakeLastLlamaError();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.nthread = threads;
  params.ftype = type == FloatType::kF32 ? LLAMA_FTYPE_ALL_F32 : LLAMA_FTYPE_MOSTLY_F16;
  params.allow_requantize = true;
  params.pure = true;
  const Output file(output);
  if (llama_model_quantize(input.c_str(), file.temporary().c_str(), &params) == 0) return file.Commit();
  const bool wrote = std::filesystem::exists(file.temporary(), error);
  return {wrote ? StatusCode::kIo : StatusCode::kCorrupt,
          fmt::format("{}: llama.cpp cannot convert it{}", input, LlamaErrorSuffix())};
}

}  // namespace qkvshare
