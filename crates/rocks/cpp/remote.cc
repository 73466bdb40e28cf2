// What the two sides of a remote compaction exchange, taken apart by RocksDB's own code. Serves
// bytes of any origin.

#include "db/compaction/compaction_job.h"
#include "record.h"

namespace {

using namespace ROCKSDB_NAMESPACE;
using ecotone::Record;

// The status inside a result is the worker's word, not an error of ours.
void Write(const Status& status, Record* record) {
  record->Number(status.ok() ? 1 : 0).Bytes(status.ok() ? "" : status.ToString());
}

void Write(const CompactionServiceOutputFile& file, Record* record) {
  const TableProperties& properties = file.table_properties;
  record->Bytes(file.file_name)
      .Number(file.file_size)
      .Number(file.smallest_seqno)
      .Number(file.largest_seqno)
      .Bytes(file.smallest_internal_key)
      .Bytes(file.largest_internal_key)
      .Bytes(file.file_checksum)
      .Bytes(file.file_checksum_func_name)
      .Number(properties.num_entries)
      .Number(properties.num_deletions)
      .Number(properties.num_range_deletions)
      .Number(properties.raw_key_size)
      .Number(properties.raw_value_size)
      .Number(properties.tail_start_offset)
      .Number(file.unique_id[0])
      .Number(file.unique_id[1])
      .Number(file.paranoid_hash)
      .Number(file.marked_for_compaction ? 1 : 0)
      .Number(file.is_proximal_level_output ? 1 : 0);
}

// Value-initialised, because RocksDB leaves one flag of an output unset when the bytes do not name
// it.
Status Read(ecotone_bytes bytes, CompactionServiceResult* result) {
  const Status status = CompactionServiceResult::Read(ecotone::String(bytes), result);
  result->status.PermitUncheckedError();
  return status;
}

}  // namespace

extern "C" ecotone_code ecotone_parse_remote_input(ecotone_bytes bytes, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    CompactionServiceInput input;
    const Status status = CompactionServiceInput::Read(ecotone::String(bytes), &input);
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    Record record;
    record.Bytes(input.cf_name).Number(input.input_files.size());
    for (const std::string& file : input.input_files) {
      record.Bytes(file);
    }
    record.Number(static_cast<uint64_t>(static_cast<int64_t>(input.output_level)))
        .Number(input.has_begin ? 1 : 0)
        .Bytes(input.begin)
        .Number(input.has_end ? 1 : 0)
        .Bytes(input.end)
        .Number(input.snapshots.size());
    for (const SequenceNumber snapshot : input.snapshots) {
      record.Number(snapshot);
    }
    record.Bytes(input.db_id)
        .Number(input.options_file_number)
        .Number(input.min_manifest_file_number)
        .Number(input.min_manifest_file_size);
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}

extern "C" ecotone_code ecotone_parse_remote_result(ecotone_bytes bytes, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    CompactionServiceResult result;
    const Status status = Read(bytes, &result);
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    Record record;
    Write(result.status, &record);
    record.Bytes(result.output_path)
        .Number(static_cast<uint64_t>(static_cast<int64_t>(result.output_level)))
        .Number(result.output_files.size());
    for (const CompactionServiceOutputFile& file : result.output_files) {
      Write(file, &record);
    }
    const CompactionJobStats& stats = result.stats;
    record.Number(result.bytes_read)
        .Number(result.bytes_written)
        .Number(stats.num_input_records)
        .Number(stats.has_accurate_num_input_records ? 1 : 0)
        .Number(stats.num_output_records)
        .Number(stats.num_output_files)
        .Number(stats.total_output_bytes)
        .Number(stats.elapsed_micros)
        .Number(stats.cpu_micros)
        .Number(stats.num_corrupt_keys);
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}

extern "C" ecotone_code ecotone_remote_result_with_output_path(ecotone_bytes bytes, ecotone_bytes path,
                                                               ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    CompactionServiceResult result;
    Status status = Read(bytes, &result);
    std::string text;
    if (status.ok()) {
      result.output_path = ecotone::String(path);
      status = result.Write(&text);
    }
    ecotone::Give(status.ok() ? text : status.ToString(), out);
    return ecotone::CodeOf(status);
  });
}
