// The three hooks as C++ sees them: calls into Rust, answered as IOStatus.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "record.h"
#include "rocksdb/file_system.h"

namespace ecotone {

using namespace ROCKSDB_NAMESPACE;

// Shared by the file system and every file opened through it; drops its Rust state with the last of
// them. Threads: any.
class FileHooks {
 public:
  explicit FileHooks(const ecotone_file_hooks& calls) : calls_(calls) {}
  ~FileHooks() { calls_.drop(calls_.state); }
  FileHooks(const FileHooks&) = delete;
  FileHooks& operator=(const FileHooks&) = delete;

  bool has_tap() const { return calls_.has_tap; }
  bool has_remap() const { return calls_.has_remap; }
  bool has_remote() const { return calls_.has_remote; }
  bool maps_wals() const { return calls_.maps_wals; }
  const ecotone_file_hooks& calls() const { return calls_; }

  // Tell the tap, where there is one, of a change that has happened.
  IOStatus Tap(int32_t kind, const std::string& path, uint64_t offset = 0, const Slice& data = Slice()) const;
  IOStatus TapMove(int32_t kind, const std::string& from, const std::string& to) const;

  // `mapped` stays empty when the path stays as it is.
  IOStatus Map(const std::string& path, std::string* mapped) const;

  // These set `mine` to whether the file or directory is elsewhere.
  IOStatus RemoteSize(const std::string& path, bool* mine, uint64_t* len) const;
  IOStatus RemoteList(const std::string& directory, bool* mine, std::vector<std::string>* names) const;
  IOStatus RemoteOpen(const std::string& path, bool* mine, void** file, uint64_t* len) const;

 private:
  const ecotone_file_hooks calls_;
};

// Where a path leads on the local file system.
class LocalPath {
 public:
  explicit LocalPath(const std::string& path) : path_(path) {}
  IOStatus Resolve(const FileHooks& hooks) { return hooks.has_remap() ? hooks.Map(path_, &mapped_) : IOStatus::OK(); }
  const std::string& get() const { return mapped_.empty() ? path_ : mapped_; }

 private:
  const std::string& path_;
  std::string mapped_;
};

// Runs `body` so that no exception (memory is short) reaches RocksDB.
template <typename Body>
IOStatus Guard(Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return IOStatus::IOError();
  }
}

// Files that are elsewhere.
IOStatus NewRemoteRandomAccessFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path, void* file,
                                   uint64_t len, std::unique_ptr<FSRandomAccessFile>* result);
IOStatus NewRemoteSequentialFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path, void* file,
                                 uint64_t len, std::unique_ptr<FSSequentialFile>* result);
std::unique_ptr<FSDirectory> NewRemoteDirectory();

// A local file that is read by calls; see local_file.cc.
IOStatus NewLocalRandomAccessFile(const std::string& path, std::unique_ptr<FSRandomAccessFile>* result);

// Local files whose changes the tap sees. `len` is where writing goes on; a file that is `reused`
// holds more behind that.
std::unique_ptr<FSWritableFile> NewTappedFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                              std::unique_ptr<FSWritableFile>&& file, uint64_t len, bool reused);
std::unique_ptr<FSRandomRWFile> NewTappedRandomRWFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                                      std::unique_ptr<FSRandomRWFile>&& file, uint64_t len);
std::unique_ptr<FSDirectory> NewTappedDirectory(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                                std::unique_ptr<FSDirectory>&& directory);

}  // namespace ecotone

// Returns from a function that gives an IOStatus when `expression` is not OK.
#define ECOTONE_TRY(expression)                                  \
  do {                                                           \
    ROCKSDB_NAMESPACE::IOStatus ecotone_status = (expression);   \
    if (!ecotone_status.ok()) {                                  \
      return ecotone_status;                                     \
    }                                                            \
  } while (false)
