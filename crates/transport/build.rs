//! Compiles the protocol with a protobuf compiler written in Rust, so that no `protoc` has to be
//! installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/federation.proto");
    let descriptors = protox::compile(["proto/federation.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(descriptors)?;
    Ok(())
}
