#[path = "../tests/common/mod.rs"]
mod common;
fn main() {
    use std::sync::Arc;
    let port: u16 = std::env::args().nth(1).unwrap().parse().unwrap();
    let lanes: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let options =
        ecotone_engine::StoreOptions { durability: ecotone_engine::Durability::EverySecond, ..Default::default() }
            .with_separation(128);
    let fixture = common::Fixture::with(options);
    let listen = ecotone_resp::serve::Listen {
        addresses: vec![([127, 0, 0, 1], port).into()],
        socket: None,
        lanes,
        waiting_threads: 16,
    };
    let server = ecotone_resp::serve::Server::start(Arc::new(fixture.service), &listen, None).unwrap();
    println!("{:?}", server.listening());
    std::thread::park();
}
