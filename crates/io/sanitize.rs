//! Of build scripts: `ECOTONE_SANITIZE=1` compiles the C++ of a crate with AddressSanitizer and
//! UndefinedBehaviorSanitizer and links the crate's tests with them.

use std::env;

/// Adds the sanitizers to `build`, where they are asked for.
pub fn sanitize(build: &mut cc::Build) {
    println!("cargo:rerun-if-env-changed=ECOTONE_SANITIZE");
    if env::var("ECOTONE_SANITIZE").is_ok_and(|value| value == "1") {
        for flag in ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined", "-g"] {
            build.flag(flag);
        }
        link_sanitizers(&build.get_compiler());
    }
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
