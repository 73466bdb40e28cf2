#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "bus_guard.h"

namespace ecotone {
namespace {

// Larger windows save nothing more, and are resident memory and reserved space.
constexpr uint64_t kWindowBytes = 256 * 1024;
// Longer appends are calls: they cost no more then.
constexpr uint64_t kMostCopiedBytes = 64 * 1024;
// A file whose last window was filled so soon has its next pages filled with zeros and made
// writable ahead. They are written by the next sync even if nothing was appended to them: with one
// sync a second that is a tenth of what is appended at most.
constexpr int64_t kSoonMs = 100;
// Such a window is left when it has not been filled so soon: its pages are in large folios, of
// which each sync writes the whole for one byte that was appended in memory, and one block for a
// byte that was appended by a call.
constexpr int64_t kLateMs = 1000;
// A shorter window is not worth its calls.
constexpr uint64_t kLeastWindowBytes = 64 * 1024;

#ifndef MADV_POPULATE_WRITE  // since Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

// Never written to; not const, so that it takes no room in the program.
uint8_t zeros[kWindowBytes];

const uint64_t kPageBytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));

// Costs less than half of what the exact clock does; up to a tick behind it.
int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

uint64_t PageBegin(uint64_t offset) { return offset - offset % kPageBytes; }
uint64_t PageEnd(uint64_t offset) { return PageBegin(offset + kPageBytes - 1); }

// File systems of which it is known that what they have reserved can be written later. Not btrfs,
// which writes elsewhere, nor those on the network; of an overlay nobody knows what is below.
bool ReservesForCertain(int fd) {
  struct statfs found;
  if (fstatfs(fd, &found) != 0) {
    return false;
  }
  switch (static_cast<uint32_t>(found.f_type)) {
    case 0x0000EF53:  // ext4
    case 0x58465342:  // xfs
    case 0x01021994:  // tmpfs
    case 0xF2F52010:  // f2fs
      return true;
    default:
      return false;
  }
}

// 0, or an errno.
int WriteAt(int fd, uint64_t offset, const uint8_t* data, size_t len) {
  while (len > 0) {
    const ssize_t written = pwrite(fd, data, len, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return written == 0 ? EIO : errno;
    }
    data += written;
    offset += static_cast<uint64_t>(written);
    len -= static_cast<size_t>(written);
  }
  return 0;
}

}  // namespace

MappedFile::MappedFile(int fd, uint64_t len, uint64_t limit, bool touches_ahead)
    : fd_(fd), limit_(limit), touches_ahead_(touches_ahead), len_(len) {
  if (!ReservesForCertain(fd) || !GuardIsInstalled()) {
    plain_until_ = kNoLimit;
  }
}

MappedFile::~MappedFile() { Trim(); }

int MappedFile::Append(const ecotone_part* parts, size_t count) {
  const uint64_t begin = len_.load(std::memory_order_relaxed);
  uint64_t end = begin;
  for (size_t i = 0; i < count; i++) {
    end += parts[i].len;
  }
  uint64_t at = begin;
  if (end - begin <= kMostCopiedBytes && Cover(begin, end)) {
    for (size_t i = 0; i < count; i++) {
      if (parts[i].len > 0) {
        memcpy(window_ + (at - from_), parts[i].data, parts[i].len);
      }
      at += parts[i].len;
    }
    // The compiler does not know that a copy may end in the handler.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (GuardHasFailed(guard_)) {
      Unmap();
      return EIO;
    }
  } else {
    for (size_t i = 0; i < count; i++) {
      const int error = WriteAt(fd_, at, parts[i].data, parts[i].len);
      if (error != 0) {
        // A part of it may be there.
        reserved_ = std::max(reserved_, end);
        return error;
      }
      at += parts[i].len;
    }
  }
  len_.store(end, std::memory_order_release);
  return 0;
}

void MappedFile::TakeBack(uint64_t len) {
  // What is there now was appended by a call or lies in the window, which a trim cuts off either
  // way.
  reserved_ = std::max(reserved_, len_.load(std::memory_order_relaxed));
  len_.store(len, std::memory_order_release);
}

bool MappedFile::Cover(uint64_t begin, uint64_t end) {
  LeaveIfSlow();
  return (begin >= from_ && end <= to_) || Move(begin, end);
}

void MappedFile::LeaveIfSlow() {
  if (is_large_ && NowMs() - moved_at_ms_ > kLateMs) {
    plain_until_ = to_;
    Unmap();
  }
}

bool MappedFile::Move(uint64_t begin, uint64_t end) {
  if (begin < plain_until_) {
    return false;
  }
  Unmap();
  const uint64_t from = PageBegin(begin);
  const uint64_t to = PageEnd(std::min(from + kWindowBytes, std::max(limit_, end)));
  if (to - from < kLeastWindowBytes) {
    plain_until_ = to;
    return false;
  }
  const int64_t now = NowMs();
  const bool touches = touches_ahead_ && now - moved_at_ms_ < kSoonMs;
  moved_at_ms_ = now;
  reserved_ = std::max(reserved_, to);
  if (fallocate(fd_, 0, static_cast<off_t>(from), static_cast<off_t>(to - from)) == 0) {
    // A call brings pages into memory in large folios, at half of what it costs to fault each of
    // them in. Where it fails they are.
    const bool is_large = touches && WriteAt(fd_, begin, zeros, to - begin) == 0;
    void* window = mmap(nullptr, to - from, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(from));
    const bool mapped = window != MAP_FAILED;
    guard_ = mapped ? Guard(static_cast<char*>(window), to - from) : kNoGuard;
    if (guard_ != kNoGuard) {
      // Without it the kernel reads ahead on each fault, in folios of many pages that are then
      // dirty and written as a whole.
      madvise(window, to - from, MADV_RANDOM);
      // Pages are asked for at once, before they are touched: one after the other costs more. By
      // what is done else they are clean until they are written, so a sync does not write them.
      if (!(touches && madvise(window, to - from, MADV_POPULATE_WRITE) == 0)) {
        madvise(window, to - from, MADV_WILLNEED);
      }
      window_ = static_cast<char*>(window);
      from_ = from;
      to_ = to;
      is_large_ = is_large;
      return true;
    }
    if (mapped) {
      munmap(window, to - from);
    }
  }
  // There may be room for less, or some was reserved: give it back, and try again after as much as
  // a window holds.
  plain_until_ = begin + kWindowBytes;
  Trim();
  return false;
}

void MappedFile::Unmap() {
  if (window_ != nullptr) {
    Unguard(guard_);
    munmap(window_, to_ - from_);
  }
  window_ = nullptr;
  is_large_ = false;
  from_ = to_ = 0;
}

int MappedFile::Trim() {
  Unmap();
  const uint64_t len = len_.load(std::memory_order_relaxed);
  if (reserved_ <= len) {
    return 0;
  }
  return Truncate(len);
}

int MappedFile::Truncate(uint64_t len) {
  Unmap();
  if (ftruncate(fd_, static_cast<off_t>(len)) != 0) {
    return errno;
  }
  reserved_ = 0;
  len_.store(len, std::memory_order_release);
  return 0;
}

}  // namespace ecotone

extern "C" {

ecotone_mapped_file* ecotone_mapped_file_new(int32_t fd, uint64_t len, uint64_t limit, bool touches_ahead) {
  return reinterpret_cast<ecotone_mapped_file*>(new (std::nothrow) ecotone::MappedFile(fd, len, limit, touches_ahead));
}

int32_t ecotone_mapped_file_append(ecotone_mapped_file* file, const ecotone_part* parts, size_t count) {
  return reinterpret_cast<ecotone::MappedFile*>(file)->Append(parts, count);
}

void ecotone_mapped_file_take_back(ecotone_mapped_file* file, uint64_t len) {
  reinterpret_cast<ecotone::MappedFile*>(file)->TakeBack(len);
}

int32_t ecotone_mapped_file_trim(ecotone_mapped_file* file) {
  return reinterpret_cast<ecotone::MappedFile*>(file)->Trim();
}

void ecotone_mapped_file_free(ecotone_mapped_file* file) { delete reinterpret_cast<ecotone::MappedFile*>(file); }

bool ecotone_reserves_for_certain(int32_t fd) { return ecotone::ReservesForCertain(fd); }

}  // extern "C"
