use ecotone_engine::*;
fn main() {
    let d = tempfile::tempdir().unwrap();
    let o = StoreOptions {
        durability: Durability::EverySecond,
        memory: Some(MemoryLimit::new(1 << 30)),
        ..Default::default()
    }
    .with_separation(128);
    let s = Store::open(d.path(), OpenMode::CreateOrOpen, o).unwrap();
    let mut x = 1u64;
    let mut r = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % 1_000_000
    };
    for _ in 0..1_000_000 {
        s.put(format!("k{:012}", r()).as_bytes(), &[b'x'; 100]).unwrap();
    }
    for round in 0..8 {
        let mut w = 0;
        let t = std::time::Instant::now();
        for _ in 0..200_000 {
            let k = format!("k{:012}", r());
            if let Err(Error::WouldWait) = s.get_at_once(k.as_bytes()) {
                w += 1;
                s.get(k.as_bytes()).unwrap();
            }
        }
        let c = s.counters();
        let p = s.properties().unwrap();
        println!(
            "{round} waits {w} in {:?} hits {} misses {} cache {} levels {:?}",
            t.elapsed(),
            c.block_cache_hits,
            c.block_cache_misses,
            p.block_cache_bytes,
            p.levels.iter().map(|l| (l.tables, l.bytes)).collect::<Vec<_>>()
        );
    }
}
