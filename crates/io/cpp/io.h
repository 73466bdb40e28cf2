// The C interface between this crate's C++ and its Rust. src/ffi.rs holds the same declarations;
// change both together. No function throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

// A borrowed run of bytes. `data` may be null when `len` is 0.
typedef struct {
  const uint8_t* data;
  size_t len;
} ecotone_part;

// A file that is appended to through a window in memory (mapped_file.h). One caller at a time.
typedef struct ecotone_mapped_file ecotone_mapped_file;
// `fd` is open for reading and writing, and stays so until the file is freed. Null when memory is
// short.
ecotone_mapped_file* ecotone_mapped_file_new(int32_t fd, uint64_t len, uint64_t limit, bool touches_ahead);
// 0 or an errno.
int32_t ecotone_mapped_file_append(ecotone_mapped_file* file, const ecotone_part* parts, size_t count);
// Forgets what was appended from `len` on.
void ecotone_mapped_file_take_back(ecotone_mapped_file* file, uint64_t len);
// 0 or an errno.
int32_t ecotone_mapped_file_trim(ecotone_mapped_file* file);
// Trims it.
void ecotone_mapped_file_free(ecotone_mapped_file* file);

// Whether it is known of the file's file system that what it has reserved can be written later.
bool ecotone_reserves_for_certain(int32_t fd);

// A file that is read through memory (mapped_reads.cc).
typedef struct ecotone_mapped_reads ecotone_mapped_reads;
// Of the first `len` bytes, which are there. Null where it cannot be mapped or guarded. `fd` may be
// closed then.
ecotone_mapped_reads* ecotone_mapped_reads_new(int32_t fd, uint64_t len);
// 0 or an errno: then what was copied means nothing. Any thread.
int32_t ecotone_mapped_reads_copy(const ecotone_mapped_reads* reads, uint64_t offset, uint8_t* into, size_t len);
void ecotone_mapped_reads_free(ecotone_mapped_reads* reads);

}  // extern "C"
