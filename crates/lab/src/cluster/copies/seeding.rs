//! How fast a copy is made over a limited link, beside a plain copy over the same one.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::report::Seeding;
use super::{LINK_MBIT, LOOK, Measurement, SERVERS};
use crate::error::LabError;
use crate::process::enter_network;

/// Of a plain copy: long enough that a burst does not count.
const PLAIN_TIME: f64 = 3.0;
/// A copy that was given up is gone by then, with its files.
const GONE: Duration = Duration::from_secs(2);
/// What comes before the files: greetings and reports.
const BEGUN_BYTES: u64 = 256 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// A plain copy that does not move ends by this.
const SILENCE: Duration = Duration::from_secs(10);

/// Gives one copy up and makes it again. Why not, where servers have no links.
pub(super) fn measure(measurement: &mut Measurement<'_>) -> Result<Result<Seeding, String>, LabError> {
    if let Some(why) = measurement.places.no_network() {
        return Ok(Err(format!("servers have no links of their own: {why}")));
    }
    let mbit = measurement.options.seeding_mbit;
    (measurement.scene.say)("giving a copy up");
    super::load::filled(measurement)?;
    measurement.set("replication.copies", &(SERVERS - 1).to_string())?;
    let (_, shard) = measurement.in_sync(SERVERS - 1, None)?;
    let mut names = measurement.federation.servers.iter().map(|server| server.name.clone());
    let lacks = names.find(|name| shard.copies.iter().all(|copy| copy.0 != *name));
    let lacks = lacks.ok_or_else(|| measurement.failure("no server lacks the copy that was given up".into()))?;
    measurement.scene.rest(GONE)?;
    measurement.places.set_links(mbit)?;

    (measurement.scene.say)("a plain copy");
    let places = measurement.places;
    let missing = || LabError::Measurement { what: "seeding".into(), reason: "a server has no network".into() };
    let received = || places.received(&lacks).ok_or_else(missing);
    let to = places.namespace(&lacks).ok_or_else(missing)?;
    let host = places.host(&lacks).ok_or_else(missing)?;
    let from = places.namespace(&shard.primary).ok_or_else(missing)?;
    let before = received()?;
    let seconds =
        plain_copy(from, to, &host, mbit).map_err(|error| measurement.failure(format!("a plain copy: {error}")))?;
    // Counted where that of the copy is, headers included.
    let plain = (received()? - before) as f64 / seconds;

    (measurement.scene.say)("seeding a copy");
    let before = received()?;
    measurement.set("replication.copies", &SERVERS.to_string())?;
    let until = Instant::now() + measurement.scene.options.patience;
    let begun = loop {
        let now = received()?;
        if now - before > BEGUN_BYTES {
            break (Instant::now(), now);
        }
        if Instant::now() >= until {
            return Err(measurement.failure("no copy is made in time".into()));
        }
        measurement.scene.rest(LOOK)?;
    };
    measurement.in_sync(SERVERS, None)?;
    let (seconds, bytes) = (begun.0.elapsed().as_secs_f64(), received()? - begun.1);
    measurement.places.set_links(LINK_MBIT)?;
    let bytes_per_s = bytes as f64 / seconds;
    Ok(Ok(Seeding { share_of_link: bytes_per_s / plain, bytes_per_s, plain_bytes_per_s: plain, bytes, mbit }))
}

/// Sends bytes from one network to another; the seconds until all are there.
fn plain_copy(from: PathBuf, to: PathBuf, host: &str, mbit: u32) -> std::io::Result<f64> {
    let total = (f64::from(mbit) * 1e6 / 8.0 * PLAIN_TIME) as u64;
    let (sender, address) = channel();
    let listen = format!("{host}:0");
    let receiver = std::thread::spawn(move || receive(&to, &listen, &sender));
    let sent = match address.recv() {
        Ok(address) => std::thread::spawn(move || send(&from, &address, total)).join().unwrap_or_else(|_| panicked()),
        // It says below why it does not listen.
        Err(_) => Ok(()),
    };
    let received = receiver.join().unwrap_or_else(|_| panicked());
    sent.and(received)
}

fn panicked<T>() -> std::io::Result<T> {
    Err(std::io::Error::other("a thread of it panicked"))
}

fn receive(network: &Path, listen: &str, address: &std::sync::mpsc::Sender<String>) -> std::io::Result<f64> {
    enter_network(network)?;
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    // Its sender waits for it.
    let _ = address.send(listener.local_addr()?.to_string());
    let until = Instant::now() + SILENCE;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let began = Instant::now();
    let mut buffer = vec![0; BUFFER_BYTES];
    while stream.read(&mut buffer)? > 0 {}
    Ok(began.elapsed().as_secs_f64())
}

fn send(network: &Path, address: &str, total: u64) -> std::io::Result<()> {
    enter_network(network)?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(SILENCE))?;
    let buffer = vec![0xA5; BUFFER_BYTES];
    let mut sent = 0;
    while sent < total {
        stream.write_all(&buffer)?;
        sent += BUFFER_BYTES as u64;
    }
    Ok(())
}
