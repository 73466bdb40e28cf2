// The tree of memtables by itself: the answers of a set, also to cursors in the midst of which
// others insert.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../cpp/memtable_tree.h"

namespace {

void Check(bool is_so, const char* what) {
  if (!is_so) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }
}

struct Decoded {
  std::string_view key;
  uint64_t sequence;
};

Decoded Decode(const char* entry) {
  const auto* byte = reinterpret_cast<const uint8_t*>(entry);
  size_t size = *byte & 127;
  for (unsigned shift = 7; *byte++ >= 128; shift += 7) {
    size |= static_cast<size_t>(*byte & 127) << shift;
  }
  Decoded decoded{{reinterpret_cast<const char*>(byte), size - 8}, 0};
  for (unsigned place = 0; place < 8; place++) {
    decoded.sequence |= static_cast<uint64_t>(byte[size - 8 + place]) << 8 * place;
  }
  return decoded;
}

// Called once at the next comparison: what others do in the midst of an operation.
std::function<void()> in_the_midst;

struct Order {
  int operator()(const char* a, const char* b) const {
    if (in_the_midst) {
      std::exchange(in_the_midst, nullptr)();
    }
    const Decoded one = Decode(a), other = Decode(b);
    if (const int keys = one.key.compare(other.key); keys != 0) {
      return keys;
    }
    return one.sequence > other.sequence ? -1 : one.sequence < other.sequence;
  }
};

struct Less {
  bool operator()(const char* a, const char* b) const { return Order()(a, b) < 0; }
};

struct Memory {
  std::vector<std::unique_ptr<max_align_t[]>>* blocks;

  void* operator()(size_t size) const {
    blocks->push_back(std::make_unique<max_align_t[]>(size / sizeof(max_align_t) + 1));
    return blocks->back().get();
  }
};

using Tree = ecotone::MemtableTree<Order, Memory>;

// A tree, what should be in it, and all memory.
class Place {
  // Before the tree, which takes memory as soon as it is made.
  std::vector<std::unique_ptr<max_align_t[]>> blocks_;
  std::vector<std::unique_ptr<std::string>> entries_;

 public:
  Tree tree{Order{}, Memory{&blocks_}};
  std::set<const char*, Less> model;

  const char* Entry(const std::string& key, uint64_t sequence) {
    std::string bytes;
    for (size_t size = key.size() + 8;; size >>= 7) {
      bytes.push_back(static_cast<char>(size < 128 ? size : (size & 127) | 128));
      if (size < 128) {
        break;
      }
    }
    bytes += key;
    for (unsigned place = 0; place < 8; place++) {
      bytes.push_back(static_cast<char>(sequence >> 8 * place));
    }
    entries_.push_back(std::make_unique<std::string>(std::move(bytes)));
    return entries_.back()->data();
  }

  void Insert(const std::string& key, uint64_t sequence) {
    const char* entry = Entry(key, sequence);
    Check(tree.Insert(entry) == model.insert(entry).second, "only what is there is refused");
  }
};

std::string Number(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%08lu", static_cast<unsigned long>(number));
  return text;
}

uint64_t Random(uint64_t* state) {
  *state = *state * 6364136223846793005 + 1442695040888963407;
  return *state >> 33;
}

void AnswersAsASet() {
  using MakeKey = std::string (*)(uint64_t* state, uint64_t number);
  const MakeKey kinds[] = {
      [](uint64_t* state, uint64_t) { return std::to_string(Random(state)); },
      [](uint64_t*, uint64_t number) { return "ascending" + Number(number); },
      [](uint64_t*, uint64_t number) { return "descending" + Number(10000000 - number); },
      [](uint64_t* state, uint64_t) { return std::string(Random(state) % 4, 'a'); },
      [](uint64_t* state, uint64_t) { return std::string(Random(state) % 12, '\0') + (Random(state) % 2 ? "" : "b"); },
      [](uint64_t* state, uint64_t) { return std::string(160, 'x') + Number(Random(state) % 50000); },
  };
  uint64_t state = 1;
  for (const MakeKey make : kinds) {
    Place place;
    Tree::Cursor cursor(&place.tree);
    cursor.SeekToFirst();
    Check(cursor.entry() == nullptr, "nothing is in an empty tree");
    cursor.SeekToLast();
    Check(cursor.entry() == nullptr, "nor at its end");
    for (uint64_t number = 0; number < 5000; number++) {
      place.Insert(make(&state, number), Random(&state) % 8 == 0 ? 0 : number);
      if (number > 40 && number % 500 != 0) {
        continue;
      }
      cursor.SeekToFirst();
      for (const char* entry : place.model) {
        Check(cursor.entry() == entry, "forwards");
        cursor.Next();
      }
      Check(cursor.entry() == nullptr, "the end");
      cursor.SeekToLast();
      for (auto entry = place.model.rbegin(); entry != place.model.rend(); ++entry) {
        Check(cursor.entry() == *entry, "backwards");
        cursor.Prev();
      }
      Check(cursor.entry() == nullptr, "the begin");
      for (int round = 0; round < 200; round++) {
        const char* target = place.Entry(make(&state, Random(&state) % (number + 1)), Random(&state) % (number + 1));
        const auto after = place.model.lower_bound(target);
        cursor.Seek(target);
        Check(cursor.entry() == (after == place.model.end() ? nullptr : *after), "seek");
        const auto behind = place.model.upper_bound(target);
        cursor.SeekForPrev(target);
        Check(cursor.entry() == (behind == place.model.begin() ? nullptr : *std::prev(behind)), "seek for prev");
        const double share = place.tree.ShareBefore(target);
        Check(share >= 0 && share <= 1, "a share");
      }
    }
    Check(place.tree.size() == place.model.size(), "the number of entries");
  }
}

// In the midst of a search, at its first comparison, so much is inserted that the leaf it looks at
// has got neighbours and those others. What was there before is found all the same, and nothing
// before the target.
void SearchInTheMidst(uint64_t filled, uint64_t inserted, bool descends, bool is_beyond) {
  const auto key = [&](uint64_t number) { return "alike-for-long-" + Number(descends ? 1000000 - number : number); };
  for (uint64_t which = 0; which < filled + 4; which++) {
    Place place;
    for (uint64_t number = 0; number < filled; number++) {
      place.Insert(key(10 * number), 1);
    }
    uint64_t done = 0;
    const auto insert_much = [&] {
      for (const uint64_t end = done + inserted; done < end; done++) {
        if (is_beyond) {
          // Out of its order, so that leaves are split in their midst.
          place.Insert(key(10 * filled + done * 7919 % 40009), done);
        } else {
          place.Insert(key(10 * (filled + done)), 1);
          place.Insert(key(10 * done + 5), 1);
        }
      }
    };
    const auto search = [&](const auto& what) {
      in_the_midst = insert_much;
      what();
      in_the_midst = nullptr;
    };
    Tree::Cursor cursor(&place.tree);
    if (which >= filled) {
      // Beyond all that was there, among what is inserted.
      const char* far = place.Entry(key(10 * filled + (which - filled) * 10007 + 2), 1);
      search([&] { cursor.Seek(far); });
      Check(cursor.entry() == nullptr || Order()(cursor.entry(), far) >= 0, "seek stands before its target");
      continue;
    }
    const std::vector<const char*> before(place.model.begin(), place.model.end());
    const char* entry = before[which];
    cursor.Seek(entry);
    search([&] { cursor.Next(); });
    Check(cursor.entry() == nullptr || Order()(cursor.entry(), entry) > 0, "next goes backwards");
    if (which + 1 < filled) {
      Check(cursor.entry() != nullptr && Order()(cursor.entry(), before[which + 1]) <= 0, "next leaves out what was there");
    }
    search([&] { cursor.SeekForPrev(entry); });
    Check(cursor.entry() == entry, "seek for prev");
    search([&] { cursor.Seek(entry); });
    Check(cursor.entry() == entry, "seek");
    search([&] { cursor.Prev(); });
    Check(cursor.entry() == nullptr || Order()(cursor.entry(), entry) < 0, "prev goes forwards");
    Check(which == 0 || (cursor.entry() != nullptr && Order()(cursor.entry(), before[which - 1]) >= 0), "prev leaves out");
  }
}

void SearchesInTheMidstOfWhichMuchIsInserted() {
  for (const uint64_t filled : {1, 7, 8, 14, 15, 16, 29, 30, 31, 60, 200}) {
    for (const uint64_t inserted : {1, 8, 20, 60, 300}) {
      for (const bool descends : {false, true}) {
        SearchInTheMidst(filled, inserted, descends, false);
        SearchInTheMidst(filled, inserted, descends, true);
      }
    }
  }
}

}  // namespace

int main() {
  AnswersAsASet();
  SearchesInTheMidstOfWhichMuchIsInserted();
}
