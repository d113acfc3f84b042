#include "runtime/fingerprint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace qkvshare {
namespace {

struct GgufDeleter {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct GgmlDeleter {
  void operator()(ggml_context* ggml) const { ggml_free(ggml); }
};

struct Gguf {
  std::unique_ptr<gguf_context, GgufDeleter> meta;
  std::unique_ptr<ggml_context, GgmlDeleter> tensors;  // shapes only, no data
};

Result<Gguf> OpenGguf(const std::string& path) {
  ggml_context* tensors = nullptr;
  Gguf gguf;
  gguf.meta.reset(gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &tensors}));
  gguf.tensors.reset(tensors);
  if (gguf.meta == nullptr) return Status(StatusCode::kCorrupt, path + " is not a readable GGUF file");
  return gguf;
}

// Bytes of each gguf_type; strings and arrays have none of their own.
constexpr std::array<size_t, GGUF_TYPE_COUNT> kScalarBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Descriptions that do not change what the model computes.
bool IsDescription(std::string_view key) {
  if (key == "general.architecture" || key == "general.alignment") return false;
  return key.starts_with("general.") || key.starts_with("split.") || key.starts_with("tokenizer.chat_template") ||
         key.starts_with("quantize.");
}

void HashValue(const gguf_context* gguf, int64_t id, Blake2bHasher* hasher) {
  const gguf_type type = gguf_get_kv_type(gguf, id);
  hasher->UpdateValue(static_cast<int32_t>(type));
  if (type == GGUF_TYPE_STRING) return hasher->UpdateString(gguf_get_val_str(gguf, id));
  if (type != GGUF_TYPE_ARRAY) {
    return hasher->Update({static_cast<const uint8_t*>(gguf_get_val_data(gguf, id)), kScalarBytes[type]});
  }
  const gguf_type element = gguf_get_arr_type(gguf, id);
  const size_t count = gguf_get_arr_n(gguf, id);
  hasher->UpdateValue(static_cast<int32_t>(element));
  hasher->UpdateValue(static_cast<uint64_t>(count));
  if (element == GGUF_TYPE_STRING) {
    for (size_t i = 0; i < count; ++i) hasher->UpdateString(gguf_get_arr_str(gguf, id, i));
  } else {
    hasher->Update({static_cast<const uint8_t*>(gguf_get_arr_data(gguf, id)), count * kScalarBytes[element]});
  }
}

// Metadata in the order of the keys' names: a rewritten file keeps its identity.
void HashMetadata(const gguf_context* gguf, Blake2bHasher* hasher) {
  std::vector<std::string> keys;
  for (int64_t i = 0; i < gguf_get_n_kv(gguf); ++i) {
    if (const char* key = gguf_get_key(gguf, i); !IsDescription(key)) keys.emplace_back(key);
  }
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    hasher->UpdateString(key);
    HashValue(gguf, gguf_find_key(gguf, key.c_str()), hasher);
  }
}

// Names, types, shapes and data of all tensors.
Status HashTensors(const Gguf& gguf, const std::string& path, Blake2bHasher* hasher) {
  QKV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  for (int64_t i = 0; i < gguf_get_n_tensors(gguf.meta.get()); ++i) {
    const char* name = gguf_get_tensor_name(gguf.meta.get(), i);
    const ggml_tensor* tensor = ggml_get_tensor(gguf.tensors.get(), name);
    const size_t offset = gguf_get_data_offset(gguf.meta.get()) + gguf_get_tensor_offset(gguf.meta.get(), i);
    const size_t bytes = gguf_get_tensor_size(gguf.meta.get(), i);
    if (tensor == nullptr || offset > file.bytes().size() || bytes > file.bytes().size() - offset) {
      return {StatusCode::kCorrupt, fmt::format("{}: tensor {} is cut off", path, name)};
    }
    hasher->UpdateString(name);
    hasher->UpdateValue(static_cast<int32_t>(tensor->type));
    hasher->Update({reinterpret_cast<const uint8_t*>(tensor->ne), sizeof tensor->ne});
    hasher->Update(file.bytes().subspan(offset, bytes));
  }
  return {};
}

// Where the digest of this very file is kept.
Result<std::string> CachePath(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return Status(StatusCode::kNotFound, "cannot stat " + path);
  return fmt::format("{}/fingerprints/v1-{:x}-{:x}-{:x}-{:x}.{:09d}", CacheFolder(), info.st_dev, info.st_ino,
                     info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

Result<Digest> TensorDigest(const Gguf& gguf, const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const std::string cache, CachePath(path));
  Digest digest;
  if (const Result<std::string> kept = ReadText(cache, sizeof digest); kept && kept->size() == sizeof digest) {
    std::memcpy(digest.data(), kept->data(), sizeof digest);
    return digest;
  }
  Blake2bHasher hasher;
  QKV_RETURN_IF_ERROR(HashTensors(gguf, path, &hasher));
  digest = hasher.Finish();
  // A cache that cannot be written costs time, nothing else.
  if (MakeFolders(CacheFolder() + "/fingerprints").ok()) (void)WriteFileAtomic(cache, {digest});
  return digest;
}

// The files of a model: one, or all parts of a split one.
std::vector<std::string> ModelFiles(const gguf_context* gguf, const std::string& path) {
  const int64_t id = gguf_find_key(gguf, "split.count");
  const int count = id >= 0 && gguf_get_kv_type(gguf, id) == GGUF_TYPE_UINT16 ? gguf_get_val_u16(gguf, id) : 1;
  std::array<char, 4096> prefix;
  if (count <= 1 || llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, count) == 0) return {path};
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) {
    std::array<char, 4096> part;
    llama_split_path(part.data(), part.size(), prefix.data(), i, count);
    files.emplace_back(part.data());
  }
  return files;
}

}  // namespace

Result<uint64_t> TensorBytes(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const Gguf first, OpenGguf(path));
  uint64_t bytes = 0;
  for (const std::string& file : ModelFiles(first.meta.get(), path)) {
    QKV_ASSIGN_OR_RETURN(const Gguf gguf, OpenGguf(file));
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf.meta.get()); ++i) bytes += gguf_get_tensor_size(gguf.meta.get(), i);
  }
  return bytes;
}

Result<Digest> FingerprintModel(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const Gguf first, OpenGguf(path));
  Blake2bHasher hasher;
  hasher.UpdateString("qkvshare model 1");
  HashMetadata(first.meta.get(), &hasher);
  for (const std::string& file : ModelFiles(first.meta.get(), path)) {
    QKV_ASSIGN_OR_RETURN(const Gguf gguf, OpenGguf(file));
    QKV_ASSIGN_OR_RETURN(const Digest digest, TensorDigest(gguf, file));
    hasher.Update(digest);
  }
  return hasher.Finish();
}

}  // namespace qkvshare
