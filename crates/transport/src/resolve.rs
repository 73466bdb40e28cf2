//! Looks up where a server is, for no longer than its caller can wait.
//!
//! The system's resolver cannot be interrupted, and takes minutes when no name server answers. It
//! runs on the run time's blocking threads, of which there are few: who waits goes on in time, and
//! a question that nobody waits for any more is not begun. A numeric address takes no thread.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::runtime::Handle;

/// The socket addresses of `host:port`, at least one, in the order they are to be tried. Blocks the
/// calling thread, which must not be one of the run time's.
///
/// # Errors
/// The resolver's; that of a name without address; [`io::ErrorKind::TimedOut`] after `longest`.
pub fn resolve(runtime: &Handle, address: &str, longest: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(numeric) = address.parse() {
        return Ok(vec![numeric]);
    }
    let name = address.to_owned();
    look_up(runtime, address, longest, move || name.to_socket_addrs().map(Iterator::collect))
}

fn look_up(
    runtime: &Handle,
    address: &str,
    longest: Duration,
    ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let asked = runtime.spawn_blocking(ask);
    let question = asked.abort_handle();
    match runtime.block_on(async { tokio::time::timeout(longest, asked).await }) {
        Ok(Ok(found)) => {
            let found = found?;
            if found.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address")));
            }
            Ok(found)
        }
        Ok(Err(stopped)) => Err(io::Error::other(format!("{address} was not looked up: {stopped}"))),
        Err(_) => {
            question.abort();
            let what = format!("no name server resolved {address} within {:.1} s", longest.as_secs_f64());
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const LONGEST: Duration = Duration::from_millis(200);

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn a_dead_name_server_holds_neither_its_caller_nor_a_numeric_address() {
        let runtime = runtime();
        let here: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let (answer, answered) = mpsc::channel();
        let began = Instant::now();
        // It takes the only thread there is.
        let dead = look_up(runtime.handle(), "edge:7", LONGEST, move || Ok(answered.recv().into_iter().collect()));
        assert_eq!(dead.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= LONGEST);
        assert_eq!(resolve(runtime.handle(), "127.0.0.1:7", LONGEST).unwrap(), [here]);
        assert_eq!(resolve(runtime.handle(), "[::1]:7", LONGEST).unwrap()[0].port(), 7);
        // A second question waits for the thread in vain, and is not asked when it is free: nobody
        // wants to know.
        let was_asked = Arc::new(AtomicBool::new(false));
        let is_asked = was_asked.clone();
        let second = look_up(runtime.handle(), "edge:7", LONGEST, move || {
            is_asked.store(true, Ordering::SeqCst);
            Ok(vec![here])
        });
        let error = second.unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("edge:7"), "{error}");
        answer.send(here).unwrap();
        let third = look_up(runtime.handle(), "edge:7", Duration::from_secs(30), move || Ok(vec![here]));
        assert_eq!(third.unwrap(), [here]);
        let nowhere = look_up(runtime.handle(), "edge:7", Duration::from_secs(30), || Ok(Vec::new()));
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!was_asked.load(Ordering::SeqCst));
    }

    #[test]
    fn a_name_is_looked_up() {
        let runtime = runtime();
        let found = resolve(runtime.handle(), "localhost:7", Duration::from_secs(30)).unwrap();
        assert!(found.iter().all(|found| found.ip().is_loopback() && found.port() == 7), "{found:?}");
        assert!(resolve(runtime.handle(), "no port", Duration::from_secs(30)).is_err());
    }
}
