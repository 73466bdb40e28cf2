// How results travel to Rust: fields one after another, numbers as 8 bytes, least significant
// first, byte strings as their length and the bytes, lists as their length and the items.
// src/buffer.rs reads them.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"
#include "shim.h"

// The reply of a callback is a string under an opaque name.
struct ecotone_reply {
  std::string text;
};

namespace ecotone {

class Record {
 public:
  Record& Number(uint64_t value) {
    char bytes[8];
    for (int i = 0; i < 8; i++) {
      bytes[i] = static_cast<char>(value >> (8 * i));
    }
    data_.append(bytes, sizeof(bytes));
    return *this;
  }
  Record& Bytes(std::string_view value) {
    Number(value.size());
    data_.append(value.data(), value.size());
    return *this;
  }
  Record& Append(const Record& fields) {
    data_ += fields.data_;
    return *this;
  }
  const std::string& data() const { return data_; }

 private:
  std::string data_;
};

// Copies `text` into `out`; an empty buffer when memory is short.
void Give(std::string_view text, ecotone_buffer* out) noexcept;

inline std::string_view View(ecotone_bytes bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data), bytes.len);
}
inline std::string String(ecotone_bytes bytes) { return std::string(View(bytes)); }
inline ecotone_bytes Borrow(const ROCKSDB_NAMESPACE::Slice& slice) {
  return ecotone_bytes{reinterpret_cast<const uint8_t*>(slice.data()), slice.size()};
}

// The code that says best what `status` says. Never ECOTONE_OK for a status that is not.
ecotone_code CodeOf(const ROCKSDB_NAMESPACE::Status& status);
// What RocksDB is told when a callback returned `code`.
ROCKSDB_NAMESPACE::IOStatus IOStatusOf(ecotone_code code, const std::string& message);

// Runs `body`, which returns a code, and turns an exception into ECOTONE_IO_ERROR with its message
// in `out`.
template <typename Body>
ecotone_code Contain(ecotone_buffer* out, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    Give(e.what(), out);
  } catch (...) {
    Give("an unknown C++ exception", out);
  }
  return ECOTONE_IO_ERROR;
}

}  // namespace ecotone
