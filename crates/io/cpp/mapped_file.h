// A file that is appended to through a window of it in memory: a copy into the kernel's page cache
// instead of a call.
//
// What was appended survives a kill of the process like what was written by a call: both are in the
// page cache. It is made durable by a sync of any descriptor of the file, since the kernel looks
// for pages that were written through a window as it does for others, and protects each again
// before it writes it, so that no later change is missed. The window is reserved on the device
// before it is touched, so a full device is an error of the reservation. Where the kernel has no
// page to give all the same (the device has failed, the file was cut by someone else), the append
// fails: see bus_guard.h.
//
// While it is appended to, the file is longer than what was appended: zeros follow, up to the end
// of the window. Trim cuts them off; a killed process leaves them.
//
// Threads: one caller at a time; len() may be called, and the file be read and synced, at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "io.h"

namespace ecotone {

class MappedFile {
 public:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  // `fd` is open for reading and writing, and stays so. Appending goes on behind the first `len`
  // bytes, where nothing is that matters. It is expected to end at `limit`: no window leads beyond.
  // With `touches_ahead`, pages are made ready to be written ahead where appends are fast: not for
  // a file that is synced after every few appends.
  MappedFile(int fd, uint64_t len, uint64_t limit, bool touches_ahead);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Appends the parts, one behind the other. 0, or an errno: then nothing was appended.
  int Append(const ecotone_part* parts, size_t count);

  // Forgets what was appended from `len` on.
  void TakeBack(uint64_t len);

  // Cuts the file off behind what was appended. Appending may go on. 0, or an errno: zeros stay
  // behind it.
  int Trim();
  // The same behind the first `len` bytes, which is all that was appended then.
  int Truncate(uint64_t len);

  uint64_t len() const { return len_.load(std::memory_order_acquire); }

 private:
  // Whether the window holds the bytes from `begin` to `end`, after moving it where that is needed
  // and can be done.
  bool Cover(uint64_t begin, uint64_t end);
  bool Move(uint64_t begin, uint64_t end);
  // Leaves a window in large folios that is not filled as fast as it was expected to be.
  void LeaveIfSlow();
  void Unmap();

  const int fd_;
  const uint64_t limit_;
  const bool touches_ahead_;
  std::atomic<uint64_t> len_;
  // The window: its bytes in memory, and where they are in the file.
  char* window_ = nullptr;
  size_t guard_ = 0;
  uint64_t from_ = 0;
  uint64_t to_ = 0;
  // By the kernel's coarse clock.
  int64_t moved_at_ms_ = 0;
  // Whether its pages are in large folios.
  bool is_large_ = false;
  // The file may be this long, with nothing that matters behind len_.
  uint64_t reserved_ = 0;
  // No further window is tried before.
  uint64_t plain_until_ = 0;
};

}  // namespace ecotone
