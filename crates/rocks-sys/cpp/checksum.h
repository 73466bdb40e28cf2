// The crc32c of a whole file, as RocksDB's FileChecksumGenCrc32c makes it.
#pragma once

#include <string>

#include "rocksdb/io_status.h"

namespace ecotone {

ROCKSDB_NAMESPACE::IOStatus FileCrc32c(const std::string& path, uint32_t* crc);

}  // namespace ecotone
