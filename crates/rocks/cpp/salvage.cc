// Reads what can be read of a table that may be damaged, block by block, and tells what a record of
// a MANIFEST says.

#include "db/dbformat.h"
#include "db/range_tombstone_fragmenter.h"
#include "db/version_edit.h"
#include "record.h"
#include "rocksdb/comparator.h"
#include "table/block_based/block_based_table_reader.h"
#include "table_file.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

constexpr uint64_t kEntry = 0;
constexpr uint64_t kGap = 1;

class SalvagedTable {
 public:
  explicit SalvagedTable(std::string path) : file_(std::move(path)) {}

  Status Open() {
    Status status = file_.Open();
    if (status.ok() && file_.properties().comparator_name != BytewiseComparator()->Name()) {
      status = Status::Corruption("it is in the order of " + file_.properties().comparator_name);
    }
    if (!status.ok()) {
      return status;
    }
    // The factory makes readers of no other kind.
    blocks_ = static_cast<BlockBasedTable*>(&file_.reader());
    index_.reset(blocks_->get_rep()->index_reader->NewIterator(options_, /*disable_prefix_seek=*/true, /*iter=*/nullptr,
                                                               /*get_context=*/nullptr, /*lookup_context=*/nullptr));
    return index_->status();
  }

  // Leaves the index at the first block.
  Record Describe() {
    const TableProperties& properties = file_.properties();
    std::string last;
    index_->SeekToLast();
    if (index_->Valid()) {
      last = index_->user_key().ToString();
    }
    index_->SeekToFirst();
    std::string first;
    const bool any = index_->Valid();
    bool first_is_known = false;
    if (any) {
      Status status;
      const std::unique_ptr<InternalIterator> entry(Block(&status));
      entry->SeekToFirst();
      if (entry->Valid() && entry->key().size() >= kNumInternalBytes) {
        first = ExtractUserKey(entry->key()).ToString();
        first_is_known = true;
      }
    }
    Record collected;
    for (const auto& [name, value] : properties.user_collected_properties) {
      collected.Bytes(name).Bytes(value);
    }
    Record record;
    record.Number(file_.file_bytes())
        .Number(properties.num_entries)
        .Number(properties.num_range_deletions)
        .Number(properties.HasKeyLargestSeqno() ? properties.key_largest_seqno : kMaxSequenceNumber)
        .Bytes(properties.column_family_name)
        .Number(any ? 1 : 0)
        .Number(first_is_known ? 1 : 0)
        .Bytes(first)
        .Bytes(last)
        .Number(properties.user_collected_properties.size())
        .Append(collected);
    AppendRangeDeletions(&record);
    return record;
  }

  // Whole blocks, until `max_bytes` are reached. None at the end.
  Record Next(uint64_t max_bytes) {
    Record items;
    uint64_t count = 0;
    while (index_->Valid() && items.data().size() < max_bytes) {
      ReadBlock(&items, &count);
      index_->Next();
    }
    if (!index_->Valid() && !index_->status().ok() && !index_failed_) {
      index_failed_ = true;
      Gap(last_user_key_, Slice(), /*to_the_end=*/true, index_->status().ToString(), &items, &count);
    }
    Record record;
    record.Number(count).Append(items);
    return record;
  }

 private:
  InternalIterator* Block(Status* status) {
    return blocks_->NewDataBlockIterator<DataBlockIter>(
        options_, index_->value().handle, /*input_iter=*/nullptr, BlockType::kData, /*get_context=*/nullptr,
        /*lookup_context=*/nullptr, /*prefetch_buffer=*/nullptr, /*for_compaction=*/false, /*async_read=*/false, *status,
        /*use_block_cache_for_lookup=*/false);
  }

  void ReadBlock(Record* items, uint64_t* count) {
    Status status;
    const std::unique_ptr<InternalIterator> entry(Block(&status));
    std::string fault;
    for (entry->SeekToFirst(); entry->Valid(); entry->Next()) {
      ParsedInternalKey key;
      const Status parsed = ParseInternalKey(entry->key(), &key, /*log_err_key=*/false);
      if (!parsed.ok()) {
        fault = parsed.ToString();
        break;
      }
      if (any_ && comparator_.Compare(last_key_, entry->key()) >= 0) {
        fault = "an entry is out of order";
        break;
      }
      any_ = true;
      last_key_.assign(entry->key().data(), entry->key().size());
      last_user_key_ = key.user_key.ToString();
      items->Number(kEntry).Bytes(last_user_key_).Number(key.sequence).Number(key.type).Bytes(entry->value().ToStringView());
      (*count)++;
    }
    if (fault.empty() && !entry->status().ok()) {
      fault = entry->status().ToString();
    }
    const Slice end = index_->user_key();
    if (!fault.empty()) {
      Gap(last_user_key_, end, /*to_the_end=*/false, fault, items, count);
    }
    // What a gap before the next block begins behind, also where this block was one.
    if (Slice(last_user_key_).compare(end) < 0) {
      last_user_key_ = end.ToString();
    }
  }

  static void Gap(const Slice& after, const Slice& to, bool to_the_end, const std::string& fault, Record* items,
                  uint64_t* count) {
    items->Number(kGap).Bytes(after.ToStringView()).Number(to_the_end ? 1 : 0).Bytes(to.ToStringView()).Bytes(fault);
    (*count)++;
  }

  void AppendRangeDeletions(Record* record) {
    Record ranges;
    uint64_t count = 0;
    uint64_t original = 0;
    const std::unique_ptr<FragmentedRangeTombstoneIterator> fragment(file_.reader().NewRangeTombstoneIterator(options_));
    if (fragment != nullptr) {
      original = fragment->num_unfragmented_tombstones();
      for (fragment->SeekToFirst(); fragment->Valid(); fragment->Next()) {
        ranges.Bytes(fragment->start_key().ToStringView())
            .Bytes(fragment->end_key().ToStringView())
            .Number(fragment->seq());
        count++;
      }
    }
    record->Number(original).Number(count).Append(ranges);
  }

  TableFile file_;
  const ReadOptions options_{/*_verify_checksums=*/true, /*_fill_cache=*/false};
  const InternalKeyComparator comparator_{BytewiseComparator()};
  BlockBasedTable* blocks_ = nullptr;
  // Goes before the table does.
  std::unique_ptr<InternalIteratorBase<IndexValue>> index_;
  bool index_failed_ = false;
  bool any_ = false;
  std::string last_key_;
  std::string last_user_key_;
};

Record Describe(const VersionEdit& edit) {
  Record record;
  record.Number(edit.GetColumnFamily())
      .Number(edit.IsColumnFamilyAdd() ? 1 : 0)
      .Bytes(edit.GetColumnFamilyName())
      .Number(edit.HasLogNumber() ? edit.GetLogNumber() : 0)
      .Number(edit.GetDeletedFiles().size());
  for (const auto& [level, number] : edit.GetDeletedFiles()) {
    record.Number(number);
  }
  record.Number(edit.GetNewFiles().size());
  for (const auto& [level, table] : edit.GetNewFiles()) {
    const Slice largest = table.largest.Encode();
    // How RocksDB cuts range deletions that reach beyond the table (TruncatedRangeDelIterator).
    const uint64_t largest_sequence = GetInternalKeySeqno(largest);
    const bool open_end = largest_sequence == kMaxSequenceNumber || largest_sequence == 0;
    record.Number(table.fd.GetNumber())
        .Number(static_cast<uint64_t>(level))
        .Number(table.fd.GetFileSize())
        .Bytes(table.smallest.user_key().ToStringView())
        .Bytes(table.largest.user_key().ToStringView())
        .Number(open_end ? 1 : 0)
        .Number(table.fd.largest_seqno);
  }
  record.Number(edit.GetWalAdditions().size());
  for (const WalAddition& wal : edit.GetWalAdditions()) {
    record.Number(wal.GetLogNumber())
        .Number(wal.GetMetadata().HasSyncedSize() ? wal.GetMetadata().GetSyncedSizeInBytes() : 0);
  }
  record.Number(edit.GetWalDeletion().IsEmpty() ? 0 : edit.GetWalDeletion().GetLogNumber())
      .Number(edit.HasLastSequence() ? edit.GetLastSequence() : 0);
  return record;
}

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_salvage_open(ecotone_bytes path, void** table, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    auto opened = std::make_unique<ecotone::SalvagedTable>(ecotone::String(path));
    const ROCKSDB_NAMESPACE::Status status = opened->Open();
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    ecotone::Give(opened->Describe().data(), out);
    *table = opened.release();
    return ecotone_code{ECOTONE_OK};
  });
}

extern "C" ecotone_code ecotone_salvage_next(void* table, uint64_t max_bytes, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    ecotone::Give(static_cast<ecotone::SalvagedTable*>(table)->Next(max_bytes).data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}

extern "C" void ecotone_salvage_close(void* table) { delete static_cast<ecotone::SalvagedTable*>(table); }

extern "C" ecotone_code ecotone_manifest_edit(ecotone_bytes record, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    ROCKSDB_NAMESPACE::VersionEdit edit;
    const ROCKSDB_NAMESPACE::Status status = edit.DecodeFrom(ecotone::View(record));
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    ecotone::Give(ecotone::Describe(edit).data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}
