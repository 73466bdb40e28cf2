//! Compiles the C++ shim against the headers of the RocksDB that `rust-librocksdb-sys` builds.
//!
//! With `ECOTONE_SANITIZE=1` under the sanitizers (see sanitize.rs of crates/io). RocksDB itself
//! stays as it is.

#[path = "../io/sanitize.rs"]
mod sanitize;

use std::env;
use std::path::PathBuf;

const SOURCES: [&str; 16] = [
    "compaction_filter.cc",
    "file_hooks.cc",
    "filesystem.cc",
    "local_file.cc",
    "mapped_log.cc",
    "memtable.cc",
    "properties.cc",
    "record.cc",
    "remote.cc",
    "remote_files.cc",
    "salvage.cc",
    "table_file.cc",
    "tables.cc",
    "tapped_files.cc",
    "verify.cc",
    "version.cc",
];

// What RocksDB's own build defines on Linux (`build.rs` of rust-librocksdb-sys): its internal
// headers declare other things without them. LZ4 and ZSTD are left out: they only change code that
// the shim never calls, and need headers of their own.
const DEFINES: [&str; 10] = [
    "HAVE_ALIGNED_NEW",
    "HAVE_UINT128_EXTENSION",
    "NDEBUG",
    "OS_LINUX",
    "ROCKSDB_AUXV_GETAUXVAL_PRESENT",
    "ROCKSDB_FALLOCATE_PRESENT",
    "ROCKSDB_LIB_IO_POSIX",
    "ROCKSDB_PLATFORM_POSIX",
    "ROCKSDB_RANGESYNC_PRESENT",
    "ROCKSDB_SCHED_GETCPU_PRESENT",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../io/sanitize.rs");

    let target = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    assert_eq!(target, "linux", "the shim mirrors RocksDB's Linux build only");
    let include = PathBuf::from(
        env::var_os("DEP_ROCKSDB_INCLUDE")
            .expect("rust-librocksdb-sys is a direct dependency and says where its headers are"),
    );
    let internal = include.parent().expect("RocksDB's include folder lies in its source folder");

    let io = env::var_os("DEP_ECOTONE_IO_INCLUDE")
        .expect("ecotone-io is a direct dependency and says where its headers are");

    let mut build = cc::Build::new();
    build.include(io);
    build.cpp(true).std("c++20").flag("-fno-rtti").flag("-include").flag("cstdint");
    // RocksDB's headers are not ours to warn about.
    build.flag("-isystem").flag(include.as_os_str()).flag("-isystem").flag(internal.as_os_str());
    build.warnings(true).extra_warnings(true).flag("-Wno-unused-parameter");
    for define in DEFINES {
        build.define(define, (define == "NDEBUG").then_some("1"));
    }
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        build.define("ROCKSDB_PTHREAD_ADAPTIVE_MUTEX", None);
    }
    sanitize::sanitize(&mut build);
    for source in SOURCES {
        build.file(format!("cpp/{source}"));
    }
    build.compile("ecotone_rocks_shim");
}
