// A tiny random model in a folder of its own, loaded, with a session.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "runtime/model.h"
#include "runtime/session.h"
#include "tests/tiny_model.h"

namespace qkvshare::eval_test {

inline constexpr char kDocument[] =
    "The water of the spring is cold, and it runs in the shade of the trees to the old mill. Nobody grinds corn there "
    "now. The wheel is broken, the roof has holes, and the cat of the farmer sleeps on the mill stone. In the summer the "
    "children of the town swim in the pond, and in the winter they cut holes in the ice and wait for the fish.";

class TinyHost {
 public:
  explicit TinyHost(const std::string& architecture) {
    std::string name = (std::filesystem::temp_directory_path() / "qkv_eval_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    folder_ = name;
    setenv("QKV_CACHE", Path("cache").c_str(), 1);
    TinyModelSpec spec;
    spec.architecture = architecture;
    EXPECT_TRUE(WriteTinyModel(spec, Path("model.gguf")).ok());
    Result<std::unique_ptr<Model>> model = Model::Load(Path("model.gguf"), {});
    EXPECT_TRUE(model) << model.status().message();
    model_ = std::move(model).value();
    SessionOptions options;
    options.context = 512;
    options.threads = 1;  // tiny: more threads would wait for each other
    Result<std::unique_ptr<Session>> session = Session::Create(*model_, options);
    EXPECT_TRUE(session) << session.status().message();
    session_ = std::move(session).value();
  }
  ~TinyHost() {
    session_.reset();
    model_.reset();
    std::filesystem::remove_all(folder_);
    unsetenv("QKV_CACHE");
  }
  TinyHost(const TinyHost&) = delete;
  TinyHost& operator=(const TinyHost&) = delete;

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  const Model& model() const { return *model_; }
  Session& session() const { return *session_; }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

}  // namespace qkvshare::eval_test
