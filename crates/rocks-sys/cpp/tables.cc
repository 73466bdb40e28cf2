// Metadata of the live tables of a store.

#include <algorithm>

#include "file/filename.h"
#include "mirror.h"
#include "record.h"
#include "rocksdb/metadata.h"
#include "rocksdb/table_properties.h"

using ecotone::Record;
using ROCKSDB_NAMESPACE::LiveFileMetaData;
using ROCKSDB_NAMESPACE::Status;
using ROCKSDB_NAMESPACE::TablePropertiesCollection;

extern "C" ecotone_code ecotone_live_tables(void* db, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    std::vector<LiveFileMetaData> tables;
    static_cast<ecotone::DbHandle*>(db)->rep->GetLiveFilesMetaData(&tables);
    Record record;
    record.Number(tables.size());
    for (const LiveFileMetaData& table : tables) {
      record.Number(table.file_number)
          .Bytes(table.relative_filename)
          .Bytes(table.directory)
          .Bytes(table.column_family_name)
          .Number(static_cast<uint64_t>(table.level))
          .Number(table.size)
          .Bytes(table.smallestkey)
          .Bytes(table.largestkey)
          .Number(table.smallest_seqno)
          .Number(table.largest_seqno)
          .Number(table.num_entries)
          .Number(table.num_deletions)
          .Number(table.num_reads_sampled)
          .Number(table.being_compacted ? 1 : 0)
          .Bytes(table.file_checksum)
          .Bytes(table.file_checksum_func_name)
          .Number(table.file_creation_time);
    }
    ecotone::Give(record.data(), out);
    return ECOTONE_OK;
  });
}

extern "C" ecotone_code ecotone_collected_properties(void* db, void* family, ecotone_bytes prefix,
                                                     const uint64_t* known, size_t known_count, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    TablePropertiesCollection tables;
    const Status status = static_cast<ecotone::DbHandle*>(db)->rep->GetPropertiesOfAllTables(
        static_cast<ecotone::FamilyHandle*>(family)->rep, &tables);
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    Record record;
    record.Number(tables.size());
    for (const auto& [path, properties] : tables) {
      Record pairs;
      uint64_t count = 0;
      const uint64_t number = ROCKSDB_NAMESPACE::TableFileNameToNumber(path);
      const bool is_known = std::binary_search(known, known + known_count, number);
      for (const auto& [name, value] : properties->user_collected_properties) {
        if (!is_known && std::string_view(name).starts_with(ecotone::View(prefix))) {
          pairs.Bytes(name).Bytes(value);
          count++;
        }
      }
      record.Bytes(path).Number(number).Number(count).Append(pairs);
    }
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}
