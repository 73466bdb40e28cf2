// Reads of a file through memory: a copy out of the kernel's page cache instead of a call.

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <new>

#include "bus_guard.h"
#include "io.h"

struct ecotone_mapped_reads {
  char* bytes;
  uint64_t len;
  size_t guard;
};

namespace {

// Reads by calls are slower; appends by calls hold up users.
constexpr size_t kLeftToAppends = ecotone::kMostGuarded / 2;

}  // namespace

extern "C" {

ecotone_mapped_reads* ecotone_mapped_reads_new(int32_t fd, uint64_t len) {
  if (len == 0 || !ecotone::GuardIsInstalled()) {
    return nullptr;
  }
  void* bytes = mmap(nullptr, len, PROT_READ, MAP_SHARED, fd, 0);
  if (bytes == MAP_FAILED) {
    return nullptr;
  }
  const size_t guard = ecotone::Guard(static_cast<char*>(bytes), len, kLeftToAppends);
  auto* reads = guard == ecotone::kNoGuard ? nullptr
                                           : new (std::nothrow) ecotone_mapped_reads{static_cast<char*>(bytes), len, guard};
  if (reads == nullptr) {
    if (guard != ecotone::kNoGuard) {
      ecotone::Unguard(guard);
    }
    munmap(bytes, len);
    return nullptr;
  }
  // Pages that are not in memory are read one by one, as by calls at random.
  madvise(bytes, len, MADV_RANDOM);
  return reads;
}

int32_t ecotone_mapped_reads_copy(const ecotone_mapped_reads* reads, uint64_t offset, uint8_t* into, size_t len) {
  if (offset > reads->len || len > reads->len - offset) {
    return ERANGE;
  }
  memcpy(into, reads->bytes + offset, len);
  // The compiler does not know that a copy may end in the handler.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return ecotone::GuardHasFailed(reads->guard) ? EIO : 0;
}

void ecotone_mapped_reads_free(ecotone_mapped_reads* reads) {
  ecotone::Unguard(reads->guard);
  munmap(reads->bytes, reads->len);
  delete reads;
}

}  // extern "C"
