//! Compiles the C++ of mapped files, and tells the crate that is C++ too where their header is.
//!
//! With `ECOTONE_SANITIZE=1` under the sanitizers: see sanitize.rs.

mod sanitize;

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=sanitize.rs");
    println!("cargo:rerun-if-changed=cpp");
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    println!("cargo:include={here}/cpp");

    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").flag("-fno-rtti").warnings(true).extra_warnings(true);
    sanitize::sanitize(&mut build);
    for source in ["bus_guard.cc", "mapped_file.cc", "mapped_reads.cc"] {
        build.file(format!("cpp/{source}"));
    }
    build.compile("ecotone_io");
}
