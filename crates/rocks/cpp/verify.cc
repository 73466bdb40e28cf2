// Reads a table that came from elsewhere, whole, and tells what is in it. All in C++: no call per
// key.

#include <algorithm>

#include "db/dbformat.h"
#include "db/range_tombstone_fragmenter.h"
#include "record.h"
#include "rocksdb/table_properties.h"
#include "table/sst_file_writer_collectors.h"
#include "table/table_reader.h"
#include "table/unique_id_impl.h"
#include "table_file.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

// What ends the reading: a code other than ECOTONE_OK and the words for it.
struct Fault {
  ecotone_code code;
  std::string what;
};

[[noreturn]] void Refuse(ecotone_code code, std::string what) { throw Fault{code, std::move(what)}; }

uint64_t PackedOf(const Slice& internal_key) {
  return DecodeFixed64(internal_key.data() + internal_key.size() - kNumInternalBytes);
}

Slice UserKeyOf(const Slice& internal_key) {
  return Slice(internal_key.data(), internal_key.size() - kNumInternalBytes);
}

// Bytewise user keys ascending, then the newest first: RocksDB's internal order. Negative when `a`
// comes first.
int Compare(const Slice& a, const Slice& b) {
  const int order = UserKeyOf(a).compare(UserKeyOf(b));
  if (order != 0) {
    return order;
  }
  return PackedOf(a) > PackedOf(b) ? -1 : PackedOf(a) < PackedOf(b) ? 1 : 0;
}

std::string Show(const Slice& key) { return "0x" + key.ToString(/*hex=*/true); }

class Table {
 public:
  Table(std::string path, const bool* stop, const ecotone_recount* recount)
      : file_(std::move(path)), stop_(stop), recount_(recount) {}

  // Throws a Fault, or returns with all that was found.
  void Read() {
    Open();
    CheckProperties();
    CheckMetaBlocks();
    CheckEntries();
    CountRangeDeletions();
    CheckCounts();
  }

  Record Summary() const {
    const bool any = smallest_seqno_ <= largest_seqno_;
    Record record;
    record.Number(file_.file_bytes())
        .Number(entries_)
        .Number(deletions_)
        .Number(range_deletions_)
        .Number(file_.properties().raw_key_size)
        .Number(file_.properties().raw_value_size)
        .Number(any ? smallest_seqno_ : 0)
        .Number(any ? largest_seqno_ : 0)
        .Number(file_.properties().tail_start_offset)
        .Number(unique_id_[0])
        .Number(unique_id_[1])
        .Bytes(first_)
        .Bytes(last_)
        .Bytes(range_begin_)
        .Bytes(range_end_);
    if (recount_ != nullptr) {
      const auto& collected = file_.properties().user_collected_properties;
      record.Number(collected.size());
      for (const auto& [name, value] : collected) {
        record.Bytes(name).Bytes(value);
      }
    }
    return record;
  }

 private:
  void Open() {
    const Status status = file_.Open();
    if (!status.ok()) {
      Refuse(status.IsIOError() ? ECOTONE_IO_ERROR : ECOTONE_NOT_A_TABLE, status.ToString());
    }
  }

  void CheckProperties() {
    const TableProperties& properties = file_.properties();
    if (properties.comparator_name != BytewiseComparator()->Name()) {
      Refuse(ECOTONE_FOREIGN, "it is in the order of " + properties.comparator_name);
    }
    if (properties.user_collected_properties.count(ExternalSstFilePropertyNames::kVersion) != 0) {
      Refuse(ECOTONE_FOREIGN, "it was made for ingestion, not by a compaction");
    }
    const Status status = GetSstInternalUniqueId(properties.db_id, properties.db_session_id,
                                                 properties.orig_file_number, UniqueIdPtr(&unique_id_));
    if (!status.ok()) {
      unique_id_ = kNullUniqueId64x2;
    }
  }

  // Index, filter, properties and range deletions. Data blocks are checked as they are read.
  void CheckMetaBlocks() {
    const ReadOptions options(/*_verify_checksums=*/true, /*_fill_cache=*/false);
    RefuseUnlessRead(
        file_.reader().VerifyChecksum(options, TableReaderCaller::kSSTFileReader, /*meta_blocks_only=*/true));
  }

  static void RefuseUnlessRead(const Status& status) {
    if (!status.ok()) {
      Refuse(status.IsIOError() ? ECOTONE_IO_ERROR : ECOTONE_CORRUPTION, status.ToString());
    }
  }

  void CheckEntries() {
    ReadOptions options(/*_verify_checksums=*/true, /*_fill_cache=*/false);
    options.total_order_seek = true;
    options.readahead_size = kReadAhead;
    std::unique_ptr<InternalIterator> entry(
        file_.reader().NewIterator(options, file_.mutable_options().prefix_extractor.get(), /*arena=*/nullptr,
                                   /*skip_filters=*/true, TableReaderCaller::kSSTFileReader));
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;
    for (entry->SeekToFirst(); entry->Valid(); entry->Next()) {
      if (__atomic_load_n(stop_, __ATOMIC_RELAXED)) {
        Refuse(ECOTONE_STOPPED, "stopped after " + std::to_string(entries_) + " entries");
      }
      const Slice key = entry->key();
      if (key.size() < kNumInternalBytes) {
        Refuse(ECOTONE_CORRUPTION, "entry " + std::to_string(entries_) + " has a key of " +
                                       std::to_string(key.size()) + " bytes");
      }
      if (entries_ == 0) {
        first_ = key.ToString();
      } else if (Compare(last_, key) >= 0) {
        Refuse(ECOTONE_MISORDERED, "entry " + std::to_string(entries_) + " with key " + Show(key) + " follows " +
                                       Show(last_));
      }
      Count(key);
      if (recount_ != nullptr) {
        const uint64_t packed = PackedOf(key);
        Recount(UserKeyOf(key), entry->value(), GetEntryType(static_cast<ValueType>(packed & 0xff)), packed >> 8);
      }
      last_.assign(key.data(), key.size());
      key_bytes += key.size();
      value_bytes += entry->value().size();
    }
    RefuseUnlessRead(entry->status());
    point_bytes_ = key_bytes + value_bytes;
  }

  void Count(const Slice& key) {
    const uint64_t packed = PackedOf(key);
    CountSequence(packed >> 8);
    switch (static_cast<ValueType>(packed & 0xff)) {
      case kTypeDeletion:
      case kTypeSingleDeletion:
        deletions_++;
        break;
      case kTypeValue:
      case kTypeMerge:
      case kTypeWideColumnEntity:
      case kTypeValuePreferredSeqno:
        break;
      default:
        Refuse(ECOTONE_OUT_OF_RANGE, "entry " + std::to_string(entries_) + " is of kind " +
                                         std::to_string(packed & 0xff) + ", which no store of ours writes");
    }
    entries_++;
  }

  void Recount(const Slice& key, const Slice& value, EntryType kind, SequenceNumber sequence) const {
    // How long the file was then, nobody knows any more.
    if (!recount_->add(recount_->collector, Borrow(key), Borrow(value), static_cast<int32_t>(kind), sequence,
                       /*file_bytes=*/0)) {
      Refuse(ECOTONE_COUNT_MISMATCH, "entry " + std::to_string(entries_) + " could not be counted");
    }
  }

  void CountSequence(SequenceNumber sequence) {
    smallest_seqno_ = std::min(smallest_seqno_, sequence);
    largest_seqno_ = std::max(largest_seqno_, sequence);
  }

  void CountRangeDeletions() {
    const ReadOptions options(/*_verify_checksums=*/true, /*_fill_cache=*/false);
    std::unique_ptr<FragmentedRangeTombstoneIterator> fragment(file_.reader().NewRangeTombstoneIterator(options));
    if (fragment == nullptr || fragment->num_unfragmented_tombstones() == 0) {
      return;
    }
    for (fragment->SeekToFirst(); fragment->Valid(); fragment->Next()) {
      CountSequence(fragment->seq());
      if (range_begin_.empty() && range_end_.empty()) {
        range_begin_ = fragment->start_key().ToString();
      }
      if (Slice(range_end_).compare(fragment->end_key()) < 0) {
        range_end_ = fragment->end_key().ToString();
      }
      if (recount_ != nullptr) {
        Recount(fragment->start_key(), fragment->end_key(), kEntryRangeDeletion, fragment->seq());
      }
    }
    range_deletions_ = fragment->num_unfragmented_tombstones();
    deletions_ += range_deletions_;
    entries_ += range_deletions_;
    range_deletion_bytes_ = fragment->total_tombstone_payload_bytes();
  }

  // What was counted against what the table says of itself.
  void CheckCounts() const {
    const TableProperties& properties = file_.properties();
    Same("entries", entries_, properties.num_entries);
    Same("deletions", deletions_, properties.num_deletions);
    Same("range deletions", range_deletions_, properties.num_range_deletions);
    Same("bytes of keys and values", point_bytes_ + range_deletion_bytes_,
         properties.raw_key_size + properties.raw_value_size);
  }

  static void Same(const char* what, uint64_t counted, uint64_t claimed) {
    if (counted != claimed) {
      Refuse(ECOTONE_COUNT_MISMATCH, std::to_string(counted) + " " + what + " were counted, the table claims " +
                                         std::to_string(claimed));
    }
  }

  // A block of data is some KiB; reading this much at a time keeps the disk busy and the calls few.
  static constexpr size_t kReadAhead = 512 << 10;

  TableFile file_;
  // Becomes true when nobody wants to know any more.
  const bool* const stop_;
  // Null where nothing is recounted.
  const ecotone_recount* const recount_;
  UniqueId64x2 unique_id_ = kNullUniqueId64x2;

  uint64_t entries_ = 0;
  uint64_t deletions_ = 0;
  uint64_t range_deletions_ = 0;
  uint64_t point_bytes_ = 0;
  uint64_t range_deletion_bytes_ = 0;
  SequenceNumber smallest_seqno_ = kMaxSequenceNumber;
  SequenceNumber largest_seqno_ = 0;
  // First and last entry as internal keys; empty in a table of range deletions only.
  std::string first_;
  std::string last_;
  // What the range deletions span together.
  std::string range_begin_;
  std::string range_end_;
};

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_read_table(ecotone_bytes path, const bool* stop, const ecotone_recount* recount,
                                           ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    try {
      ecotone::Table table(ecotone::String(path), stop, recount);
      table.Read();
      ecotone::Give(table.Summary().data(), out);
      return ecotone_code{ECOTONE_OK};
    } catch (const ecotone::Fault& fault) {
      ecotone::Give(fault.what, out);
      return fault.code;
    }
  });
}
