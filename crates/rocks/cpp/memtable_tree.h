// The order of a memtable's entries: a tree of nodes that hold fifteen entries each.
//
// RocksDB's skip list looks at one entry after the other, each somewhere else in memory: about
// twenty misses of the processor's caches for an insertion into a memtable of half a million. Here
// a node has the first distinguishing bytes of its keys side by side, so an insertion looks at some
// five places, all but the last of them in nodes that many insertions share.
//
// One writer at a time; any number of readers beside it, which never wait: neither for the writer,
// which may be stopped anywhere, nor for each other. Nothing is ever removed, and all memory is the
// memtable's arena.
//
// A node's entries stand in slots in the order in which they came; one word tells their order by
// key and how many there are (after Masstree: Mao, Kohler, Morris, EuroSys 2012, section 4.6.2). An
// entry is inserted by filling a free slot and then storing a new word. A full node keeps its lower
// half; the upper goes into a new node to its right, in these steps: the new node is complete; its
// parent names it; the old one links to it; the old one's version becomes odd; its word tells the
// lower half only; its version becomes even. Only then are slots filled anew. Therefore:
//
// - Who reads a node and finds its version unchanged afterwards has read slots that nobody filled
//   anew. That says nothing of its range: the last leaf becomes full and gets a neighbour without
//   another version, where keys come in their order.
// - Who takes a child's version and then finds its parent unchanged has a child that holds its key:
//   a split is told in the parent first. With an odd version it may use either word.
// - Whoever finds something changed begins again at the root. Something was inserted then, so all
//   together go on.
//
// Keys are compared by eight bytes behind those that all keys of a node's range have in common
// (`skip`), and only where these are equal by the comparator. So user keys must be ordered
// bytewise. Of the first and last node of a level one end of the range is open: there nothing is in
// common, and keys that are alike for long are compared whole.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace ecotone {

// `Order`: `int operator()(const char* a, const char* b) const`, of entries as RocksDB's
// MemTable::Add encodes them (length of the internal key as a varint, user key, eight bytes of
// sequence number and type, value). `Arena`: `void* operator()(size_t)`, memory that is aligned for
// pointers and lives as long as the tree.
template <class Order, class Arena>
class MemtableTree {
 public:
  MemtableTree(Order order, Arena arena) : compare_(order), arena_(arena), root_(NewLeaf(0)) {}
  MemtableTree(const MemtableTree&) = delete;
  MemtableTree& operator=(const MemtableTree&) = delete;

  // Inserts `entry`, which stays where it is. `false`, and nothing is inserted: one that is equal
  // is there. For the one writer.
  bool Insert(const char* entry);

  size_t size() const { return size_.load(std::memory_order_relaxed); }

  // Roughly the share of entries before `target`, by how full the nodes on the way to it are.
  double ShareBefore(const char* target) const;

  class Cursor;

 private:
  static constexpr size_t kSlots = 15;
  // A node has at least seven below it when it is split: seven to the power of it is beyond any
  // memory.
  static constexpr size_t kLevels = 16;
  // Of the processor's caches, in bytes. Where lines are longer some are asked for twice.
  static constexpr size_t kLine = 64;

  struct Node {
    Node(uint32_t own_skip, uint32_t own_level) : skip(own_skip), level(own_level) {}

    // The number of entries in the lowest four bits, then the slot of each, then the free slots.
    std::atomic<uint64_t> order{0xEDCBA98765432100};
    std::atomic<uint32_t> version{0};
    // Bytes that all user keys of the range have in common, by what its fences were when it was
    // made: ranges only become smaller.
    const uint32_t skip;
    // 0: a leaf.
    const uint32_t level;
    // The leaf to the right.
    std::atomic<Node*> next{nullptr};
    std::array<std::atomic<uint64_t>, kSlots> heads;
    // Of a leaf the entries; else of each child the least that it held when it was made, and
    // nothing of the first of a level.
    std::array<std::atomic<const char*>, kSlots> entries;
  };

  struct Inner : Node {
    using Node::Node;
    std::array<std::atomic<Node*>, kSlots> children;
  };

  struct Key {
    const char* data;
    size_t size;
  };

  // Where a child stands in its parent.
  struct Step {
    Inner* node;
    size_t place;
  };

  static size_t Count(uint64_t order) { return order & 15; }
  static size_t Slot(uint64_t order, size_t place) { return (order >> (4 + 4 * place)) & 15; }

  // The first free slot comes to stand at `place`.
  static uint64_t WithPlace(uint64_t order, size_t place) {
    const size_t count = Count(order);
    const uint64_t slot = Slot(order, count);
    const uint64_t below = (uint64_t{1} << (4 + 4 * place)) - 1;
    // Of the places from `place` to `count`, which all move by one.
    const uint64_t moved_range = count + 1 == kSlots ? ~uint64_t{0} : (uint64_t{1} << (8 + 4 * count)) - 1;
    const uint64_t moved = ((order & ~below) << 4) & moved_range & ~(below << 4 | 15);
    return ((order & below) | slot << (4 + 4 * place) | moved | (order & ~moved_range)) + 1;
  }

  static uint64_t WithCount(uint64_t order, size_t count) { return (order & ~uint64_t{15}) | count; }

  static Key UserKey(const char* entry) {
    const auto* byte = reinterpret_cast<const uint8_t*>(entry);
    uint32_t size = *byte & 127;
    for (unsigned shift = 7; *byte++ >= 128; shift += 7) {
      size |= static_cast<uint32_t>(*byte & 127) << shift;
    }
    return {reinterpret_cast<const char*>(byte), size - 8};
  }

  // Eight bytes of the key as a number that is ordered as they are; what is missing counts as
  // zeros.
  static uint64_t Head(Key key, size_t skip) {
    uint64_t head = 0;
    if (key.size >= skip + 8) {
      std::memcpy(&head, key.data + skip, 8);
    } else if (key.size > skip) {
      std::memcpy(&head, key.data + skip, key.size - skip);
    }
    if constexpr (std::endian::native == std::endian::little) {
      head = __builtin_bswap64(head);
    }
    return head;
  }

  static uint32_t CommonPrefix(const char* low, const char* high) {
    if (low == nullptr || high == nullptr) {
      return 0;
    }
    const Key one = UserKey(low), other = UserKey(high);
    const size_t least = std::min(one.size, other.size);
    return static_cast<uint32_t>(std::mismatch(one.data, one.data + least, other.data).first - one.data);
  }

  // Of a node on `level`.
  static void PrefetchNode(const Node* node, uint32_t level) {
    for (size_t at = 0, bytes = level > 0 ? sizeof(Inner) : sizeof(Node); at < bytes; at += kLine) {
      __builtin_prefetch(reinterpret_cast<const char*>(node) + at);
    }
  }

  // Of a leaf the entries, up to two lines of each, and the leaf behind it. Entries lie as they
  // came, not in their order: who goes through them would wait for each by itself.
  static void PrefetchEntries(const Node* leaf) {
    const uint64_t order = leaf->order.load(std::memory_order_acquire);
    for (size_t place = 0; place < Count(order); place++) {
      // Numbers: a short entry's second line may lie beyond the arena, where asking does no harm.
      const auto entry =
          reinterpret_cast<uintptr_t>(leaf->entries[Slot(order, place)].load(std::memory_order_acquire));
      __builtin_prefetch(reinterpret_cast<const void*>(entry));
      __builtin_prefetch(reinterpret_cast<const void*>(entry + kLine));
    }
    if (const Node* next = leaf->next.load(std::memory_order_acquire); next != nullptr) {
      PrefetchNode(next, 0);
    }
  }

  Node* NewLeaf(uint32_t skip) { return new (arena_(sizeof(Node))) Node(skip, 0); }
  Inner* NewInner(uint32_t skip, uint32_t level) { return new (arena_(sizeof(Inner))) Inner(skip, level); }

  static Node* Child(const Node* node, uint64_t order, size_t place) {
    return static_cast<const Inner*>(node)->children[Slot(order, place)].load(std::memory_order_acquire);
  }

  // The first place from `from` on whose entry is not before `target`, or, if `behind`, is behind
  // it.
  size_t Find(const Node* node, uint64_t order, const char* target, size_t from, bool behind) const;

  // The place of the child that holds `target`, or, if `before`, what is just before it.
  size_t FindChild(const Node* node, uint64_t order, const char* target, bool before) const {
    return Find(node, order, target, 1, !before) - 1;
  }

  // Fills a free slot, and then tells of it.
  static void FillSlot(Node* node, size_t place, uint64_t head, const char* entry, Node* child) {
    const uint64_t order = node->order.load(std::memory_order_relaxed);
    const size_t slot = Slot(order, Count(order));
    node->heads[slot].store(head, std::memory_order_release);
    node->entries[slot].store(entry, std::memory_order_release);
    if (child != nullptr) {
      static_cast<Inner*>(node)->children[slot].store(child, std::memory_order_release);
    }
    node->order.store(WithPlace(order, place), std::memory_order_release);
  }

  // Copies the entries of `node` from `from` on to `right`, which nobody knows yet.
  static void CopyUpper(const Node* node, uint64_t order, size_t from, Node* right) {
    for (size_t place = from; place < Count(order); place++) {
      const size_t slot = Slot(order, place);
      const char* entry = node->entries[slot].load(std::memory_order_relaxed);
      const uint64_t head = right->skip == node->skip ? node->heads[slot].load(std::memory_order_relaxed)
                                                      : Head(UserKey(entry), right->skip);
      FillSlot(right, place - from, head, entry, node->level > 0 ? Child(node, order, place) : nullptr);
    }
  }

  // The least entry to the right of what the last of `depth` steps led to; null where there is
  // none.
  static const char* UpperFence(const Step* path, size_t depth) {
    while (depth-- > 0) {
      const uint64_t order = path[depth].node->order.load(std::memory_order_relaxed);
      if (path[depth].place + 1 < Count(order)) {
        return path[depth].node->entries[Slot(order, path[depth].place + 1)].load(std::memory_order_relaxed);
      }
    }
    return nullptr;
  }

  // The `skip` of the node that a full one's upper part goes into, where its range is from `low` to
  // the upper fence of the path.
  static uint32_t SkipOfUpper(const Node* node, uint64_t order, const char* low, const Step* path, size_t depth) {
    const auto head = [=](size_t place) { return node->heads[Slot(order, place)].load(std::memory_order_relaxed); };
    // Any `skip` that holds for a wider range holds. While keys differ early in their heads these
    // serve, and no key need be looked at.
    if ((head(1) ^ head(kSlots - 1)) >> 32 != 0) {
      return node->skip;
    }
    return std::max(node->skip, CommonPrefix(low, UpperFence(path, depth)));
  }

  // `node` keeps its first `count` entries: the others are in a node that its parent names.
  static void KeepLower(Node* node, uint64_t order, size_t count) {
    const uint32_t version = node->version.load(std::memory_order_relaxed);
    node->version.store(version + 1, std::memory_order_release);
    node->order.store(WithCount(order, count), std::memory_order_release);
    node->version.store(version + 2, std::memory_order_release);
  }

  void InsertIntoLeaf(Node* leaf, size_t place, const char* entry, const Step* path, size_t depth);
  // Names `child`, whose least entry is `least`, to the right of what the last of `depth` steps led
  // to.
  void NameInParent(Node* child, const char* least, const Step* path, size_t depth);

  const Order compare_;
  const Arena arena_;
  std::atomic<Node*> root_;
  std::atomic<size_t> size_{0};
};

// Stands at an entry, or nowhere. Sees what was inserted before it was moved, and perhaps what is
// inserted meanwhile.
template <class Order, class Arena>
class MemtableTree<Order, Arena>::Cursor {
 public:
  explicit Cursor(const MemtableTree* tree) : tree_(tree) {}

  // The entry; null: nowhere.
  const char* entry() const { return entry_; }

  // To the first entry that is not before `target`.
  void Seek(const char* target) { Locate(target, false); }
  // Wants an entry.
  void Next();
  void Prev() { LocateBefore(entry_); }
  void SeekToFirst();
  // To the last entry that is not behind `target`.
  void SeekForPrev(const char* target);
  void SeekToLast() { LocateBefore(nullptr); }

 private:
  // To the leaf that holds `target`, or, if `before`, what is just before it; null stands behind
  // all.
  void Descend(const char* target, bool before);
  void Locate(const char* target, bool behind);
  void LocateBefore(const char* target);
  // To the least entry of the next leaf, if it is the first that is not before `target`, or, if
  // `behind`, is behind it. `false`: begin again.
  bool EnterNext(Node* leaf, const char* target, bool behind);
  // To `place` of the leaf, if the leaf is as it was.
  bool Stand(uint64_t order, size_t place);

  const MemtableTree* const tree_;
  const char* entry_ = nullptr;
  Node* leaf_ = nullptr;
  uint32_t version_ = 0;
  uint64_t order_ = 0;
  size_t place_ = 0;
};

template <class Order, class Arena>
size_t MemtableTree<Order, Arena>::Find(const Node* node, uint64_t order, const char* target, size_t from,
                                        bool behind) const {
  const uint64_t head = Head(UserKey(target), node->skip);
  size_t end = Count(order);
  while (from < end) {
    const size_t place = (from + end) / 2, slot = Slot(order, place);
    const uint64_t own = node->heads[slot].load(std::memory_order_acquire);
    bool is_before = own < head;
    if (own == head) {
      const int comparison = compare_(node->entries[slot].load(std::memory_order_acquire), target);
      is_before = behind ? comparison <= 0 : comparison < 0;
    }
    if (is_before) {
      from = place + 1;
    } else {
      end = place;
    }
  }
  return from;
}

template <class Order, class Arena>
bool MemtableTree<Order, Arena>::Insert(const char* entry) {
  Step path[kLevels];
  size_t depth = 0;
  Node* node = root_.load(std::memory_order_relaxed);
  while (node->level > 0) {
    const uint64_t order = node->order.load(std::memory_order_relaxed);
    const size_t place = FindChild(node, order, entry, false);
    path[depth++] = {static_cast<Inner*>(node), place};
    const uint32_t level = node->level - 1;
    node = Child(node, order, place);
    PrefetchNode(node, level);
  }
  const uint64_t order = node->order.load(std::memory_order_relaxed);
  const size_t place = Find(node, order, entry, 0, false);
  if (place < Count(order)) {
    const size_t slot = Slot(order, place);
    if (node->heads[slot].load(std::memory_order_relaxed) == Head(UserKey(entry), node->skip) &&
        compare_(node->entries[slot].load(std::memory_order_relaxed), entry) == 0) {
      return false;
    }
  }
  InsertIntoLeaf(node, place, entry, path, depth);
  size_.store(size_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return true;
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::InsertIntoLeaf(Node* leaf, size_t place, const char* entry, const Step* path,
                                                size_t depth) {
  const uint64_t order = leaf->order.load(std::memory_order_relaxed);
  const auto put = [entry](Node* into, size_t at) { FillSlot(into, at, Head(UserKey(entry), into->skip), entry, nullptr); };
  if (Count(order) < kSlots) {
    put(leaf, place);
    return;
  }
  Node* next = leaf->next.load(std::memory_order_relaxed);
  // Keys that come in their order leave full leaves behind.
  const size_t kept = next == nullptr && place == kSlots ? kSlots : kSlots / 2 + 1;
  const bool is_upper = place >= kept;
  const char* least =
      place == kept ? entry : leaf->entries[Slot(order, kept)].load(std::memory_order_relaxed);
  Node* right = NewLeaf(SkipOfUpper(leaf, order, least, path, depth));
  CopyUpper(leaf, order, kept, right);
  if (is_upper) {
    put(right, place - kept);
  }
  right->next.store(next, std::memory_order_relaxed);
  NameInParent(right, least, path, depth);
  leaf->next.store(right, std::memory_order_release);
  if (kept < kSlots) {
    KeepLower(leaf, order, kept);
  }
  if (!is_upper) {
    put(leaf, place);
  }
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::NameInParent(Node* child, const char* least, const Step* path, size_t depth) {
  const auto put = [=](Node* into, size_t at) { FillSlot(into, at, Head(UserKey(least), into->skip), least, child); };
  if (depth == 0) {
    Node* old = root_.load(std::memory_order_relaxed);
    Inner* root = NewInner(0, old->level + 1);
    FillSlot(root, 0, 0, nullptr, old);
    put(root, 1);
    root_.store(root, std::memory_order_release);
    return;
  }
  const auto [parent, child_place] = path[depth - 1];
  const size_t place = child_place + 1;
  const uint64_t order = parent->order.load(std::memory_order_relaxed);
  if (Count(order) < kSlots) {
    put(parent, place);
    return;
  }
  // As for leaves; here the new one never becomes the first of its node.
  const size_t kept = place == kSlots ? kSlots - 1 : kSlots / 2 + 1;
  const bool is_upper = place > kept;
  const char* least_right = parent->entries[Slot(order, kept)].load(std::memory_order_relaxed);
  Inner* right = NewInner(SkipOfUpper(parent, order, least_right, path, depth - 1), parent->level);
  CopyUpper(parent, order, kept, right);
  if (is_upper) {
    put(right, place - kept);
  }
  NameInParent(right, least_right, path, depth - 1);
  KeepLower(parent, order, kept);
  if (!is_upper) {
    put(parent, place);
  }
}

template <class Order, class Arena>
double MemtableTree<Order, Arena>::ShareBefore(const char* target) const {
  double before = 0, width = 1;
  const Node* node = root_.load(std::memory_order_acquire);
  while (true) {
    const uint64_t order = node->order.load(std::memory_order_acquire);
    const size_t count = Count(order);
    if (count == 0) {
      return before;
    }
    const size_t place = node->level > 0 ? FindChild(node, order, target, false) : Find(node, order, target, 0, false);
    before += width * static_cast<double>(place) / static_cast<double>(count);
    width /= static_cast<double>(count);
    if (node->level == 0) {
      return before;
    }
    node = Child(node, order, place);
  }
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::Descend(const char* target, bool before) {
  while (true) {
    Node* node = tree_->root_.load(std::memory_order_acquire);
    uint32_t version = node->version.load(std::memory_order_acquire);
    if (tree_->root_.load(std::memory_order_acquire) != node) {
      continue;
    }
    bool has_changed = false;
    while (node->level > 0 && !has_changed) {
      const uint64_t order = node->order.load(std::memory_order_acquire);
      const size_t place = target == nullptr ? Count(order) - 1 : tree_->FindChild(node, order, target, before);
      Node* child = Child(node, order, place);
      PrefetchNode(child, node->level - 1);
      const uint32_t child_version = child->version.load(std::memory_order_acquire);
      has_changed = node->version.load(std::memory_order_acquire) != version ||
                    node->order.load(std::memory_order_acquire) != order;
      node = child;
      version = child_version;
    }
    if (!has_changed) {
      leaf_ = node;
      version_ = version;
      return;
    }
  }
}

template <class Order, class Arena>
bool MemtableTree<Order, Arena>::Cursor::Stand(uint64_t order, size_t place) {
  const char* entry = leaf_->entries[Slot(order, place)].load(std::memory_order_acquire);
  if (leaf_->version.load(std::memory_order_acquire) != version_) {
    return false;
  }
  entry_ = entry;
  order_ = order;
  place_ = place;
  return true;
}

template <class Order, class Arena>
bool MemtableTree<Order, Arena>::Cursor::EnterNext(Node* leaf, const char* target, bool behind) {
  if (leaf == nullptr) {
    entry_ = nullptr;
    return true;
  }
  leaf_ = leaf;
  version_ = leaf->version.load(std::memory_order_acquire);
  const uint64_t order = leaf->order.load(std::memory_order_acquire);
  // A leaf that has one to its left was made with an entry, and keeps its least.
  const int comparison = tree_->compare_(leaf->entries[Slot(order, 0)].load(std::memory_order_acquire), target);
  // Otherwise so much was inserted that the target is in this leaf, or beyond it. That cannot be
  // looked for here: heads of a leaf whose range it is not in say nothing. The root leads to it,
  // since parents name a leaf before others link to it.
  return (behind ? comparison > 0 : comparison >= 0) && Stand(order, 0);
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::Locate(const char* target, bool behind) {
  while (true) {
    Descend(target, false);
    const uint64_t order = leaf_->order.load(std::memory_order_acquire);
    const size_t place = tree_->Find(leaf_, order, target, 0, behind);
    if (place < Count(order)) {
      if (Stand(order, place)) {
        return;
      }
      continue;
    }
    Node* next = leaf_->next.load(std::memory_order_acquire);
    if (leaf_->version.load(std::memory_order_acquire) == version_ && EnterNext(next, target, behind)) {
      return;
    }
  }
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::LocateBefore(const char* target) {
  while (true) {
    Descend(target, true);
    const uint64_t order = leaf_->order.load(std::memory_order_acquire);
    const size_t place = target == nullptr ? Count(order) : tree_->Find(leaf_, order, target, 0, false);
    if (place > 0) {
      if (Stand(order, place - 1)) {
        return;
      }
    } else if (leaf_->version.load(std::memory_order_acquire) == version_) {
      // The first leaf: any other holds its least, which is before the target.
      entry_ = nullptr;
      return;
    }
  }
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::Next() {
  const char* from = entry_;
  const uint64_t order = leaf_->order.load(std::memory_order_acquire);
  // With another version the places mean nothing, which `Stand` and the check below find; all slots
  // that a word names are filled, so until then nothing worse is read than a wrong entry.
  const size_t place = order == order_ ? place_ + 1 : tree_->Find(leaf_, order, from, 0, true);
  if (place < Count(order)) {
    if (Stand(order, place)) {
      return;
    }
  } else {
    Node* next = leaf_->next.load(std::memory_order_acquire);
    if (next != nullptr) {
      PrefetchEntries(next);
    }
    if (leaf_->version.load(std::memory_order_acquire) == version_ && EnterNext(next, from, true)) {
      return;
    }
  }
  Locate(from, true);
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::SeekToFirst() {
  // The first leaf stays the first, and its least place too.
  Node* node = tree_->root_.load(std::memory_order_acquire);
  while (node->level > 0) {
    node = Child(node, node->order.load(std::memory_order_acquire), 0);
  }
  while (true) {
    leaf_ = node;
    version_ = node->version.load(std::memory_order_acquire);
    const uint64_t order = node->order.load(std::memory_order_acquire);
    if (Count(order) == 0) {
      entry_ = nullptr;
      return;
    }
    if (Stand(order, 0)) {
      return;
    }
  }
}

template <class Order, class Arena>
void MemtableTree<Order, Arena>::Cursor::SeekForPrev(const char* target) {
  Seek(target);
  if (entry_ == nullptr || tree_->compare_(entry_, target) > 0) {
    LocateBefore(target);
  }
}

}  // namespace ecotone
