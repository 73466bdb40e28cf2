// Files of this machine that are read at random, by calls: RocksDB's own, but that a thread may ask
// not to be made to wait.
//
// Such a thread gets what the kernel has in memory. Of the rest it is told Busy, though the kernel
// may begin to read it ahead; so it is of a file that is not open yet. Nothing is cached of that
// answer: who may wait asks again. What it was not given can be noted, for who waits for it
// otherwise.

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "file_hooks.h"

namespace ecotone {
namespace {

thread_local bool waits_never = false;

IOStatus Failed(const char* what, const std::string& path, int error) {
  const std::string text = std::string(what) + " " + path;
  return error == ENOENT ? IOStatus::PathNotFound(text, strerror(error)) : IOStatus::IOError(text, strerror(error));
}

class LocalRandomAccessFile : public FSRandomAccessFile {
 public:
  LocalRandomAccessFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~LocalRandomAccessFile() override { close(fd_); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& /*options*/, Slice* result, char* scratch,
                IODebugContext* /*dbg*/) const override {
    return Guard([&] { return waits_never ? TryRead(offset, n, result, scratch) : ReadAll(offset, n, result, scratch); });
  }

  IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions& /*options*/, IODebugContext* /*dbg*/) override {
    return Guard([&] {
      if (waits_never) {
        return IOStatus::Busy();
      }
      return readahead(fd_, static_cast<off_t>(offset), n) == 0 ? IOStatus::OK() : Failed("read ahead", path_, errno);
    });
  }

  void Hint(AccessPattern pattern) override {
    switch (pattern) {
      case kNormal:
        return Advise(0, 0, POSIX_FADV_NORMAL);
      case kRandom:
        return Advise(0, 0, POSIX_FADV_RANDOM);
      case kSequential:
        return Advise(0, 0, POSIX_FADV_SEQUENTIAL);
      case kWillNeed:
        return Advise(0, 0, POSIX_FADV_WILLNEED);
      case kWontNeed:
        return Advise(0, 0, POSIX_FADV_DONTNEED);
    }
  }

  IOStatus InvalidateCache(size_t offset, size_t length) override {
    Advise(offset, length, POSIX_FADV_DONTNEED);
    return IOStatus::OK();
  }

  IOStatus GetFileSize(uint64_t* size) override {
    return Guard([&] {
      struct stat found;
      if (fstat(fd_, &found) != 0) {
        return Failed("size of", path_, errno);
      }
      *size = static_cast<uint64_t>(found.st_size);
      return IOStatus::OK();
    });
  }

 private:
  // Short only at the end of the file.
  IOStatus ReadAll(uint64_t offset, size_t n, Slice* result, char* scratch) const {
    *result = Slice(scratch, 0);
    size_t done = 0;
    while (done < n) {
      const ssize_t read = pread(fd_, scratch + done, n - done, static_cast<off_t>(offset + done));
      if (read < 0 && errno == EINTR) {
        continue;
      }
      if (read < 0) {
        return Failed("read", path_ + " at " + std::to_string(offset + done), errno);
      }
      if (read == 0) {
        break;
      }
      done += static_cast<size_t>(read);
    }
    *result = Slice(scratch, done);
    return IOStatus::OK();
  }

  IOStatus TryRead(uint64_t offset, size_t n, Slice* result, char* scratch) const {
    *result = Slice(scratch, 0);
    iovec into{scratch, n};
    const ssize_t read = preadv2(fd_, &into, 1, static_cast<off_t>(offset), RWF_NOWAIT);
    // A part of it is there, or the file ends, or the file system cannot tell: who may wait finds
    // out, errors included.
    if (read < 0 || static_cast<size_t>(read) < n) {
      // Where the file system cannot tell it would be missed again.
      if (read >= 0 || errno == EAGAIN) {
        ecotone_note_missed(fd_, offset, n);
      }
      return IOStatus::Busy();
    }
    *result = Slice(scratch, n);
    return IOStatus::OK();
  }

  void Advise(uint64_t offset, uint64_t length, int advice) const {
    // Advice only.
    (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(length), advice);
  }

  const std::string path_;
  const int fd_;
};

}  // namespace

IOStatus NewLocalRandomAccessFile(const std::string& path, std::unique_ptr<FSRandomAccessFile>* result) {
  result->reset();
  if (waits_never) {
    return IOStatus::Busy();
  }
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    return Failed("open", path, errno);
  }
  result->reset(new LocalRandomAccessFile(path, fd));
  return IOStatus::OK();
}

}  // namespace ecotone

extern "C" {

bool ecotone_waits_never(bool waits_never) { return std::exchange(ecotone::waits_never, waits_never); }

}  // extern "C"
