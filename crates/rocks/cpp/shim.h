// The C interface between this shim and Rust. src/ffi.rs holds the same declarations; change both
// together.
//
// Conventions. Every function returns an `ecotone_code`. What a function gives back lands in one
// `ecotone_buffer`: a record when the code is ECOTONE_OK (see record.h), else the error's message.
// What a callback gives back goes into the `ecotone_reply` it was handed: its result when it
// returns ECOTONE_OK, else the error's message. No function throws.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef int32_t ecotone_code;
enum {
  ECOTONE_OK = 0,
  // Of a hook only: it does not answer for this path.
  ECOTONE_NOT_MINE = 1,
  ECOTONE_NOT_FOUND = 2,
  ECOTONE_IO_ERROR = 3,
  ECOTONE_NO_SPACE = 4,
  ECOTONE_NOT_SUPPORTED = 5,
  ECOTONE_CORRUPTION = 6,
  ECOTONE_INVALID_ARGUMENT = 7,
  ECOTONE_TIMED_OUT = 8,
  // Of the verification of a table only.
  ECOTONE_NOT_A_TABLE = 20,
  ECOTONE_OUT_OF_RANGE = 21,
  ECOTONE_MISORDERED = 22,
  ECOTONE_COUNT_MISMATCH = 23,
  ECOTONE_FOREIGN = 24,
  ECOTONE_STOPPED = 25,
};

// Bytes from malloc that the receiver frees with ecotone_buffer_free.
typedef struct {
  uint8_t* data;
  size_t len;
} ecotone_buffer;
void ecotone_buffer_free(ecotone_buffer buffer);

// A borrowed run of bytes. `data` may be null when `len` is 0.
typedef struct {
  const uint8_t* data;
  size_t len;
} ecotone_bytes;

// Where a callback puts what it gives back.
typedef struct ecotone_reply ecotone_reply;
// False when memory is short.
bool ecotone_reply_append(ecotone_reply* reply, const uint8_t* data, size_t len);

// ---- file system ----

enum {
  ECOTONE_TAP_CREATED = 0,
  ECOTONE_TAP_APPENDED = 1,
  ECOTONE_TAP_TRUNCATED = 2,
  ECOTONE_TAP_SYNCED = 3,
  ECOTONE_TAP_CLOSED = 4,
  ECOTONE_TAP_RENAMED = 5,
  ECOTONE_TAP_LINKED = 6,
  ECOTONE_TAP_DELETED = 7,
  ECOTONE_TAP_DIRECTORY_CREATED = 8,
  ECOTONE_TAP_DIRECTORY_DELETED = 9,
  ECOTONE_TAP_DIRECTORY_SYNCED = 10,
};

typedef struct {
  int32_t kind;
  // Of a rename or a link: the old name.
  ecotone_bytes path;
  // Of a rename or a link: the new name.
  ecotone_bytes to;
  // Of an append: where the bytes begin. Of others: the length.
  uint64_t offset;
  ecotone_bytes data;
} ecotone_tap_event;

typedef struct {
  void* state;
  void (*drop)(void* state);
  bool has_tap;
  bool has_remap;
  bool has_remote;
  // Whether write-ahead logs are appended to through a window in memory.
  bool maps_wals;
  ecotone_code (*tap)(void* state, const ecotone_tap_event* event, ecotone_reply* reply);
  // ECOTONE_NOT_MINE: the path stays as it is. ECOTONE_OK: the reply holds the path to use.
  ecotone_code (*remap)(void* state, ecotone_bytes path, ecotone_reply* reply);
  ecotone_code (*remote_open)(void* state, ecotone_bytes path, void** file, uint64_t* len, ecotone_reply* reply);
  ecotone_code (*remote_size)(void* state, ecotone_bytes path, uint64_t* len, ecotone_reply* reply);
  // The reply holds the names, each ended by a NUL.
  ecotone_code (*remote_list)(void* state, ecotone_bytes directory, ecotone_reply* reply);
  ecotone_code (*file_read)(void* file, uint64_t offset, uint8_t* into, size_t len, size_t* read, ecotone_reply* reply);
  bool (*file_will_need)(void* file, uint64_t offset, uint64_t len);
  void (*file_drop)(void* file);
} ecotone_file_hooks;

// Takes `hooks` (and drops its state when it fails). `env` gets a rocksdb_env_t.
ecotone_code ecotone_env_new(const ecotone_file_hooks* hooks, void** env, ecotone_buffer* out);

// Whether this thread gets of local files (local_file.cc) what the kernel has in memory, and Busy
// of the rest. The answer is what was so before.
bool ecotone_waits_never(bool waits_never);

// Rust's: notes bytes of a file of this thread's that were not in memory. `fd` need be open during
// the call only.
void ecotone_note_missed(int32_t fd, uint64_t offset, uint64_t len);

// ---- table properties ----

typedef struct {
  void* state;
  // At least 1.
  uint32_t entries_at_a_time;
  void (*drop)(void* state);
  // Null: this table needs no collector.
  void* (*collector)(void* state, uint32_t column_family_id, int32_t level);
  // Before each `entries_at_a_time` entries. Of these, one whose key has one of the bits of
  // `passes_over` in its XXH3 does not come. False: as `add`.
  bool (*begin)(void* collector, uint64_t* passes_over);
  // False: the collector has failed and must not be called again, but dropped.
  bool (*add)(void* collector, ecotone_bytes key, ecotone_bytes value, int32_t kind, uint64_t sequence,
              uint64_t file_bytes);
  // The reply holds pairs of name and value, each as 8 bytes of length, least significant first,
  // and the bytes.
  bool (*finish)(void* collector, ecotone_reply* reply);
  void (*collector_drop)(void* collector);
} ecotone_collector_factory;

// Takes `factory` (and drops its state when it fails). `options` is a rocksdb_options_t.
ecotone_code ecotone_add_table_collector(void* options, const ecotone_collector_factory* factory, ecotone_buffer* out);

// ---- memtables ----

// Memtables are ordered by a tree instead of a skip list from now on. `options` is a
// rocksdb_options_t.
ecotone_code ecotone_use_memtable_tree(void* options, ecotone_buffer* out);

// ---- compaction filters ----

enum {
  ECOTONE_FILTER_KEEP = 0,
  ECOTONE_FILTER_REMOVE = 1,
  // The reply holds the new value.
  ECOTONE_FILTER_CHANGE = 2,
  // The filter has failed and must not be called again, but dropped. The entry is kept.
  ECOTONE_FILTER_FAILED = 3,
};

typedef struct {
  void* state;
  void (*drop)(void* state);
  // Null: this compaction needs no filter. A level below 0 is unknown.
  void* (*filter)(void* state, uint32_t column_family_id, int32_t input_level, bool is_full, bool is_manual);
  int32_t (*decide)(void* filter, uint32_t level, ecotone_bytes key, ecotone_bytes value, ecotone_reply* reply);
  void (*filter_drop)(void* filter);
} ecotone_filter_factory;

// Takes `factory` (and drops its state when it fails) in place of the one before. `options` is a
// rocksdb_options_t.
ecotone_code ecotone_set_compaction_filter(void* options, const ecotone_filter_factory* factory, ecotone_buffer* out);

// ---- live tables, remote compaction ----

// `db` is a rocksdb_t.
ecotone_code ecotone_live_tables(void* db, ecotone_buffer* out);

// Less of the tables of one family. `family` is a rocksdb_column_family_handle_t.
ecotone_code ecotone_family_tables(void* db, void* family, ecotone_buffer* out);

// About how many entries the memtable that is written to has from `first` to `last`.
ecotone_code ecotone_memtable_entries(void* db, void* family, ecotone_bytes first, ecotone_bytes last,
                                      ecotone_buffer* out);

// `family` is a rocksdb_column_family_handle_t. Only properties whose names begin with `prefix`.
ecotone_code ecotone_collected_properties(void* db, void* family, ecotone_bytes prefix, const uint64_t* known,
                                          size_t known_count, ecotone_buffer* out);

ecotone_code ecotone_parse_remote_input(ecotone_bytes input, ecotone_buffer* out);
ecotone_code ecotone_parse_remote_result(ecotone_bytes result, ecotone_buffer* out);
// `out` gets the result's bytes, not a record.
ecotone_code ecotone_remote_result_with_output_path(ecotone_bytes result, ecotone_bytes path, ecotone_buffer* out);

// ---- verification ----

// Sees the entries of a table, in the order of the table, as a collector did when it was written.
// Deletions of ranges come apart from the others, cut where they overlap.
typedef struct {
  void* collector;
  // False: it has failed, and so does the reading.
  bool (*add)(void* collector, ecotone_bytes key, ecotone_bytes value, int32_t kind, uint64_t sequence,
              uint64_t file_bytes);
} ecotone_recount;

// Reads every block and every entry; `out` gets what was found, and with a `recount` behind it the
// properties that collectors left in the table, as a list of names and values. ECOTONE_STOPPED soon
// after `*stop` has become true, which another thread may make it, atomically.
ecotone_code ecotone_read_table(ecotone_bytes path, const bool* stop, const ecotone_recount* recount,
                                ecotone_buffer* out);

// ---- salvage ----

// Opens a table that may be damaged; `out` gets what it says of itself. `table` gets what
// ecotone_salvage_close frees.
ecotone_code ecotone_salvage_open(ecotone_bytes path, void** table, ecotone_buffer* out);
// The next entries and gaps, about `max_bytes` of them; none at the end. One caller at a time.
ecotone_code ecotone_salvage_next(void* table, uint64_t max_bytes, ecotone_buffer* out);
void ecotone_salvage_close(void* table);
// What one record of a MANIFEST says.
ecotone_code ecotone_manifest_edit(ecotone_bytes record, ecotone_buffer* out);

// ---- version and mirrors ----

void ecotone_header_version(uint32_t* major, uint32_t* minor, uint32_t* patch);
void ecotone_library_version(uint32_t* major, uint32_t* minor, uint32_t* patch);
ecotone_code ecotone_check_mirrors(ecotone_buffer* out);

}  // extern "C"
