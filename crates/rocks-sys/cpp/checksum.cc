#include "checksum.h"

#include <cstring>
#include <memory>
#include <vector>

#include "record.h"
#include "rocksdb/file_system.h"
#include "util/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

#if defined(__x86_64__)
// RocksDB chooses its crc32c when it is compiled, and for the oldest x86-64 that is a table; this
// one asks the CPU, and is several times faster.
__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const char* data, size_t n) {
  uint64_t state = ~crc;
  for (; n >= 8; n -= 8, data += 8) {
    uint64_t word;
    memcpy(&word, data, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  for (; n > 0; n--, data++) {
    state = _mm_crc32_u8(static_cast<uint32_t>(state), static_cast<uint8_t>(*data));
  }
  return ~static_cast<uint32_t>(state);
}
#endif

uint32_t Extend(uint32_t crc, const char* data, size_t n) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    return ExtendByInstruction(crc, data, n);
  }
#endif
  return crc32c::Extend(crc, data, n);
}

}  // namespace

IOStatus FileCrc32c(const std::string& path, uint32_t* crc) {
  // Large enough for sequential reads, small enough for a core's cache.
  constexpr size_t kChunk = 256 << 10;
  std::unique_ptr<FSSequentialFile> file;
  IOStatus status = FileSystem::Default()->NewSequentialFile(path, FileOptions(), &file, nullptr);
  *crc = 0;
  std::vector<char> chunk(kChunk);
  while (status.ok()) {
    Slice read;
    status = file->Read(chunk.size(), IOOptions(), &read, chunk.data(), nullptr);
    if (read.empty()) {
      break;
    }
    *crc = Extend(*crc, read.data(), read.size());
  }
  return status;
}

}  // namespace ecotone

extern "C" ecotone_code ecotone_file_checksum(ecotone_bytes path, uint32_t* crc, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    const ROCKSDB_NAMESPACE::IOStatus status = ecotone::FileCrc32c(ecotone::String(path), crc);
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
    }
    return ecotone::CodeOf(status);
  });
}
