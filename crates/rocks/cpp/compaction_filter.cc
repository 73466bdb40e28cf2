// Lets a filter in Rust keep, remove or change the values that a compaction rewrites.

#include "rocksdb/compaction_filter.h"

#include "mirror.h"
#include "record.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

// The part that all filters share: it ends with the last options and the last store that use it.
class Factory : public CompactionFilterFactory {
 public:
  explicit Factory(const ecotone_filter_factory& calls) : calls_(calls) {}
  ~Factory() override { calls_.drop(calls_.state); }

  const char* Name() const override { return "EcotoneCompactionFilters"; }

  bool ShouldFilterTableFileCreation(TableFileCreationReason reason) const override {
    return reason == TableFileCreationReason::kCompaction;
  }

  std::unique_ptr<CompactionFilter> CreateCompactionFilter(const CompactionFilter::Context& context) override;

 private:
  const ecotone_filter_factory calls_;
};

// A failure in Rust ends the filtering, never the compaction: from then on everything is kept.
class Filter : public CompactionFilter {
 public:
  Filter(const ecotone_filter_factory& calls, void* filter) : calls_(calls), filter_(filter) {}
  ~Filter() override { Drop(); }

  const char* Name() const override { return "EcotoneCompactionFilter"; }

  // RocksDB refuses to compact with a filter that says otherwise.
  bool IgnoreSnapshots() const override { return true; }

  // Wide columns do not come this far: what calls this keeps them.
  Decision FilterV2(int level, const Slice& key, ValueType type, const Slice& value, std::string* new_value,
                    std::string* skip_until) const override {
    if (filter_ == nullptr || type != ValueType::kValue) {
      return Decision::kKeep;
    }
    ecotone_reply reply;
    switch (calls_.decide(filter_, static_cast<uint32_t>(level), Borrow(key), Borrow(value), &reply)) {
      case ECOTONE_FILTER_KEEP:
        return Decision::kKeep;
      case ECOTONE_FILTER_REMOVE:
        return Decision::kRemove;
      case ECOTONE_FILTER_CHANGE:
        *new_value = std::move(reply.text);
        return Decision::kChangeValue;
      default:
        Drop();
        return Decision::kKeep;
    }
  }

 private:
  void Drop() const {
    if (filter_ != nullptr) {
      calls_.filter_drop(filter_);
      filter_ = nullptr;
    }
  }

  // A copy: a filter outlives no factory in RocksDB today, but nothing promises that.
  const ecotone_filter_factory calls_;
  // RocksDB knows its filters as const only, and calls each from one thread.
  mutable void* filter_;
};

std::unique_ptr<CompactionFilter> Factory::CreateCompactionFilter(const CompactionFilter::Context& context) {
  void* filter = calls_.filter(calls_.state, context.column_family_id, context.input_start_level,
                               context.is_full_compaction, context.is_manual_compaction);
  if (filter == nullptr) {
    return nullptr;
  }
  std::unique_ptr<CompactionFilter> result(new (std::nothrow) Filter(calls_, filter));
  if (result == nullptr) {
    calls_.filter_drop(filter);
  }
  return result;
}

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_set_compaction_filter(void* options, const ecotone_filter_factory* factory,
                                                      ecotone_buffer* out) {
  bool taken = false;
  const ecotone_code code = ecotone::Contain(out, [&] {
    auto shared = std::make_shared<ecotone::Factory>(*factory);
    taken = true;
    static_cast<ecotone::OptionsHandle*>(options)->rep.compaction_filter_factory = std::move(shared);
    return ECOTONE_OK;
  });
  if (!taken) {
    factory->drop(factory->state);
  }
  return code;
}
