//! Notifications to a supervisor: systemd's `sd_notify` protocol, see sd_notify(3).
//!
//! A supervisor that wants notifications names a datagram socket in `NOTIFY_SOCKET`; one that wants
//! signs of life says in `WATCHDOG_USEC` how long it waits for one. A sign is given at each check,
//! at least twice in that time, and only while the server lives: one that hangs is restarted.
//!
//! Failure: what cannot be sent is logged once and not sent; the server goes on.
//!
//! Threads: one of its own gives signs of life; any may notify.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The server is checked at least so often; a status is sent only where it has changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A supervisor that takes nothing for so long is not waited for.
const SEND_WITHIN: Duration = Duration::from_secs(2);

/// Who supervises this process, if anybody does.
#[derive(Clone)]
pub(crate) struct Supervisor {
    notified: Option<Arc<Socket>>,
    /// The longest pause between two signs of life; none where nobody waits for them.
    interval: Option<Duration>,
}

struct Socket {
    socket: UnixDatagram,
    address: SocketAddr,
    has_failed: AtomicBool,
}

/// How the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Whether it does not hang.
    pub(crate) lives: bool,
    /// One line for people.
    pub(crate) status: String,
}

/// Gives signs of life until it is dropped.
pub(crate) struct Watcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// The one that the environment names.
    pub(crate) fn from_environment() -> Supervisor {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        // Another process is asked for signs of life where the number is not ours.
        let is_ours = of("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let limit_us = of("WATCHDOG_USEC").filter(|_| is_ours).and_then(|limit_us| limit_us.parse::<u64>().ok());
        Supervisor::at(of("NOTIFY_SOCKET").as_deref(), limit_us)
    }

    /// The one at `socket`: a path, or a name in the abstract namespace behind `@`. It waits
    /// `limit_us` for a sign of life.
    fn at(socket: Option<&str>, limit_us: Option<u64>) -> Supervisor {
        let open = |name: &str| -> std::io::Result<Socket> {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(name)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_WITHIN))?;
            Ok(Socket { socket, address, has_failed: AtomicBool::new(false) })
        };
        let notified = socket.and_then(|name| {
            let opened = open(name);
            opened.map_err(|error| tracing::warn!(%error, name, "NOTIFY_SOCKET cannot be used")).ok().map(Arc::new)
        });
        let interval = limit_us.filter(|limit_us| *limit_us > 0).map(|limit_us| Duration::from_micros(limit_us) / 2);
        Supervisor { notified, interval }
    }

    /// Sends assignments such as `READY=1`, one a line.
    pub(crate) fn notify(&self, assignments: &str) {
        let Some(notified) = &self.notified else { return };
        match notified.socket.send_to_addr(assignments.as_bytes(), &notified.address) {
            Ok(_) => notified.has_failed.store(false, Ordering::Relaxed),
            Err(error) if !notified.has_failed.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the supervisor at NOTIFY_SOCKET cannot be notified");
            }
            Err(_) => {}
        }
    }

    /// Notifies of the server's condition from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn watch(&self, condition: impl Fn() -> Condition + Send + 'static) -> std::io::Result<Watcher> {
        if self.notified.is_none() {
            return Ok(Watcher { stop: None, thread: None });
        }
        let (supervisor, (stop, stopped)) = (self.clone(), channel());
        let pause = self.interval.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL);
        let thread = std::thread::Builder::new().name("ecotone-notify".into()).spawn(move || {
            let mut last: Option<Condition> = None;
            loop {
                let now = condition();
                if supervisor.interval.is_some() && now.lives {
                    supervisor.notify("WATCHDOG=1");
                }
                if last.as_ref() != Some(&now) {
                    supervisor.notify(&format!("STATUS={}", now.status.replace('\n', " ")));
                    if !now.lives {
                        let so =
                            if supervisor.interval.is_some() { ", so the supervisor gets no sign of life" } else { "" };
                        tracing::error!(status = now.status, "the server hangs{so}");
                    }
                    last = Some(now);
                }
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Watcher { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that notifies the supervisor panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot go on should say where

    use std::sync::Mutex;

    use super::*;

    /// Longer than anything takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    const INTERVAL: Duration = Duration::from_millis(10);

    fn received(socket: &UnixDatagram, within: Duration) -> Option<String> {
        let mut bytes = [0; 1024];
        socket.set_read_timeout(Some(within)).unwrap();
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).unwrap())
    }

    /// Everything up to the message that begins so.
    fn until(socket: &UnixDatagram, begin: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            all.push(received(socket, PATIENCE).unwrap_or_else(|| panic!("no {begin:?} in {all:?}")));
            if all.last().unwrap().starts_with(begin) {
                return all;
            }
        }
    }

    #[test]
    fn who_hangs_gives_no_sign_of_life_until_it_answers_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::at(path.to_str(), Some(2 * INTERVAL.as_micros() as u64));
        let condition = Arc::new(Mutex::new(Condition { lives: true, status: "well".into() }));
        let shared = condition.clone();
        let watcher = supervisor.watch(move || shared.lock().unwrap().clone()).unwrap();
        assert_eq!(until(&socket, "STATUS="), ["WATCHDOG=1", "STATUS=well"]);
        until(&socket, "WATCHDOG=1");

        *condition.lock().unwrap() = Condition { lives: false, status: "hangs: event loop 1\nand more".into() };
        until(&socket, "STATUS=hangs: event loop 1 and more");
        assert_eq!(received(&socket, 20 * INTERVAL), None, "who hangs says nothing");

        *condition.lock().unwrap() = Condition { lives: true, status: "well".into() };
        until(&socket, "WATCHDOG=1");
        drop(watcher);
        while received(&socket, 5 * INTERVAL).is_some() {}
        assert_eq!(received(&socket, 10 * INTERVAL), None, "who has ended says nothing");
    }

    #[test]
    fn names_in_the_abstract_namespace_are_reached_and_nobody_is_no_error() {
        let name = format!("ecotone-supervisor-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Supervisor::at(Some(&format!("@{name}")), None).notify("READY=1\nSTATUS=x");
        assert_eq!(received(&socket, PATIENCE).unwrap(), "READY=1\nSTATUS=x");
        Supervisor::at(None, Some(1000)).notify("READY=1");
        Supervisor::at(Some("/there/is/none"), Some(1000)).notify("READY=1");
        assert!(Supervisor::at(None, Some(0)).interval.is_none());
    }
}
