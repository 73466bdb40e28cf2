// Files that are elsewhere, read by ranges.

#include <algorithm>

#include "file_hooks.h"

namespace ecotone {
namespace {

// Owns one open file of Rust's.
class RangedFile {
 public:
  RangedFile(std::shared_ptr<FileHooks> hooks, std::string path, void* file, uint64_t len)
      : hooks_(std::move(hooks)), path_(std::move(path)), file_(file), len_(len) {}
  ~RangedFile() { hooks_->calls().file_drop(file_); }
  RangedFile(const RangedFile&) = delete;
  RangedFile& operator=(const RangedFile&) = delete;

  uint64_t len() const { return len_; }

  IOStatus Read(uint64_t offset, size_t n, Slice* result, char* scratch) const {
    *result = Slice(scratch, 0);
    const size_t wanted = offset >= len_ ? 0 : static_cast<size_t>(std::min<uint64_t>(n, len_ - offset));
    if (wanted == 0) {
      return IOStatus::OK();
    }
    if (scratch == nullptr) {
      return IOStatus::InvalidArgument("a read without a buffer");
    }
    return Guard([&] {
      size_t read = 0;
      ecotone_reply reply;
      const ecotone_code code = hooks_->calls().file_read(file_, offset, reinterpret_cast<uint8_t*>(scratch), wanted,
                                                          &read, &reply);
      if (code != ECOTONE_OK) {
        // A range that cannot be had is an error of the read, whatever its kind: "not found" would
        // mean something else here.
        return code == ECOTONE_NOT_MINE || code == ECOTONE_NOT_FOUND ? IOStatus::IOError(path_, reply.text)
                                                                     : IOStatusOf(code, path_ + ": " + reply.text);
      }
      if (read != wanted) {
        return IOStatus::IOError(path_, "short read from elsewhere: " + std::to_string(read) + " of " +
                                            std::to_string(wanted) + " bytes at " + std::to_string(offset));
      }
      *result = Slice(scratch, read);
      return IOStatus::OK();
    });
  }

  bool WillNeed(uint64_t offset, uint64_t n) const {
    return offset >= len_ || hooks_->calls().file_will_need(file_, offset, std::min(n, len_ - offset));
  }

 private:
  const std::shared_ptr<FileHooks> hooks_;
  const std::string path_;
  void* const file_;
  const uint64_t len_;
};

class RemoteRandomAccessFile : public FSRandomAccessFile {
 public:
  explicit RemoteRandomAccessFile(std::unique_ptr<RangedFile>&& file) : file_(std::move(file)) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& /*options*/, Slice* result, char* scratch,
                IODebugContext* /*dbg*/) const override {
    return file_->Read(offset, n, result, scratch);
  }

  IOStatus MultiRead(FSReadRequest* reqs, size_t num_reqs, const IOOptions& /*options*/,
                     IODebugContext* /*dbg*/) override {
    // All are announced first, so that they can be fetched together.
    for (size_t i = 0; num_reqs > 1 && i < num_reqs; i++) {
      file_->WillNeed(reqs[i].offset, reqs[i].len);
    }
    for (size_t i = 0; i < num_reqs; i++) {
      reqs[i].status = file_->Read(reqs[i].offset, reqs[i].len, &reqs[i].result, reqs[i].scratch);
    }
    return IOStatus::OK();
  }

  // "Not supported" makes RocksDB read ahead by itself, in large reads.
  IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions& /*options*/, IODebugContext* /*dbg*/) override {
    return file_->WillNeed(offset, n) ? IOStatus::OK() : IOStatus::NotSupported("Prefetch");
  }

  IOStatus GetFileSize(uint64_t* result) override {
    *result = file_->len();
    return IOStatus::OK();
  }

 private:
  const std::unique_ptr<RangedFile> file_;
};

class RemoteSequentialFile : public FSSequentialFile {
 public:
  explicit RemoteSequentialFile(std::unique_ptr<RangedFile>&& file) : file_(std::move(file)) {}

  IOStatus Read(size_t n, const IOOptions& /*options*/, Slice* result, char* scratch,
                IODebugContext* /*dbg*/) override {
    IOStatus status = file_->Read(position_, n, result, scratch);
    if (status.ok()) {
      position_ += result->size();
    }
    return status;
  }

  IOStatus Skip(uint64_t n) override {
    position_ = n > file_->len() - position_ ? file_->len() : position_ + n;
    return IOStatus::OK();
  }

  IOStatus PositionedRead(uint64_t offset, size_t n, const IOOptions& /*options*/, Slice* result, char* scratch,
                          IODebugContext* /*dbg*/) override {
    return file_->Read(offset, n, result, scratch);
  }

 private:
  const std::unique_ptr<RangedFile> file_;
  // Never past the end.
  uint64_t position_ = 0;
};

// A directory that is elsewhere: whoever keeps it makes it durable.
class RemoteDirectory : public FSDirectory {
 public:
  IOStatus Fsync(const IOOptions& /*options*/, IODebugContext* /*dbg*/) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions& /*options*/, IODebugContext* /*dbg*/) override { return IOStatus::OK(); }
};

// Takes `file` in every case.
std::unique_ptr<RangedFile> Own(const std::shared_ptr<FileHooks>& hooks, const std::string& path, void* file,
                                uint64_t len) {
  try {
    return std::make_unique<RangedFile>(hooks, path, file, len);
  } catch (...) {
    hooks->calls().file_drop(file);
    throw;
  }
}

}  // namespace

IOStatus NewRemoteRandomAccessFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path, void* file,
                                   uint64_t len, std::unique_ptr<FSRandomAccessFile>* result) {
  *result = std::make_unique<RemoteRandomAccessFile>(Own(hooks, path, file, len));
  return IOStatus::OK();
}

IOStatus NewRemoteSequentialFile(const std::shared_ptr<FileHooks>& hooks, const std::string& path, void* file,
                                 uint64_t len, std::unique_ptr<FSSequentialFile>* result) {
  *result = std::make_unique<RemoteSequentialFile>(Own(hooks, path, file, len));
  return IOStatus::OK();
}

std::unique_ptr<FSDirectory> NewRemoteDirectory() { return std::make_unique<RemoteDirectory>(); }

}  // namespace ecotone
