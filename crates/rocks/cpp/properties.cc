// Hands the entries of each table that RocksDB writes to a collector in Rust.

// Inlined: of each entry its key may be hashed.
#define XXH_INLINE_ALL
#include "util/xxhash.h"

#include "mirror.h"
#include "record.h"
#include "rocksdb/table_properties.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

// The part that all collectors share: it ends when the last table and the last options that use it
// are gone.
class Factory : public TablePropertiesCollectorFactory {
 public:
  explicit Factory(const ecotone_collector_factory& calls) : calls_(calls) {}
  ~Factory() override { calls_.drop(calls_.state); }

  const char* Name() const override { return "EcotoneTableCollectors"; }

  TablePropertiesCollector* CreateTablePropertiesCollector(Context context) override;

 private:
  const ecotone_collector_factory calls_;
};

// A failure in Rust ends the collection for this table, never the table: RocksDB sees success.
class Collector : public TablePropertiesCollector {
 public:
  Collector(const ecotone_collector_factory& calls, void* collector) : calls_(calls), collector_(collector) {}
  ~Collector() override { Drop(); }

  const char* Name() const override { return "EcotoneTableCollector"; }

  Status AddUserKey(const Slice& key, const Slice& value, EntryType type, SequenceNumber sequence,
                    uint64_t file_size) override {
    if (collector_ == nullptr) {
      return Status::OK();
    }
    if (left_ == 0) {
      left_ = calls_.entries_at_a_time;
      if (!calls_.begin(collector_, &passes_over_)) {
        Drop();
        return Status::OK();
      }
    }
    left_--;
    // Which keys come must not depend on who hashes them: XXH3 has been this since version 0.8 of
    // its library.
    if (passes_over_ != 0 && (XXH3_64bits(key.data(), key.size()) & passes_over_) != 0) {
      return Status::OK();
    }
    if (!calls_.add(collector_, Borrow(key), Borrow(value), static_cast<int32_t>(type), sequence, file_size)) {
      Drop();
    }
    return Status::OK();
  }

  Status Finish(UserCollectedProperties* properties) override {
    if (collector_ == nullptr) {
      return Status::OK();
    }
    ecotone_reply reply;
    const bool finished = calls_.finish(collector_, &reply);
    Drop();
    try {
      if (finished) {
        Read(reply.text, properties);
      }
    } catch (...) {
      // Memory is short: this table goes without its properties.
      properties->clear();
    }
    return Status::OK();
  }

  UserCollectedProperties GetReadableProperties() const override { return {}; }

 private:
  static void Read(std::string_view pairs, UserCollectedProperties* properties) {
    while (!pairs.empty()) {
      std::string name = Next(&pairs);
      (*properties)[std::move(name)] = Next(&pairs);
    }
  }

  static std::string Next(std::string_view* pairs) {
    uint64_t len = 0;
    for (int i = 0; i < 8; i++) {
      len |= static_cast<uint64_t>(static_cast<uint8_t>(pairs->at(i))) << (8 * i);
    }
    std::string bytes(pairs->substr(8, len));
    pairs->remove_prefix(8 + bytes.size());
    return bytes;
  }

  void Drop() {
    if (collector_ != nullptr) {
      calls_.collector_drop(collector_);
      collector_ = nullptr;
    }
  }

  // A copy: a table outlives no factory in RocksDB today, but nothing promises that.
  const ecotone_collector_factory calls_;
  void* collector_;
  // Entries until the collector is asked again, and what it said.
  uint32_t left_ = 0;
  uint64_t passes_over_ = 0;
};

TablePropertiesCollector* Factory::CreateTablePropertiesCollector(Context context) {
  void* collector = calls_.collector(calls_.state, context.column_family_id, context.level_at_creation);
  if (collector == nullptr) {
    return nullptr;
  }
  auto* result = new (std::nothrow) Collector(calls_, collector);
  if (result == nullptr) {
    calls_.collector_drop(collector);
  }
  return result;
}

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_add_table_collector(void* options, const ecotone_collector_factory* factory,
                                                    ecotone_buffer* out) {
  bool taken = false;
  const ecotone_code code = ecotone::Contain(out, [&] {
    auto shared = std::make_shared<ecotone::Factory>(*factory);
    taken = true;
    static_cast<ecotone::OptionsHandle*>(options)->rep.table_properties_collector_factories.push_back(
        std::move(shared));
    return ECOTONE_OK;
  });
  if (!taken) {
    factory->drop(factory->state);
  }
  return code;
}
