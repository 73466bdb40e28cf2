// Metadata of the live tables of a store.

#include <algorithm>
#include <unordered_set>

#include "db/column_family.h"
#include "db/db_impl/db_impl.h"
#include "file/filename.h"
#include "mirror.h"
#include "record.h"
#include "rocksdb/metadata.h"
#include "rocksdb/table_properties.h"

using ecotone::Record;
using namespace ROCKSDB_NAMESPACE;

namespace {

// The tables of a family as they are now, for as long as this lives: those that are live, and those
// that who begins to read may still be given, since what has been installed becomes visible a
// little later. Where this is the last to name a table, the next job that looks for obsolete files
// removes it.
class LiveVersions {
 public:
  LiveVersions(void* db, void* family)
      : mutex_(static_cast<DBImpl*>(static_cast<ecotone::DbHandle*>(db)->rep->GetRootDB())->mutex()),
        family_(static_cast<ColumnFamilyHandleImpl*>(static_cast<ecotone::FamilyHandle*>(family)->rep)->cfd()) {
    InstrumentedMutexLock lock(mutex_);
    versions_[0] = family_->current();
    // None while the store is being opened.
    const SuperVersion* visible = family_->GetSuperVersion();
    versions_[1] = visible == nullptr || visible->current == versions_[0] ? nullptr : visible->current;
    for (Version* version : versions_) {
      if (version != nullptr) {
        version->Ref();
      }
    }
  }
  ~LiveVersions() {
    InstrumentedMutexLock lock(mutex_);
    for (Version* version : versions_) {
      if (version != nullptr) {
        version->Unref();
      }
    }
  }
  LiveVersions(const LiveVersions&) = delete;
  LiveVersions& operator=(const LiveVersions&) = delete;

  // Calls `body`, which returns a status, with each table once and a version that has it.
  template <typename Body>
  Status EachTable(Body body) const {
    std::unordered_set<uint64_t> seen;
    for (const Version* version : versions_) {
      if (version == nullptr) {
        continue;
      }
      const VersionStorageInfo* tables = version->storage_info();
      for (int level = 0; level < tables->num_levels(); level++) {
        for (const FileMetaData* table : tables->LevelFiles(level)) {
          if (versions_[1] != nullptr && !seen.insert(table->fd.GetNumber()).second) {
            continue;
          }
          const Status status = body(*version, *table);
          if (!status.ok()) {
            return status;
          }
        }
      }
    }
    return Status::OK();
  }

  std::string Path(const FileDescriptor& file) const {
    return TableFileName(family_->ioptions().cf_paths, file.GetNumber(), file.GetPathId());
  }

 private:
  InstrumentedMutex* mutex_;
  ColumnFamilyData* family_;
  Version* versions_[2];
};

}  // namespace

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

// GetLiveFilesMetaData makes five strings for each table of all families. All under the mutex, as
// there: what compactions say of tables may be read under it only, and who kept the version would
// have to see to it that files that it was the last to name are removed.
extern "C" ecotone_code ecotone_family_tables(void* db, void* family, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    Record found;
    uint64_t found_count = 0;
    {
      auto* root = static_cast<DBImpl*>(static_cast<ecotone::DbHandle*>(db)->rep->GetRootDB());
      auto* of = static_cast<ColumnFamilyHandleImpl*>(static_cast<ecotone::FamilyHandle*>(family)->rep);
      InstrumentedMutexLock lock(root->mutex());
      const VersionStorageInfo* tables = of->cfd()->current()->storage_info();
      for (int level = 0; level < tables->num_levels(); level++) {
        for (const FileMetaData* table : tables->LevelFiles(level)) {
          found.Number(table->fd.GetNumber())
              .Number(static_cast<uint64_t>(level))
              .Number(table->fd.GetFileSize())
              .Bytes(table->smallest.user_key().ToStringView())
              .Bytes(table->largest.user_key().ToStringView())
              .Number(table->num_entries)
              .Number(table->num_deletions)
              .Number(table->being_compacted ? 1 : 0);
          found_count++;
        }
      }
    }
    Record record;
    record.Number(found_count).Append(found);
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}

extern "C" ecotone_code ecotone_memtable_entries(void* db, void* family, ecotone_bytes first, ecotone_bytes last,
                                                 ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    // Its end is not in it: the least key behind `last`.
    const std::string behind = ecotone::String(last) + '\0';
    const std::string_view from = ecotone::View(first);
    uint64_t entries = 0;
    uint64_t bytes = 0;
    static_cast<ecotone::DbHandle*>(db)->rep->GetApproximateMemTableStats(
        static_cast<ecotone::FamilyHandle*>(family)->rep, Range(Slice(from.data(), from.size()), behind), &entries,
        &bytes);
    Record record;
    record.Number(entries);
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}

// RocksDB's own GetPropertiesOfAllTables asks all of them, and reads those again each time that are
// closed.
extern "C" ecotone_code ecotone_collected_properties(void* db, void* family, ecotone_bytes prefix,
                                                     const uint64_t* known, size_t known_count, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    const LiveVersions versions(db, family);
    Record found;
    uint64_t found_count = 0;
    const Status status = versions.EachTable([&](const Version& version, const FileMetaData& table) {
      const uint64_t number = table.fd.GetNumber();
      const std::string path = versions.Path(table.fd);
      Record pairs;
      uint64_t count = 0;
      uint64_t points = 0;
      if (!std::binary_search(known, known + known_count, number)) {
        std::shared_ptr<const TableProperties> properties;
        const Status read = version.GetTableProperties(ReadOptions(), &properties, &table, &path);
        if (!read.ok()) {
          return read;
        }
        points = properties->num_entries - std::min(properties->num_entries, properties->num_range_deletions);
        for (const auto& [name, value] : properties->user_collected_properties) {
          if (std::string_view(name).starts_with(ecotone::View(prefix))) {
            pairs.Bytes(name).Bytes(value);
            count++;
          }
        }
      }
      found.Bytes(path).Number(number).Number(points).Number(count).Append(pairs);
      found_count++;
      return Status::OK();
    });
    if (!status.ok()) {
      ecotone::Give(status.ToString(), out);
      return ecotone::CodeOf(status);
    }
    Record record;
    record.Number(found_count).Append(found);
    ecotone::Give(record.data(), out);
    return ecotone_code{ECOTONE_OK};
  });
}
