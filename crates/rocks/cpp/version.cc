// Which RocksDB this is, and whether its private structs are what mirror.h says.

#include "rocksdb/version.h"

#include "mirror.h"
#include "record.h"
#include "rocksdb/c.h"
#include "rocksdb/utilities/stackable_db.h"

namespace {

using namespace ROCKSDB_NAMESPACE;

// Tells whether the C API reached it.
class Witness : public StackableDB {
 public:
  Witness() : StackableDB(static_cast<DB*>(nullptr)) {}
  using StackableDB::GetProperty;
  bool GetProperty(ColumnFamilyHandle* /*family*/, const Slice& /*property*/, std::string* value) override {
    *value = "seen";
    return true;
  }
  ColumnFamilyHandle* DefaultColumnFamily() const override { return nullptr; }
};

class Family : public ColumnFamilyHandle {
 public:
  static constexpr uint32_t kMark = 6789;
  const std::string& GetName() const override { return name_; }
  uint32_t GetID() const override { return kMark; }
  Status GetDescriptor(ColumnFamilyDescriptor* /*descriptor*/) override { return Status::NotSupported(); }
  const Comparator* GetComparator() const override { return nullptr; }

 private:
  const std::string name_ = "witness";
};

const char* Mismatch() {
  rocksdb_env_t* plain = rocksdb_create_default_env();
  const auto* env = reinterpret_cast<const ecotone::EnvHandle*>(plain);
  const bool env_fits = env->rep == Env::Default() && env->is_default;
  rocksdb_env_destroy(plain);
  rocksdb_env_t* memory = rocksdb_create_mem_env();
  const bool flag_fits = !reinterpret_cast<const ecotone::EnvHandle*>(memory)->is_default;
  rocksdb_env_destroy(memory);
  if (!env_fits || !flag_fits) {
    return "rocksdb_env_t is not what mirror.h says";
  }

  Witness witness;
  ecotone::DbHandle handle{&witness};
  char* seen = rocksdb_property_value(reinterpret_cast<rocksdb_t*>(&handle), "any");
  const bool db_fits = seen != nullptr && std::string_view(seen) == "seen";
  rocksdb_free(seen);
  if (!db_fits) {
    return "rocksdb_t is not what mirror.h says";
  }

  Family family;
  ecotone::FamilyHandle family_handle{&family, /*immortal=*/true};
  if (rocksdb_column_family_handle_get_id(reinterpret_cast<rocksdb_column_family_handle_t*>(&family_handle)) !=
      Family::kMark) {
    return "rocksdb_column_family_handle_t is not what mirror.h says";
  }

  constexpr int kMark = 12345;
  rocksdb_options_t* options = rocksdb_options_create();
  rocksdb_options_set_max_open_files(options, kMark);
  const bool options_fit = reinterpret_cast<const ecotone::OptionsHandle*>(options)->rep.max_open_files == kMark;
  rocksdb_options_destroy(options);
  return options_fit ? nullptr : "rocksdb_options_t is not what mirror.h says";
}

}  // namespace

extern "C" void ecotone_header_version(uint32_t* major, uint32_t* minor, uint32_t* patch) {
  *major = ROCKSDB_MAJOR;
  *minor = ROCKSDB_MINOR;
  *patch = ROCKSDB_PATCH;
}

extern "C" void ecotone_library_version(uint32_t* major, uint32_t* minor, uint32_t* patch) {
  *major = *minor = *patch = 0;
  try {
    const std::string version = GetRocksVersionAsString(/*with_patch=*/true);
    if (sscanf(version.c_str(), "%u.%u.%u", major, minor, patch) != 3) {
      *major = *minor = *patch = 0;
    }
  } catch (...) {
  }
}

extern "C" ecotone_code ecotone_check_mirrors(ecotone_buffer* out) {
  return ecotone::Contain(out, [&] {
    const char* mismatch = Mismatch();
    if (mismatch != nullptr) {
      ecotone::Give(mismatch, out);
      return ECOTONE_INVALID_ARGUMENT;
    }
    return ECOTONE_OK;
  });
}
