#include "bus_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace ecotone {
namespace {

const uint64_t kPageBytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));

struct Guarded {
  std::atomic<uintptr_t> from{0};
  std::atomic<uintptr_t> to{0};
  std::atomic<bool> failed{false};
};

Guarded guarded[kMostGuarded];

struct sigaction handler_before;

void OnBusError(int signal, siginfo_t* info, void* context) {
  // One that was sent has no address.
  const bool sent = info->si_code <= 0;
  const auto at = sent ? 0 : reinterpret_cast<uintptr_t>(info->si_addr);
  for (Guarded& memory : guarded) {
    const uintptr_t from = memory.from.load(std::memory_order_acquire);
    const uintptr_t to = memory.to.load(std::memory_order_acquire);
    // Read once more: between the two it may have become other memory's.
    if (sent || at < from || at >= to || memory.from.load(std::memory_order_acquire) != from) {
      continue;
    }
    const int before = errno;
    void* page = reinterpret_cast<void*>(at - at % kPageBytes);
    const bool taken = mmap(page, kPageBytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == page;
    errno = before;
    if (taken) {
      memory.failed.store(true, std::memory_order_relaxed);
      return;
    }
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler == SIG_DFL || handler_before.sa_handler == SIG_IGN) {
    // Raised again on return: by the same access, or here.
    ::signal(signal, SIG_DFL);
    if (sent) {
      raise(signal);
    }
  } else {
    handler_before.sa_handler(signal);
  }
}

}  // namespace

bool GuardIsInstalled() {
  static const bool installed = [] {
    struct sigaction handler = {};
    handler.sa_sigaction = OnBusError;
    handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&handler.sa_mask);
    return sigaction(SIGBUS, nullptr, &handler_before) == 0 && sigaction(SIGBUS, &handler, nullptr) == 0;
  }();
  return installed;
}

size_t Guard(const char* memory, uint64_t bytes, size_t first) {
  const auto from = reinterpret_cast<uintptr_t>(memory);
  for (size_t i = first; i < kMostGuarded; i++) {
    uintptr_t free = 0;
    if (guarded[i].from.compare_exchange_strong(free, from, std::memory_order_acq_rel)) {
      guarded[i].failed.store(false, std::memory_order_relaxed);
      guarded[i].to.store(from + bytes, std::memory_order_release);
      return i;
    }
  }
  return kNoGuard;
}

void Unguard(size_t guard) {
  guarded[guard].to.store(0, std::memory_order_release);
  guarded[guard].from.store(0, std::memory_order_release);
}

bool GuardHasFailed(size_t guard) { return guarded[guard].failed.load(std::memory_order_relaxed); }

}  // namespace ecotone
