// Structs that are private to RocksDB's C API (db/c.cc), as they are in 11.12.
// ecotone_check_mirrors proves at run time that they still are; the crates are pinned so that they
// cannot change unseen.
#pragma once

#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"

namespace ecotone {

// rocksdb_t
struct DbHandle {
  ROCKSDB_NAMESPACE::DB* rep;
};

// rocksdb_env_t. rocksdb_env_destroy deletes `rep` unless `is_default`, and then the handle itself.
struct EnvHandle {
  ROCKSDB_NAMESPACE::Env* rep;
  bool is_default;
};

// rocksdb_column_family_handle_t
struct FamilyHandle {
  ROCKSDB_NAMESPACE::ColumnFamilyHandle* rep;
  bool immortal;
};

// rocksdb_options_t
struct OptionsHandle {
  ROCKSDB_NAMESPACE::Options rep;
};

}  // namespace ecotone
