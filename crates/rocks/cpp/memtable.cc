// The tree of memtable_tree.h as a memtable of RocksDB.

#include <cassert>
#include <functional>
#include <memory>
#include <string>

#include "db/memtable.h"
#include "memory/arena.h"
#include "memtable_tree.h"
#include "mirror.h"
#include "record.h"
#include "rocksdb/comparator.h"
#include "rocksdb/memtablerep.h"
#include "shim.h"
#include "util/coding.h"

namespace ecotone {
namespace {

using namespace ROCKSDB_NAMESPACE;

struct Order {
  const MemTable::KeyComparator* compare;

  int operator()(const char* a, const char* b) const { return (*compare)(a, b); }
};

struct Memory {
  Allocator* allocator;

  void* operator()(size_t size) const { return allocator->AllocateAligned(size); }
};

using Tree = MemtableTree<Order, Memory>;
using EntryCheck = std::function<Status(const char* entry, bool allow_data_in_errors)>;

// What RocksDB asks for with paranoid_memory_checks or checksums of memtable entries; nothing of
// ours turns those on.
Status Checked(const char* entry, bool allow_data_in_errors, const EntryCheck& check) {
  return entry != nullptr && check ? check(entry, allow_data_in_errors) : Status::OK();
}

Status InOrder(const Order& order, const char* low, const char* high) {
  return low == nullptr || high == nullptr || order(low, high) < 0
             ? Status::OK()
             : Status::Corruption("entries of a memtable are out of order");
}

// The form in which entries and those who look for them are compared.
const char* Encoded(const Slice& internal_key, std::string* into) {
  into->clear();
  PutLengthPrefixedSlice(into, internal_key);
  return into->data();
}

class TreeIterator final : public MemTableRep::Iterator {
 public:
  TreeIterator(const Tree* tree, const Order& order) : order_(order), cursor_(tree) {}

  bool Valid() const override { return cursor_.entry() != nullptr; }
  const char* key() const override { return cursor_.entry(); }
  void Next() override { cursor_.Next(); }
  void Prev() override { cursor_.Prev(); }
  void Seek(const Slice& internal_key, const char* memtable_key) override {
    cursor_.Seek(memtable_key != nullptr ? memtable_key : Encoded(internal_key, &target_));
  }
  void SeekForPrev(const Slice& internal_key, const char* memtable_key) override {
    cursor_.SeekForPrev(memtable_key != nullptr ? memtable_key : Encoded(internal_key, &target_));
  }
  void SeekToFirst() override { cursor_.SeekToFirst(); }
  void SeekToLast() override { cursor_.SeekToLast(); }

  Status SeekAndValidate(const Slice& internal_key, const char* memtable_key, bool allow_data_in_errors, bool,
                         const EntryCheck& check) override {
    Seek(internal_key, memtable_key);
    return Checked(cursor_.entry(), allow_data_in_errors, check);
  }
  Status NextAndValidate(bool) override {
    const char* from = cursor_.entry();
    cursor_.Next();
    return InOrder(order_, from, cursor_.entry());
  }
  Status PrevAndValidate(bool) override {
    const char* from = cursor_.entry();
    cursor_.Prev();
    return InOrder(order_, cursor_.entry(), from);
  }

 private:
  const Order order_;
  Tree::Cursor cursor_;
  std::string target_;
};

class TreeMemtable final : public MemTableRep {
 public:
  TreeMemtable(const MemTable::KeyComparator& compare, Allocator* allocator)
      : MemTableRep(allocator), order_{&compare}, tree_(order_, Memory{allocator}) {}

  void Insert(KeyHandle handle) override {
    [[maybe_unused]] const bool is_new = tree_.Insert(static_cast<char*>(handle));
    assert(is_new);
  }
  bool InsertKey(KeyHandle handle) override { return tree_.Insert(static_cast<char*>(handle)); }
  bool InsertKeyWithHint(KeyHandle handle, void**) override { return InsertKey(handle); }

  bool Contains(const char* key) const override {
    Tree::Cursor cursor(&tree_);
    cursor.Seek(key);
    return cursor.entry() != nullptr && order_(cursor.entry(), key) == 0;
  }

  void Get(const LookupKey& key, void* argument, bool (*callback)(void* argument, const char* entry)) override {
    Tree::Cursor cursor(&tree_);
    cursor.Seek(key.memtable_key().data());
    while (cursor.entry() != nullptr && callback(argument, cursor.entry())) {
      cursor.Next();
    }
  }

  Status GetAndValidate(const LookupKey& key, void* argument, bool (*callback)(void* argument, const char* entry),
                        bool allow_data_in_errors, bool, const EntryCheck& check) override {
    TreeIterator iterator(&tree_, order_);
    Status status = iterator.SeekAndValidate(Slice(), key.memtable_key().data(), allow_data_in_errors, true, check);
    while (status.ok() && iterator.Valid() && callback(argument, iterator.key())) {
      status = iterator.NextAndValidate(allow_data_in_errors);
      if (status.ok()) {
        status = Checked(iterator.Valid() ? iterator.key() : nullptr, allow_data_in_errors, check);
      }
    }
    return status;
  }

  uint64_t ApproximateNumEntries(const Slice& begin, const Slice& end) override {
    std::string encoded;
    const double from = tree_.ShareBefore(Encoded(begin, &encoded));
    const double to = tree_.ShareBefore(Encoded(end, &encoded));
    return to > from ? static_cast<uint64_t>((to - from) * static_cast<double>(tree_.size())) : 0;
  }

  // All memory is the allocator's.
  size_t ApproximateMemoryUsage() override { return 0; }

  Iterator* GetIterator(Arena* arena) override {
    return arena == nullptr ? new TreeIterator(&tree_, order_)
                            : new (arena->AllocateAligned(sizeof(TreeIterator))) TreeIterator(&tree_, order_);
  }

 private:
  const Order order_;
  Tree tree_;
};

// Says that it is the skip list: nothing on disk depends on which it was, and so whoever reads the
// OPTIONS file of a store, a worker or a tool of RocksDB's, opens it with what every RocksDB has.
class TreeFactory final : public MemTableRepFactory {
 public:
  using MemTableRepFactory::CreateMemTableRep;

  const char* Name() const override { return SkipListFactory::kClassName(); }

  MemTableRep* CreateMemTableRep(const MemTableRep::KeyComparator& compare, Allocator* allocator,
                                 const SliceTransform* transform, Logger* logger) override {
    // RocksDB makes memtables with no other.
    const auto& known = static_cast<const MemTable::KeyComparator&>(compare);
    const Comparator* user_keys = known.comparator.user_comparator();
    if (user_keys != BytewiseComparator()) {
      return SkipListFactory().CreateMemTableRep(compare, allocator, transform, logger);
    }
    return new TreeMemtable(known, allocator);
  }

  bool IsInsertConcurrentlySupported() const override { return false; }
  bool CanHandleDuplicatedKey() const override { return true; }
};

}  // namespace
}  // namespace ecotone

extern "C" ecotone_code ecotone_use_memtable_tree(void* options, ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    auto& rep = static_cast<ecotone::OptionsHandle*>(options)->rep;
    rep.memtable_factory = std::make_shared<ecotone::TreeFactory>();
    rep.allow_concurrent_memtable_write = false;
    return ECOTONE_OK;
  });
}
