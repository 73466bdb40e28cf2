//! The way in for clients that come by TLS.
//!
//! A handshake costs up to milliseconds of computing, and takes as many turns as the client likes.
//! So it is made on a thread of its own, and no event loop hears of a client before it is through.
//! Then the connection moves to its event loop.
//!
//! Failure: a client that speaks no TLS, lacks a required certificate or does not finish in time
//! gets an alert, where TLS has one, and is closed, with one line in the log.
//!
//! Bounds: [`ListenTls::handshake_within`](super::ListenTls) for each; they are clients of which
//! there are at most [`Limits::clients`](crate::service::Limits). Threads: one.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustls::InvalidMessage;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::accept::accept_tcp;
use super::control::ControlReceiver;
use super::liveness::BackgroundTasks;
use super::rebalancing::{Balancer, ConnectionSlot};
use super::stream::{DetachedStream, Socket};
use super::tls::{Identity, LOOKS_UNASKED_EVERY, with_version};
use crate::client_events::ClientEvent;

/// What is listened on for TLS, and how clients are let in.
pub(super) struct TlsListener {
    pub(super) listeners: Vec<TcpListener>,
    pub(super) identity: Identity,
    pub(super) handshake_within: Duration,
}

impl TlsListener {
    /// Takes connections until the server stops. Belongs to a runtime of one thread.
    pub(super) async fn open(self, balancer: Arc<Balancer>, mut control: ControlReceiver) {
        let identity = Rc::new(RefCell::new(self.identity));
        let mut background = BackgroundTasks::default();
        background.begin({
            let identity = identity.clone();
            async move {
                loop {
                    tokio::time::sleep(LOOKS_UNASKED_EVERY).await;
                    identity.borrow_mut().look(Instant::now());
                }
            }
        });
        for listener in self.listeners {
            let (balancer, identity, for_clients) = (balancer.clone(), identity.clone(), control.clone());
            background.begin(accept_tcp(listener, control.clone(), move |stream, address, local| {
                // Without a connection slot there is no reply: that would take the handshake.
                if let Some(slot) = balancer.slot(address.to_string(), local.to_string()) {
                    let acceptor = identity.borrow_mut().acceptor(Instant::now());
                    let balancer = balancer.clone();
                    tokio::task::spawn_local(let_in(
                        stream,
                        slot,
                        acceptor,
                        self.handshake_within,
                        balancer,
                        for_clients.clone(),
                    ));
                }
                Ok(())
            }));
        }
        // All that is under way ends with this thread.
        tokio::select! {
            biased;
            () = control.stops() => {}
            never = background.watch() => match never {},
        }
    }
}

async fn let_in(
    stream: TcpStream,
    slot: ConnectionSlot,
    acceptor: TlsAcceptor,
    within: Duration,
    balancer: Arc<Balancer>,
    mut control: ControlReceiver,
) {
    let client = &slot.info.address;
    slot.info.descriptor.store(stream.as_raw_fd(), Ordering::Relaxed);
    slot.info.is_tls.store(true, Ordering::Relaxed);
    let event = |event| balancer.note(event);
    let shaken = tokio::select! {
        biased;
        () = control.stops() => return,
        () = slot.info.until_killed() => return,
        shaken = timeout(within, acceptor.accept(Socket::acknowledging(stream))) => shaken,
    };
    match shaken {
        Ok(Ok(mut stream)) => {
            stream.get_mut().0.has_shaken_hands();
            balancer.assign(DetachedStream::Tls(Box::new(stream)), slot);
        }
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            // So do those that only check whether the port is open.
            tracing::debug!(%client, "a client left before its TLS handshake was over");
        }
        Ok(Err(error)) if is_other_than_tls(&error) => {
            if let Some(others) = event(ClientEvent::NoTls) {
                tracing::info!(%client, others, "a client sent what is not TLS to an address for TLS; it is disconnected");
            }
        }
        Ok(Err(error)) => {
            if let Some(others) = event(ClientEvent::TlsHandshakeFailed) {
                let error = with_version(&error).unwrap_or_else(|| error.to_string());
                tracing::info!(%client, %error, others, "a TLS handshake failed; the client is disconnected");
            }
        }
        Err(_) => {
            if let Some(others) = event(ClientEvent::TlsHandshakeTimeout) {
                tracing::info!(
                    %client, within_s = within.as_secs_f64(), others,
                    "a client did not end its TLS handshake in time; it is disconnected"
                );
            }
        }
    }
}

/// Whether not even the first byte was one of TLS.
fn is_other_than_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}
