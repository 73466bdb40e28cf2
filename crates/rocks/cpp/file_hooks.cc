#include "file_hooks.h"

namespace ecotone {

IOStatus FileHooks::Tap(int32_t kind, const std::string& path, uint64_t offset, const Slice& data) const {
  if (!calls_.has_tap) {
    return IOStatus::OK();
  }
  const ecotone_tap_event event{kind, Borrow(path), {nullptr, 0}, offset, Borrow(data)};
  ecotone_reply reply;
  return IOStatusOf(calls_.tap(calls_.state, &event, &reply), reply.text);
}

IOStatus FileHooks::TapMove(int32_t kind, const std::string& from, const std::string& to) const {
  if (!calls_.has_tap) {
    return IOStatus::OK();
  }
  const ecotone_tap_event event{kind, Borrow(from), Borrow(to), 0, {nullptr, 0}};
  ecotone_reply reply;
  return IOStatusOf(calls_.tap(calls_.state, &event, &reply), reply.text);
}

IOStatus FileHooks::Map(const std::string& path, std::string* mapped) const {
  ecotone_reply reply;
  const ecotone_code code = calls_.remap(calls_.state, Borrow(path), &reply);
  if (code == ECOTONE_OK) {
    *mapped = std::move(reply.text);
  }
  return code == ECOTONE_NOT_MINE ? IOStatus::OK() : IOStatusOf(code, reply.text);
}

IOStatus FileHooks::RemoteSize(const std::string& path, bool* mine, uint64_t* len) const {
  *mine = false;
  if (!calls_.has_remote) {
    return IOStatus::OK();
  }
  ecotone_reply reply;
  const ecotone_code code = calls_.remote_size(calls_.state, Borrow(path), len, &reply);
  *mine = code == ECOTONE_OK;
  return code == ECOTONE_NOT_MINE ? IOStatus::OK() : IOStatusOf(code, reply.text);
}

IOStatus FileHooks::RemoteList(const std::string& directory, bool* mine, std::vector<std::string>* names) const {
  *mine = false;
  if (!calls_.has_remote) {
    return IOStatus::OK();
  }
  ecotone_reply reply;
  const ecotone_code code = calls_.remote_list(calls_.state, Borrow(directory), &reply);
  *mine = code == ECOTONE_OK;
  if (*mine && names != nullptr) {
    names->clear();
    for (size_t begin = 0; begin < reply.text.size();) {
      const size_t end = reply.text.find('\0', begin);
      names->push_back(reply.text.substr(begin, end - begin));
      begin = end == std::string::npos ? reply.text.size() : end + 1;
    }
  }
  return code == ECOTONE_NOT_MINE ? IOStatus::OK() : IOStatusOf(code, reply.text);
}

IOStatus FileHooks::RemoteOpen(const std::string& path, bool* mine, void** file, uint64_t* len) const {
  *mine = false;
  if (!calls_.has_remote) {
    return IOStatus::OK();
  }
  ecotone_reply reply;
  const ecotone_code code = calls_.remote_open(calls_.state, Borrow(path), file, len, &reply);
  *mine = code == ECOTONE_OK;
  if (code == ECOTONE_NOT_FOUND) {
    // What the operating system's files say when one is missing.
    return IOStatus::PathNotFound(path, reply.text);
  }
  return code == ECOTONE_NOT_MINE ? IOStatus::OK() : IOStatusOf(code, reply.text);
}

}  // namespace ecotone
