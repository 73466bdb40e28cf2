// The file system under RocksDB: the operating system's, with a tap on writes, moved names, and
// files that are elsewhere.
//
// Every operation goes the same way: is it elsewhere? where does the name lead? do it; tell the
// tap. Where a hook is absent its step is gone, and without a tap the files RocksDB writes are the
// operating system's own.

#include "file_hooks.h"
#include "mapped_log.h"
#include "mirror.h"

namespace ecotone {
namespace {

class HookedFileSystem : public FileSystemWrapper {
 public:
  explicit HookedFileSystem(std::shared_ptr<FileHooks> hooks)
      : FileSystemWrapper(FileSystem::Default()), hooks_(std::move(hooks)) {}

  const char* Name() const override { return "EcotoneFileSystem"; }

  // ---- reading ----

  IOStatus NewSequentialFile(const std::string& path, const FileOptions& options,
                             std::unique_ptr<FSSequentialFile>* result, IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      void* file = nullptr;
      uint64_t len = 0;
      ECOTONE_TRY(hooks_->RemoteOpen(path, &remote, &file, &len));
      if (remote) {
        return NewRemoteSequentialFile(hooks_, path, file, len, result);
      }
      return AtLocal(path, [&](auto& local) { return target_->NewSequentialFile(local, options, result, dbg); });
    });
  }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result, IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      void* file = nullptr;
      uint64_t len = 0;
      ECOTONE_TRY(hooks_->RemoteOpen(path, &remote, &file, &len));
      if (remote) {
        return NewRemoteRandomAccessFile(hooks_, path, file, len, result);
      }
      return AtLocal(path, [&](auto& local) {
        return options.use_direct_reads || options.use_mmap_reads
                   ? target_->NewRandomAccessFile(local, options, result, dbg)
                   : NewLocalRandomAccessFile(local, result);
      });
    });
  }

  // ---- writing ----

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayWrite(path, options));
      const bool mapped = hooks_->maps_wals() && MappedLogs::IsLog(path);
      if (mapped) {
        ECOTONE_TRY(mapped_logs_.TrimAll());
      }
      ECOTONE_TRY(AtLocal(path, [&](auto& local) {
        ECOTONE_TRY(target_->NewWritableFile(local, options, result, dbg));
        if (mapped) {
          mapped_logs_.Map(path, local, result);
        }
        return IOStatus::OK();
      }));
      return Opened(path, How::kCreated, /*len=*/0, result);
    });
  }

  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayWrite(path, options));
      LocalPath local(path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      const bool created = hooks_->has_tap() && Missing(local.get());
      ECOTONE_TRY(target_->ReopenWritableFile(local.get(), options, result, dbg));
      const uint64_t len = hooks_->has_tap() ? (*result)->GetFileSize(options.io_options, dbg) : 0;
      return Opened(path, created ? How::kCreated : How::kReopened, len, result);
    });
  }

  IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path, const FileOptions& options,
                             std::unique_ptr<FSWritableFile>* result, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayWrite(path, options));
      ECOTONE_TRY(MayChange(old_path));
      LocalPath local(path);
      LocalPath old_local(old_path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      ECOTONE_TRY(old_local.Resolve(*hooks_));
      ECOTONE_TRY(target_->ReuseWritableFile(local.get(), old_local.get(), options, result, dbg));
      ECOTONE_TRY(hooks_->TapMove(ECOTONE_TAP_RENAMED, old_path, path));
      // Written from its begin again, over what it holds.
      return Opened(path, How::kReused, /*len=*/0, result);
    });
  }

  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options, std::unique_ptr<FSRandomRWFile>* result,
                           IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayWrite(path, options));
      LocalPath local(path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      ECOTONE_TRY(target_->NewRandomRWFile(local.get(), options, result, dbg));
      if (hooks_->has_tap()) {
        uint64_t len = 0;
        ECOTONE_TRY(target_->GetFileSize(local.get(), options.io_options, &len, dbg));
        *result = NewTappedRandomRWFile(hooks_, path, std::move(*result), len);
      }
      return IOStatus::OK();
    });
  }

  IOStatus NewMemoryMappedFileBuffer(const std::string& path,
                                     std::unique_ptr<MemoryMappedFileBuffer>* result) override {
    return Guard([&] {
      if (hooks_->has_tap()) {
        return IOStatus::NotSupported("a write through a memory map would pass by the tap", path);
      }
      ECOTONE_TRY(MayChange(path));
      return AtLocal(path, [&](auto& local) { return target_->NewMemoryMappedFileBuffer(local, result); });
    });
  }

  IOStatus Truncate(const std::string& path, size_t size, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayChange(path));
      ECOTONE_TRY(AtLocal(path, [&](auto& local) { return target_->Truncate(local, size, options, dbg); }));
      return hooks_->Tap(ECOTONE_TAP_TRUNCATED, path, size);
    });
  }

  IOStatus SyncFile(const std::string& path, const FileOptions& file_options, const IOOptions& options, bool use_fsync,
                    IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayChange(path));
      LocalPath local(path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      uint64_t len = 0;
      if (hooks_->has_tap()) {
        ECOTONE_TRY(target_->GetFileSize(local.get(), options, &len, dbg));
      }
      ECOTONE_TRY(target_->SyncFile(local.get(), file_options, options, use_fsync, dbg));
      return hooks_->Tap(ECOTONE_TAP_SYNCED, path, len);
    });
  }

  IOStatus DeleteFile(const std::string& path, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayChange(path));
      ECOTONE_TRY(AtLocal(path, [&](auto& local) { return target_->DeleteFile(local, options, dbg); }));
      return hooks_->Tap(ECOTONE_TAP_DELETED, path);
    });
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(AtBoth(from, to, [&](auto& a, auto& b) { return target_->RenameFile(a, b, options, dbg); }));
      return hooks_->TapMove(ECOTONE_TAP_RENAMED, from, to);
    });
  }

  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions& options,
                    IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(AtBoth(from, to, [&](auto& a, auto& b) { return target_->LinkFile(a, b, options, dbg); }));
      return hooks_->TapMove(ECOTONE_TAP_LINKED, from, to);
    });
  }

  IOStatus NewLogger(const std::string& path, const IOOptions& options, std::shared_ptr<Logger>* result,
                     IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayChange(path));
      if (hooks_->has_tap()) {
        // RocksDB's own logger over NewWritableFile of this file system, so that the tap sees it.
        return FileSystem::NewLogger(path, options, result, dbg);
      }
      return AtLocal(path, [&](auto& local) { return target_->NewLogger(local, options, result, dbg); });
    });
  }

  // ---- directories ----

  IOStatus NewDirectory(const std::string& path, const IOOptions& options, std::unique_ptr<FSDirectory>* result,
                        IODebugContext* dbg) override {
    return Guard([&] {
      if (ListedElsewhere(path)) {
        *result = NewRemoteDirectory();
        return IOStatus::OK();
      }
      ECOTONE_TRY(AtLocal(path, [&](auto& local) { return target_->NewDirectory(local, options, result, dbg); }));
      if (hooks_->has_tap()) {
        *result = NewTappedDirectory(hooks_, path, std::move(*result));
      }
      return IOStatus::OK();
    });
  }

  IOStatus CreateDir(const std::string& path, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(IsOurs(path));
      ECOTONE_TRY(AtLocal(path, [&](auto& local) { return target_->CreateDir(local, options, dbg); }));
      return hooks_->Tap(ECOTONE_TAP_DIRECTORY_CREATED, path);
    });
  }

  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      if (ListedElsewhere(path)) {
        return IOStatus::OK();
      }
      ECOTONE_TRY(IsOurs(path));
      LocalPath local(path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      const bool created = hooks_->has_tap() && Missing(local.get());
      ECOTONE_TRY(target_->CreateDirIfMissing(local.get(), options, dbg));
      return created ? hooks_->Tap(ECOTONE_TAP_DIRECTORY_CREATED, path) : IOStatus::OK();
    });
  }

  IOStatus DeleteDir(const std::string& path, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(IsOurs(path));
      ECOTONE_TRY(AtLocal(path, [&](auto& local) { return target_->DeleteDir(local, options, dbg); }));
      return hooks_->Tap(ECOTONE_TAP_DIRECTORY_DELETED, path);
    });
  }

  IOStatus GetChildren(const std::string& path, const IOOptions& options, std::vector<std::string>* result,
                       IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      ECOTONE_TRY(hooks_->RemoteList(path, &remote, result));
      return remote ? IOStatus::OK()
                    : AtLocal(path, [&](auto& local) { return target_->GetChildren(local, options, result, dbg); });
    });
  }

  IOStatus GetChildrenFileAttributes(const std::string& path, const IOOptions& options,
                                     std::vector<FileAttributes>* result, IODebugContext* dbg) override {
    return Guard([&] {
      if (hooks_->has_remote()) {
        // RocksDB's own loop over GetChildren and GetFileSize of this file system.
        return FileSystem::GetChildrenFileAttributes(path, options, result, dbg);
      }
      return AtLocal(path,
                     [&](auto& local) { return target_->GetChildrenFileAttributes(local, options, result, dbg); });
    });
  }

  // ---- questions ----

  IOStatus FileExists(const std::string& path, const IOOptions& options, IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      uint64_t len = 0;
      IOStatus status = hooks_->RemoteSize(path, &remote, &len);
      if (status.IsNotFound() && ListedElsewhere(path)) {
        return IOStatus::OK();
      }
      if (remote || !status.ok()) {
        return status;
      }
      return AtLocal(path, [&](auto& local) { return target_->FileExists(local, options, dbg); });
    });
  }

  IOStatus GetFileSize(const std::string& path, const IOOptions& options, uint64_t* size,
                       IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      IOStatus status = hooks_->RemoteSize(path, &remote, size);
      if (status.IsNotFound()) {
        return IOStatus::PathNotFound(path, status.ToString());
      }
      ECOTONE_TRY(status);
      if (remote || mapped_logs_.GetLength(path, size)) {
        return IOStatus::OK();
      }
      return AtLocal(path, [&](auto& local) { return target_->GetFileSize(local, options, size, dbg); });
    });
  }

  IOStatus GetFileModificationTime(const std::string& path, const IOOptions& options, uint64_t* time,
                                   IODebugContext* dbg) override {
    return Guard([&] {
      bool remote = false;
      uint64_t len = 0;
      ECOTONE_TRY(hooks_->RemoteSize(path, &remote, &len));
      if (remote) {
        *time = 0;
        return IOStatus::OK();
      }
      return AtLocal(path, [&](auto& local) { return target_->GetFileModificationTime(local, options, time, dbg); });
    });
  }

  IOStatus IsDirectory(const std::string& path, const IOOptions& options, bool* is_dir, IODebugContext* dbg) override {
    return Guard([&] {
      if (ListedElsewhere(path)) {
        *is_dir = true;
        return IOStatus::OK();
      }
      bool remote = false;
      uint64_t len = 0;
      ECOTONE_TRY(hooks_->RemoteSize(path, &remote, &len));
      if (remote) {
        *is_dir = false;
        return IOStatus::OK();
      }
      return AtLocal(path, [&](auto& local) { return target_->IsDirectory(local, options, is_dir, dbg); });
    });
  }

  IOStatus NumFileLinks(const std::string& path, const IOOptions& options, uint64_t* count,
                        IODebugContext* dbg) override {
    return Guard([&] {
      return AtLocal(path, [&](auto& local) { return target_->NumFileLinks(local, options, count, dbg); });
    });
  }

  IOStatus AreFilesSame(const std::string& first, const std::string& second, const IOOptions& options, bool* same,
                        IODebugContext* dbg) override {
    return Guard([&] {
      LocalPath a(first);
      LocalPath b(second);
      ECOTONE_TRY(a.Resolve(*hooks_));
      ECOTONE_TRY(b.Resolve(*hooks_));
      return target_->AreFilesSame(a.get(), b.get(), options, same, dbg);
    });
  }

  IOStatus GetFreeSpace(const std::string& path, const IOOptions& options, uint64_t* free,
                        IODebugContext* dbg) override {
    return Guard([&] {
      return AtLocal(path, [&](auto& local) { return target_->GetFreeSpace(local, options, free, dbg); });
    });
  }

  void DiscardCacheForDirectory(const std::string& path) override {
    Guard([&] {
      return AtLocal(path, [&](auto& local) {
        target_->DiscardCacheForDirectory(local);
        return IOStatus::OK();
      });
    }).PermitUncheckedError();
  }

  IOStatus LockFile(const std::string& path, const IOOptions& options, FileLock** lock, IODebugContext* dbg) override {
    return Guard([&] {
      ECOTONE_TRY(MayChange(path));
      LocalPath local(path);
      ECOTONE_TRY(local.Resolve(*hooks_));
      const bool created = hooks_->has_tap() && Missing(local.get());
      ECOTONE_TRY(target_->LockFile(local.get(), options, lock, dbg));
      if (!created) {
        return IOStatus::OK();
      }
      IOStatus status = hooks_->Tap(ECOTONE_TAP_CREATED, path);
      if (!status.ok()) {
        target_->UnlockFile(*lock, options, dbg).PermitUncheckedError();
        *lock = nullptr;
      }
      return status;
    });
  }

  // Asynchronous reads would go to the operating system's files directly.
  void SupportedOps(int64_t& supported_ops) override {
    target_->SupportedOps(supported_ops);
    supported_ops &= ~(int64_t{1} << FSSupportedOps::kAsyncIO);
  }

 private:
  template <typename Operation>
  IOStatus AtLocal(const std::string& path, Operation operation) const {
    LocalPath local(path);
    ECOTONE_TRY(local.Resolve(*hooks_));
    return operation(local.get());
  }

  template <typename Operation>
  IOStatus AtBoth(const std::string& from, const std::string& to, Operation operation) const {
    ECOTONE_TRY(MayChange(from));
    ECOTONE_TRY(MayChange(to));
    LocalPath local_from(from);
    LocalPath local_to(to);
    ECOTONE_TRY(local_from.Resolve(*hooks_));
    ECOTONE_TRY(local_to.Resolve(*hooks_));
    return operation(local_from.get(), local_to.get());
  }

  // Whether a file may be changed here: one that is elsewhere may not, nor one beside it.
  IOStatus MayChange(const std::string& path) const {
    bool remote = false;
    uint64_t len = 0;
    IOStatus status = hooks_->RemoteSize(path, &remote, &len);
    if (remote) {
      return IOStatus::NotSupported("a file that is elsewhere cannot be changed", path);
    }
    if (!status.IsNotFound()) {
      ECOTONE_TRY(status);
    }
    return IsOurs(path);
  }

  // With both hooks the names are another server's, and what it calls its own must not be written
  // to this disk: only where a name is led may anything change. Reads are left alone.
  IOStatus IsOurs(const std::string& path) const {
    if (!hooks_->has_remap() || !hooks_->has_remote()) {
      return IOStatus::OK();
    }
    std::string mapped;
    ECOTONE_TRY(hooks_->Map(path, &mapped));
    if (mapped.empty() || Climbs(path)) {
      return IOStatus::IOError("refused: only outputs may be written for a store that is elsewhere", path);
    }
    return IOStatus::OK();
  }

  // Whether a component is "..", which leads out of any folder that the rest of the path names.
  static bool Climbs(const std::string& path) { return ("/" + path + "/").find("/../") != std::string::npos; }

  IOStatus MayWrite(const std::string& path, const FileOptions& options) const {
    if (hooks_->has_tap() && options.use_mmap_writes) {
      return IOStatus::NotSupported("a tapped file system does not write through memory maps", path);
    }
    return MayChange(path);
  }

  bool ListedElsewhere(const std::string& path) const {
    bool remote = false;
    hooks_->RemoteList(path, &remote, nullptr).PermitUncheckedError();
    return remote;
  }

  bool Missing(const std::string& local) const {
    return target_->FileExists(local, IOOptions(), nullptr).IsNotFound();
  }

  enum class How { kCreated, kReopened, kReused };

  IOStatus Opened(const std::string& path, How how, uint64_t len, std::unique_ptr<FSWritableFile>* result) const {
    if (!hooks_->has_tap()) {
      return IOStatus::OK();
    }
    *result = NewTappedFile(hooks_, path, std::move(*result), len, how == How::kReused);
    IOStatus status = how == How::kCreated ? hooks_->Tap(ECOTONE_TAP_CREATED, path) : IOStatus::OK();
    if (!status.ok()) {
      result->reset();
    }
    return status;
  }

  const std::shared_ptr<FileHooks> hooks_;
  MappedLogs mapped_logs_;
};

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_env_new(const ecotone_file_hooks* hooks, void** env, ecotone_buffer* out) {
  bool taken = false;
  const ecotone_code code = ecotone::Contain(out, [&] {
    auto shared = std::make_shared<ecotone::FileHooks>(*hooks);
    taken = true;
    auto made = ROCKSDB_NAMESPACE::NewCompositeEnv(std::make_shared<ecotone::HookedFileSystem>(std::move(shared)));
    auto* handle = new ecotone::EnvHandle{made.get(), /*is_default=*/false};
    made.release();
    *env = handle;
    return ECOTONE_OK;
  });
  if (!taken) {
    hooks->drop(hooks->state);
  }
  return code;
}
