// A table opened by its path alone: without a store, a block cache or any hook, and with the
// sequence numbers that are in it.
#pragma once

#include <memory>
#include <string>

#include "options/cf_options.h"
#include "rocksdb/options.h"
#include "rocksdb/table_properties.h"
#include "table/table_reader.h"

namespace ecotone {

class TableFile {
 public:
  explicit TableFile(std::string path);
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;

  // Nothing else may be called before this was OK. It reads footer, properties, index and range
  // deletions; a block of range deletions that is damaged is passed over.
  ROCKSDB_NAMESPACE::Status Open();

  uint64_t file_bytes() const { return file_bytes_; }
  ROCKSDB_NAMESPACE::TableReader& reader() { return *reader_; }
  const ROCKSDB_NAMESPACE::TableProperties& properties() const { return *properties_; }
  const ROCKSDB_NAMESPACE::MutableCFOptions& mutable_options() const { return mutable_options_; }

 private:
  const std::string path_;
  // The reader refers to all of these.
  const ROCKSDB_NAMESPACE::Options options_;
  const ROCKSDB_NAMESPACE::EnvOptions env_options_;
  const ROCKSDB_NAMESPACE::ImmutableOptions immutable_options_;
  const ROCKSDB_NAMESPACE::MutableCFOptions mutable_options_;
  uint64_t file_bytes_ = 0;
  std::unique_ptr<ROCKSDB_NAMESPACE::TableReader> reader_;
  std::shared_ptr<const ROCKSDB_NAMESPACE::TableProperties> properties_;
};

}  // namespace ecotone
