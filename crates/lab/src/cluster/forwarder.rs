//! Passes connections on to a server, and can hold back what goes to it.
//!
//! Servers announce the forwarder's address as theirs. While it holds, a server's own messages
//! reach the others, over connections that it made, and nothing that others send reaches it: a cut
//! one way, which needs no right over the network of this machine. Nothing is lost: what was held
//! back goes on later, as after a pause of a network.
//!
//! Failure: a connection that breaks on one side is closed on the other.
//!
//! Threads: one that accepts, and two for each connection; they end with their sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked whether it still holds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// What is passed on at once.
const BUFFER_BYTES: usize = 64 << 10;

struct State {
    target: String,
    holds: AtomicBool,
    ends: AtomicBool,
}

/// A way to one server. Ends when it is dropped; connections end with the servers.
pub(super) struct Forwarder {
    address: SocketAddr,
    state: Arc<State>,
}

impl Forwarder {
    /// Passes on to a server that listens at `target`, or will.
    pub(super) fn start(target: &str) -> std::io::Result<Forwarder> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (holds, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let state = Arc::new(State { target: target.to_owned(), holds, ends });
        let shared = state.clone();
        thread::Builder::new().name("lab-forwards".into()).spawn(move || accept(&listener, &shared))?;
        Ok(Forwarder { address, state })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds back what goes to the server, or no longer.
    pub(super) fn hold(&self, holds: bool) {
        self.state.holds.store(holds, Ordering::Release);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Release);
        self.hold(false);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.ends.load(Ordering::Acquire) {
            return;
        }
        // A connection that cannot be passed on is closed: whoever made it tries again.
        let _ = stream.and_then(|from| pass(from, state));
    }
}

fn pass(from: TcpStream, state: &Arc<State>) -> std::io::Result<()> {
    let to = TcpStream::connect(&state.target)?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let (back_from, back_to) = (to.try_clone()?, from.try_clone()?);
    let holding = state.clone();
    thread::Builder::new().name("lab-forwards".into()).spawn(move || copy(from, to, Some(&holding)))?;
    thread::Builder::new().name("lab-forwards".into()).spawn(move || copy(back_from, back_to, None))?;
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, holding: Option<&State>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while holding.is_some_and(|state| state.holds.load(Ordering::Acquire)) {
            thread::sleep(LOOK_INTERVAL);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other direction ends with this one.
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn what_goes_to_the_server_is_held_back_and_what_it_says_is_not() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let forwarder = Forwarder::start(&server.local_addr().unwrap().to_string()).unwrap();
        let mut client = TcpStream::connect(forwarder.address()).unwrap();
        let (mut served, _) = server.accept().unwrap();
        let mut byte = [0; 1];
        client.write_all(b"a").unwrap();
        served.read_exact(&mut byte).unwrap();
        forwarder.hold(true);
        client.write_all(b"b").unwrap();
        served.write_all(b"c").unwrap();
        client.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"c");
        served.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(served.read_exact(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
        forwarder.hold(false);
        served.set_read_timeout(None).unwrap();
        served.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"b");
        drop(client);
        assert_eq!(served.read(&mut byte).unwrap(), 0);
    }
}
