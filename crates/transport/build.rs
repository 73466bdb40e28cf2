//! Compiles the protocol with a protobuf compiler written in Rust, so that no `protoc` has to be
//! installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/federation.proto");
    let descriptors = protox::compile(["proto/federation.proto"], ["proto"])?;
    // What carries whole files is not copied once more when it is taken apart.
    let bulk = ["CopyParcel", "OfferPart", "FetchPart"].map(|message| format!(".ecotone.federation.v2.{message}"));
    bulk.iter().fold(tonic_prost_build::configure(), |builder, path| builder.bytes(path)).compile_fds(descriptors)?;
    Ok(())
}
