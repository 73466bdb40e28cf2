// Local files whose changes the tap sees, each after it has happened and before RocksDB learns of
// it.

#include <algorithm>
#include <atomic>

#include "file_hooks.h"

namespace ecotone {
namespace {

class TappedFile : public FSWritableFileOwnerWrapper {
 public:
  TappedFile(std::shared_ptr<FileHooks> hooks, std::string path, std::unique_ptr<FSWritableFile>&& file, uint64_t len,
             bool reused)
      : FSWritableFileOwnerWrapper(std::move(file)),
        hooks_(std::move(hooks)),
        path_(std::move(path)),
        reused_(reused),
        len_(len) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* dbg) override {
    return Appended(data, target()->Append(data, options, dbg));
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& verification_info,
                  IODebugContext* dbg) override {
    return Appended(data, target()->Append(data, options, verification_info, dbg));
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* dbg) override {
    return Written(data, offset, target()->PositionedAppend(data, offset, options, dbg));
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const DataVerificationInfo& verification_info, IODebugContext* dbg) override {
    return Written(data, offset, target()->PositionedAppend(data, offset, options, verification_info, dbg));
  }

  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(target()->Truncate(size, options, dbg));
    len_.store(size, std::memory_order_relaxed);
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_TRUNCATED, path_, size); });
  }

  IOStatus Sync(const IOOptions& options, IODebugContext* dbg) override {
    // Read before: a WAL is synced while others append to it.
    const uint64_t len = len_.load(std::memory_order_acquire);
    ECOTONE_TRY(target()->Sync(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_SYNCED, path_, len); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    const uint64_t len = len_.load(std::memory_order_acquire);
    ECOTONE_TRY(target()->Fsync(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_SYNCED, path_, len); });
  }

  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    if (reused_) {
      // Closing may cut off what the file held before, unseen. So it is cut here, always.
      ECOTONE_TRY(Truncate(len_.load(std::memory_order_relaxed), options, dbg));
    }
    ECOTONE_TRY(target()->Close(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_CLOSED, path_, len_.load(std::memory_order_relaxed)); });
  }

 private:
  IOStatus Appended(const Slice& data, IOStatus status) {
    return Written(data, len_.load(std::memory_order_relaxed), std::move(status));
  }

  IOStatus Written(const Slice& data, uint64_t offset, IOStatus status) {
    if (!status.ok()) {
      return status;
    }
    const uint64_t end = offset + data.size();
    // One thread writes; another may sync.
    if (end > len_.load(std::memory_order_relaxed)) {
      len_.store(end, std::memory_order_release);
    }
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_APPENDED, path_, offset, data); });
  }

  const std::shared_ptr<FileHooks> hooks_;
  const std::string path_;
  const bool reused_;
  std::atomic<uint64_t> len_;
};

class TappedRandomRWFile : public FSRandomRWFileOwnerWrapper {
 public:
  TappedRandomRWFile(std::shared_ptr<FileHooks> hooks, std::string path, std::unique_ptr<FSRandomRWFile>&& file,
                     uint64_t len)
      : FSRandomRWFileOwnerWrapper(std::move(file)), hooks_(std::move(hooks)), path_(std::move(path)), len_(len) {}

  IOStatus Write(uint64_t offset, const Slice& data, const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(target()->Write(offset, data, options, dbg));
    len_ = std::max(len_, offset + data.size());
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_APPENDED, path_, offset, data); });
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(target()->Sync(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_SYNCED, path_, len_); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(target()->Fsync(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_SYNCED, path_, len_); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(target()->Close(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_CLOSED, path_, len_); });
  }

 private:
  const std::shared_ptr<FileHooks> hooks_;
  const std::string path_;
  uint64_t len_;
};

class TappedDirectory : public FSDirectoryWrapper {
 public:
  TappedDirectory(std::shared_ptr<FileHooks> hooks, std::string path, std::unique_ptr<FSDirectory>&& directory)
      : FSDirectoryWrapper(std::move(directory)), hooks_(std::move(hooks)), path_(std::move(path)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    ECOTONE_TRY(FSDirectoryWrapper::Fsync(options, dbg));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_DIRECTORY_SYNCED, path_); });
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* dbg,
                               const DirFsyncOptions& dir_fsync_options) override {
    ECOTONE_TRY(FSDirectoryWrapper::FsyncWithDirOptions(options, dbg, dir_fsync_options));
    return Guard([&] { return hooks_->Tap(ECOTONE_TAP_DIRECTORY_SYNCED, path_); });
  }

 private:
  const std::shared_ptr<FileHooks> hooks_;
  const std::string path_;
};

}  // namespace

std::unique_ptr<FSWritableFile> NewTappedFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                              std::unique_ptr<FSWritableFile>&& file, uint64_t len, bool reused) {
  return std::make_unique<TappedFile>(hooks, path, std::move(file), len, reused);
}

std::unique_ptr<FSRandomRWFile> NewTappedRandomRWFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                                      std::unique_ptr<FSRandomRWFile>&& file, uint64_t len) {
  return std::make_unique<TappedRandomRWFile>(hooks, path, std::move(file), len);
}

std::unique_ptr<FSDirectory> NewTappedDirectory(const std::shared_ptr<FileHooks>& hooks, const std::string& path,
                                                std::unique_ptr<FSDirectory>&& directory) {
  return std::make_unique<TappedDirectory>(hooks, path, std::move(directory));
}

}  // namespace ecotone
