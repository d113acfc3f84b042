// Models, tokens and chat templates.
#include <algorithm>

#include "api/api_support.h"
#include "base/hash.h"
#include "runtime/model_store.h"
#include "runtime/prompt.h"

namespace api = qkvshare::api;
using qkvshare::Status;

namespace {

Status Load(const char* path, const qkv_model_options* given, qkv_model** model) {
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"path", path}, {"model", model}}));
  qkv_model_options options;
  qkv_model_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(api::ReadOptions(given, &options));
  qkvshare::ModelOptions load;
  load.gpu_layers = options.gpu_layers;
  if (options.progress != nullptr) {
    load.progress = [&](float done) {
      constexpr size_t kTotal = 1000;
      return options.progress(options.progress_data, static_cast<size_t>(done * kTotal), kTotal);
    };
  }
  QKV_ASSIGN_OR_RETURN(const std::string file, qkvshare::ResolveModel(path));
  return api::GiveModel(qkvshare::Model::Load(file, load), model);
}

}  // namespace

Status api::GiveModel(qkvshare::Result<std::unique_ptr<qkvshare::Model>> loaded, qkv_model** model) {
  if (!loaded) return loaded.status();
  auto handle = std::make_unique<qkv_model>();
  handle->model = *std::move(loaded);
  handle->name = handle->model->name();
  handle->architecture = handle->model->architecture();
  handle->fingerprint = qkvshare::ToHex(handle->model->fingerprint());
  *model = handle.release();
  return {};
}

qkv_status qkv_model_options_default(qkv_model_options* options, size_t struct_size) {
  return api::SetDefaults(qkv_model_options{}, options, struct_size);
}

qkv_status qkv_model_load(const char* path, const qkv_model_options* options, qkv_model** model, qkv_error* error) {
  return api::Call(error, [&] { return Load(path, options, model); });
}

void qkv_model_free(qkv_model* model) { delete model; }

qkv_status qkv_model_get_info(const qkv_model* model, qkv_model_info* info, size_t info_size, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"model", model}, {"info", info}}));
    const qkv_model_info value = {model->name.c_str(), model->architecture.c_str(), model->fingerprint.c_str(),
                                  model->model->vocab_size(), model->model->training_context()};
    api::CopyOut(value, info, info_size);
    return {};
  });
}

qkv_status qkv_tokenize(const qkv_model* model, const char* text, size_t text_bytes, bool add_special, int32_t** tokens,
                        size_t* token_count, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(
        api::CheckNotNull({{"model", model}, {"text", text}, {"tokens", tokens}, {"token_count", token_count}}));
    QKV_ASSIGN_OR_RETURN(const std::string copy, api::Utf8(text, text_bytes));
    api::Owned<int32_t>(model->model->Tokenize(copy, add_special)).Give(tokens, token_count);
    return {};
  });
}

qkv_status qkv_detokenize(const qkv_model* model, const int32_t* tokens, size_t token_count, char** text,
                          size_t* text_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(
        api::CheckNotNull({{"model", model}, {"tokens", tokens}, {"text", text}, {"text_bytes", text_bytes}}));
    api::Owned<char>(model->model->Detokenize({tokens, tokens + token_count})).Give(text, text_bytes);
    return {};
  });
}

qkv_status qkv_chat_template(const qkv_model* model, const qkv_message* messages, size_t message_count,
                             bool add_generation_prompt, char** text, size_t* text_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(
        api::CheckNotNull({{"model", model}, {"messages", messages}, {"text", text}, {"text_bytes", text_bytes}}));
    QKV_RETURN_IF_ERROR(api::CheckMessages(messages, message_count));
    QKV_ASSIGN_OR_RETURN(
        const std::string rendered,
        model->model->ApplyChatTemplate(api::Messages(messages, message_count), add_generation_prompt));
    api::Owned<char>(rendered).Give(text, text_bytes);
    return {};
  });
}

qkv_status qkv_chat_next_turn(const qkv_model* model, const char* user, size_t user_bytes, const char* open_turn,
                              size_t open_turn_bytes, char** text, size_t* text_bytes, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull(
        {{"model", model}, {"user", user}, {"open_turn", open_turn}, {"text", text}, {"text_bytes", text_bytes}}));
    QKV_ASSIGN_OR_RETURN(const std::string turn, api::Utf8(user, user_bytes));
    QKV_ASSIGN_OR_RETURN(const std::string rendered,
                         qkvshare::NextUserTurn(*model->model, turn, std::string(open_turn, open_turn_bytes)));
    api::Owned<char>(rendered).Give(text, text_bytes);
    return {};
  });
}
