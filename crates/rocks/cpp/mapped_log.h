// Write-ahead logs that RocksDB appends to through a MappedFile.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "rocksdb/file_system.h"

namespace ecotone {

using namespace ROCKSDB_NAMESPACE;

// The logs of one file system that are open. To RocksDB their length is what was appended: it
// compares the length of a log with what it noted when it began the next one, and copies a log up
// to its length. What reads the file itself finds zeros behind that.
//
// Threads: any.
class MappedLogs {
 public:
  // Whether the file of this name is a log.
  static bool IsLog(const std::string& path);

  // RocksDB begins a log: those before are complete, so that only the newest has zeros at its end
  // when the process is killed. In the new one it notes how long the one before is, and when it
  // recovers it drops what follows one of another length: so no log may be begun after an error.
  IOStatus TrimAll();

  // Puts a mapped file in the place of `file`, which is new, empty and lies at `local`. Where that
  // cannot be opened once more, `file` stays as it is.
  void Map(const std::string& path, const std::string& local, std::unique_ptr<FSWritableFile>* file);

  // False when no log of this name is open.
  bool GetLength(const std::string& path, uint64_t* len);

  struct Log;

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Log>> open_;
};

}  // namespace ecotone
