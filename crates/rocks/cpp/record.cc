#include "record.h"

#include <cstdlib>
#include <cstring>

using ROCKSDB_NAMESPACE::IOStatus;
using ROCKSDB_NAMESPACE::Status;

extern "C" void ecotone_buffer_free(ecotone_buffer buffer) { free(buffer.data); }

extern "C" bool ecotone_reply_append(ecotone_reply* reply, const uint8_t* data, size_t len) {
  try {
    reply->text.append(reinterpret_cast<const char*>(data), len);
    return true;
  } catch (...) {
    return false;
  }
}

namespace ecotone {

void Give(std::string_view text, ecotone_buffer* out) noexcept {
  free(out->data);
  out->data = nullptr;
  out->len = 0;
  if (text.empty()) {
    return;
  }
  out->data = static_cast<uint8_t*>(malloc(text.size()));
  if (out->data != nullptr) {
    memcpy(out->data, text.data(), text.size());
    out->len = text.size();
  }
}

ecotone_code CodeOf(const Status& status) {
  if (status.ok()) {
    return ECOTONE_OK;
  }
  if (status.IsNotFound() || status.IsPathNotFound()) {
    return ECOTONE_NOT_FOUND;
  }
  if (status.IsNoSpace()) {
    return ECOTONE_NO_SPACE;
  }
  if (status.IsNotSupported()) {
    return ECOTONE_NOT_SUPPORTED;
  }
  if (status.IsCorruption()) {
    return ECOTONE_CORRUPTION;
  }
  if (status.IsInvalidArgument()) {
    return ECOTONE_INVALID_ARGUMENT;
  }
  if (status.IsTimedOut()) {
    return ECOTONE_TIMED_OUT;
  }
  return ECOTONE_IO_ERROR;
}

IOStatus IOStatusOf(ecotone_code code, const std::string& message) {
  switch (code) {
    case ECOTONE_OK:
      return IOStatus::OK();
    case ECOTONE_NOT_FOUND:
      return IOStatus::NotFound(message);
    case ECOTONE_NO_SPACE:
      return IOStatus::NoSpace(message);
    case ECOTONE_NOT_SUPPORTED:
      return IOStatus::NotSupported(message);
    case ECOTONE_CORRUPTION:
      return IOStatus::Corruption(message);
    case ECOTONE_INVALID_ARGUMENT:
      return IOStatus::InvalidArgument(message);
    case ECOTONE_TIMED_OUT:
      return IOStatus::TimedOut(message);
    default:
      return IOStatus::IOError(message);
  }
}

}  // namespace ecotone
