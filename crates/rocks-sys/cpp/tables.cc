// Metadata of the live tables of a store.

#include "mirror.h"
#include "record.h"
#include "rocksdb/metadata.h"

using ecotone::Record;
using ROCKSDB_NAMESPACE::LiveFileMetaData;

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
