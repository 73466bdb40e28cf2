// Memory of a file whose pages the kernel may not be able to give.
//
// A page that it cannot give (the device has failed, the file was cut by someone else) raises
// SIGBUS, which ends a process. In memory that is guarded, a page of nobody's takes its place: the
// access goes on there, and who made it asks afterwards whether it has failed. (The way of
// systemd's journal.) Others' SIGBUS go where they went before.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ecotone {

// So many pieces of memory are guarded at a time.
constexpr size_t kMostGuarded = 512;
constexpr size_t kNoGuard = kMostGuarded;

// Installs the handler, once. False where that is refused.
bool GuardIsInstalled();

// kNoGuard where no more can be guarded. Those before `first` are left to others.
size_t Guard(const char* memory, uint64_t bytes, size_t first = 0);
bool GuardHasFailed(size_t guard);
// Before the memory is unmapped.
void Unguard(size_t guard);

}  // namespace ecotone
