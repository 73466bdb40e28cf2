//! What packing a value costs and saves: `cargo run --release -p ecotone-valuelog --example
//! value_compression`. Prints the tables of docs/experiments/2026-11-28-value-compression.md.

use std::time::Instant;

use ecotone_valuelog::compression::dictionary::Dictionary;
use ecotone_valuelog::compression::training::{Samples, train};
use ecotone_valuelog::compression::{Codec, Level, pack, unpack};

include!("../tests/common/telemetry.rs");

const MEASURED: u64 = 4000;
const ROUNDS: u32 = 5;

fn main() {
    println!("| value | codec | dictionary | stored | ratio | compress ns | decompress ns | digests KiB |");
    println!("|---|---|---|---|---|---|---|---|");
    for bytes in [300, 1000] {
        let mut samples = Samples::default();
        (0..20_000).for_each(|number| samples.offer(&telemetry(number, bytes)));
        let values: Vec<_> = (100_000..100_000 + MEASURED).map(|number| telemetry(number, bytes)).collect();
        let lengths = [None, Some(4 << 10), Some(16 << 10), Some(32 << 10), Some(64 << 10), Some(112 << 10)];
        let mut trainings = Vec::new();
        for length in lengths {
            let begin = Instant::now();
            let trained = length.and_then(|length| train(&samples, length));
            trainings.push((length, begin.elapsed(), trained.as_ref().map(|one| one.content().len())));
            for (name, codec) in
                [("lz4", Codec::Lz4), ("zstd 1", Codec::Zstd(Level::MIN)), ("zstd 3", Codec::Zstd(Level::MAX))]
            {
                // Digested for this codec alone.
                let dictionary = trained.as_ref().and_then(|one| Dictionary::new(one.content().to_vec()).ok());
                measure(bytes, name, codec, length, dictionary.as_ref(), &values);
            }
        }
        for (length, took, content) in trainings.into_iter().skip(1) {
            eprintln!(
                "{bytes} B: dictionary of {:?} from {} KiB of samples in {took:.1?}: {content:?} bytes",
                length.unwrap_or(0),
                samples.bytes() >> 10
            );
        }
    }
}

fn measure(
    bytes: usize,
    name: &str,
    codec: Codec,
    length: Option<usize>,
    dictionary: Option<&Dictionary>,
    values: &[Vec<u8>],
) {
    let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
    let mut stored = 0;
    // The best of some rounds: others run on this machine.
    let (mut compress, mut decompress) = (f64::MAX, f64::MAX);
    let content = dictionary.map_or(0, |dictionary| dictionary.content().len());
    for _ in 0..ROUNDS {
        let (mut all, mut bounds) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for value in values {
            packed.clear();
            let how = pack(codec, dictionary, value, &mut packed);
            bounds.push((how, all.len()));
            all.extend_from_slice(if how.is_some() { &packed } else { value });
        }
        compress = compress.min(begin.elapsed().as_secs_f64());
        stored = all.len();
        bounds.push((None, all.len()));
        let begin = Instant::now();
        for pair in bounds.windows(2) {
            if let [(Some(how), from), (_, to)] = pair {
                unpacked.clear();
                let is_read = unpack(*how, dictionary, &all[*from..*to], &mut unpacked).is_ok();
                assert!(is_read, "what was packed is unpacked");
            }
        }
        decompress = decompress.min(begin.elapsed().as_secs_f64());
    }
    let digests = dictionary.map_or(0, |dictionary| dictionary.bytes() as usize - content) >> 10;
    let each = |seconds: f64| seconds * 1e9 / values.len() as f64;
    println!(
        "| {bytes} | {name} | {} | {:.0} | {:.2} | {:.0} | {:.0} | {digests} |",
        length.map_or("none".into(), |length| format!("{} KiB", length >> 10)),
        stored as f64 / values.len() as f64,
        (bytes * values.len()) as f64 / stored as f64,
        each(compress),
        each(decompress),
    );
}
