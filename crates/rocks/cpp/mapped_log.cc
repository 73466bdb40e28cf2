#include "mapped_log.h"

#include <fcntl.h>
#include <unistd.h>

#include "env/io_posix.h"
#include "mapped_file.h"
#include "record.h"

namespace ecotone {

// Shared by the open file and the list of logs.
struct MappedLogs::Log {
  Log(int fd, std::string local) : path(std::move(local)), descriptor{fd}, file(fd, 0, MappedFile::kNoLimit, /*touches_ahead=*/false) {}

  IOStatus Trim() {
    std::lock_guard<std::mutex> lock(mutex);
    return Sorted("While ftruncate file", file.Trim());
  }

  IOStatus Sorted(const char* doing, int error) const {
    return error == 0 ? IOStatus::OK() : IOError(doing, path, error);
  }

  struct Descriptor {
    ~Descriptor() { close(fd); }
    const int fd;
  };

  const std::string path;
  // Outlives `file`.
  const Descriptor descriptor;
  // Of appending and trimming, which several threads do.
  std::mutex mutex;
  MappedFile file;
};

namespace {

// Appends go through the window; for all else the operating system's file does what it always does.
class MappedLogFile : public FSWritableFileOwnerWrapper {
 public:
  MappedLogFile(std::unique_ptr<FSWritableFile>&& file, std::shared_ptr<MappedLogs::Log> log)
      : FSWritableFileOwnerWrapper(std::move(file)), log_(std::move(log)) {}
  // Zeros at the end of the newest log harm nobody.
  ~MappedLogFile() override { log_->Trim().PermitUncheckedError(); }

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* dbg) override {
    const ecotone_part part{reinterpret_cast<const uint8_t*>(data.data()), data.size()};
    std::lock_guard<std::mutex> lock(log_->mutex);
    return log_->Sorted("While appending to file", log_->file.Append(&part, 1));
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& verification_info,
                  IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* dbg) override {
    return IOStatus::NotSupported("a log is appended to", log_->path);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const DataVerificationInfo& verification_info, IODebugContext* dbg) override {
    return PositionedAppend(data, offset, options, dbg);
  }

  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    std::lock_guard<std::mutex> lock(log_->mutex);
    return log_->Sorted("While ftruncate file", log_->file.Truncate(size));
  }

  // Space is reserved window by window.
  void PrepareWrite(size_t offset, size_t len, const IOOptions& options, IODebugContext* dbg) override {}
  IOStatus Allocate(uint64_t offset, uint64_t len, const IOOptions& options, IODebugContext* dbg) override {
    return IOStatus::OK();
  }

  uint64_t GetFileSize(const IOOptions& options, IODebugContext* dbg) override { return log_->file.len(); }

  IOStatus Close(const IOOptions& options, IODebugContext* dbg) override {
    IOStatus trimmed = log_->Trim();
    IOStatus closed = target()->Close(options, dbg);
    return trimmed.ok() ? closed : trimmed;
  }

 private:
  const std::shared_ptr<MappedLogs::Log> log_;
};

}  // namespace

bool MappedLogs::IsLog(const std::string& path) { return Slice(path).ends_with(".log"); }

IOStatus MappedLogs::TrimAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = open_.begin(); it != open_.end();) {
    const std::shared_ptr<Log> log = it->second.lock();
    if (log != nullptr) {
      IOStatus trimmed = log->Trim();
      if (!trimmed.ok()) {
        return trimmed;
      }
      ++it;
    } else {
      it = open_.erase(it);
    }
  }
  return IOStatus::OK();
}

void MappedLogs::Map(const std::string& path, const std::string& local, std::unique_ptr<FSWritableFile>* file) {
  const int fd = open(local.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  auto log = std::make_shared<Log>(fd, local);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open_[path] = log;
  }
  *file = std::make_unique<MappedLogFile>(std::move(*file), std::move(log));
}

bool MappedLogs::GetLength(const std::string& path, uint64_t* len) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = open_.find(path);
  const std::shared_ptr<Log> log = it == open_.end() ? nullptr : it->second.lock();
  if (log == nullptr) {
    return false;
  }
  *len = log->file.len();
  return true;
}

}  // namespace ecotone
