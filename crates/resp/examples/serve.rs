#[path = "../tests/common/mod.rs"]
mod common;
static WAITS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
fn main() {
    use std::sync::Arc;
    let port: u16 = std::env::args().nth(1).unwrap().parse().unwrap();
    let lanes: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let options =
        ecotone_engine::StoreOptions { durability: ecotone_engine::Durability::EverySecond, ..Default::default() }
            .with_separation(128);
    let fixture = common::Fixture::with(options);
    let store = fixture.service.keyspace.store().clone();
    let listen = ecotone_resp::serve::Listen {
        addresses: vec![([127, 0, 0, 1], port).into()],
        socket: None,
        lanes,
        waiting_threads: 16,
    };
    let server = ecotone_resp::serve::Server::start(Arc::new(fixture.service), &listen, None).unwrap();
    println!("{:?}", server.listening());
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let c = store.counters();
        let p = store.properties().unwrap();
        println!(
            "hits {} misses {} cache {} levels {:?} waits {}",
            c.block_cache_hits,
            c.block_cache_misses,
            p.block_cache_bytes,
            p.levels.iter().map(|l| l.tables).collect::<Vec<_>>(),
            WAITS.load(std::sync::atomic::Ordering::Relaxed)
        );
    }
}
