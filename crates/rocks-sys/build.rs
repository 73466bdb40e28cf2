//! Compiles the C++ shim against the headers of the RocksDB that `rust-librocksdb-sys` builds.
//!
//! `ECOTONE_SANITIZE=1` compiles the shim with AddressSanitizer and UndefinedBehaviorSanitizer and
//! links this package's tests with them. RocksDB itself stays as it is.

use std::env;
use std::path::PathBuf;

const SOURCES: [&str; 20] = [
    "checksum.cc",
    "compaction_filter.cc",
    "file_hooks.cc",
    "filesystem.cc",
    "bus_guard.cc",
    "local_file.cc",
    "mapped_file.cc",
    "mapped_log.cc",
    "mapped_reads.cc",
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
    println!("cargo:rerun-if-env-changed=ECOTONE_SANITIZE");

    let target = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    assert_eq!(target, "linux", "the shim mirrors RocksDB's Linux build only");
    let include = PathBuf::from(
        env::var_os("DEP_ROCKSDB_INCLUDE")
            .expect("rust-librocksdb-sys is a direct dependency and says where its headers are"),
    );
    let internal = include.parent().expect("RocksDB's include folder lies in its source folder");

    let mut build = cc::Build::new();
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
    if env::var("ECOTONE_SANITIZE").is_ok_and(|value| value == "1") {
        for flag in ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined", "-g"] {
            build.flag(flag);
        }
        link_sanitizers(&build.get_compiler());
    }
    for source in SOURCES {
        build.file(format!("cpp/{source}"));
    }
    build.compile("ecotone_rocks_shim");
}

/// rustc links without the compiler's default libraries, so `-fsanitize` alone would bring nothing.
/// The runtimes go in whole and statically: as shared libraries they would have to come before all
/// others.
fn link_sanitizers(compiler: &cc::Tool) {
    let path_of = |library: &str| {
        let out =
            compiler.to_command().arg(format!("-print-file-name={library}")).output().expect("the C++ compiler runs");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    println!("cargo:rustc-link-arg=-Wl,--whole-archive,{},--no-whole-archive", path_of("libasan.a"));
    println!("cargo:rustc-link-arg={}", path_of("libubsan.a"));
    // So that shared libraries (libstdc++) allocate through them, too.
    println!("cargo:rustc-link-arg=-Wl,--export-dynamic");
}
