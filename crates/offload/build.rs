//! Compiles the protocol with a protobuf compiler written in Rust, so that no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/federation.proto");
    let descriptors = protox::compile(["proto/federation.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Ranges of files arrive as slices of the received buffer instead of copies of it.
        .bytes(".ecotone.federation.v1.ReadReply")
        .compile_fds(descriptors)?;
    Ok(())
}
