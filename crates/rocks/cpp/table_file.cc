#include "table_file.h"

#include "db/dbformat.h"
#include "file/random_access_file_reader.h"
#include "rocksdb/file_system.h"
#include "rocksdb/table.h"
#include "table/table_builder.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

Options BlockBased() {
  BlockBasedTableOptions table;
  table.no_block_cache = true;
  Options options;
  options.table_factory.reset(NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

TableFile::TableFile(std::string path)
    : path_(std::move(path)),
      options_(BlockBased()),
      env_options_(options_),
      immutable_options_(options_),
      mutable_options_(ColumnFamilyOptions(options_)) {}

Status TableFile::Open() {
  const IOStatus sized = FileSystem::Default()->GetFileSize(path_, IOOptions(), &file_bytes_, nullptr);
  if (!sized.ok()) {
    return sized;
  }
  FileOptions file_options(env_options_);
  file_options.file_checksum_func_name = kNoFileChecksumFuncName;
  const auto& files = options_.env->GetFileSystem();
  std::unique_ptr<FSRandomAccessFile> file;
  const IOStatus opened = files->NewRandomAccessFile(path_, file_options, &file, nullptr);
  if (!opened.ok()) {
    return opened;
  }
  auto reader = std::make_unique<RandomAccessFileReader>(std::move(file), path_, immutable_options_.clock);
  // The sequence numbers that are in the file, never one for all.
  const TableReaderOptions table_options(
      immutable_options_, mutable_options_.prefix_extractor, mutable_options_.compression_manager.get(), env_options_,
      immutable_options_.internal_comparator, mutable_options_.block_protection_bytes_per_key,
      /*_skip_filters=*/true, /*_immortal=*/false, /*_force_direct_prefetch=*/false, /*_level=*/-1,
      /*_block_cache_tracer=*/nullptr, /*_max_file_size_for_l0_meta_pin=*/0, /*_cur_db_session_id=*/"",
      /*_cur_file_num=*/0, /*_unique_id=*/{}, /*_largest_seqno=*/kDisableGlobalSequenceNumber);
  const Status status = options_.table_factory->NewTableReader(table_options, std::move(reader), file_bytes_, &reader_);
  if (!status.ok()) {
    return status;
  }
  properties_ = reader_->GetTableProperties();
  return properties_ == nullptr ? Status::Corruption("it has no properties") : Status::OK();
}

}  // namespace ecotone
