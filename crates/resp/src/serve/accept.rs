//! Accepts connections and [assigns](super::rebalancing) them to event loops.
//!
//! Failure: of a client that lost its power, or its network, nothing comes any more, not even an
//! end. The kernel probes it ([`KEEPALIVE_IDLE`]) and ends the connection when it does not answer;
//! else it would keep its connection slot for ever, unless clients may not be idle.
//!
//! Bounds: [`Limits::clients`](crate::service::Limits), from the moment a connection is accepted
//! until it is closed, on whatever thread it is then. Connections beyond that are refused with an
//! error.
//!
//! Threads: the first event loop's accepts plain connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener};

use super::control::ControlReceiver;
use super::liveness::BackgroundTasks;
use super::rebalancing::Balancer;
use super::stream::DetachedStream;

/// After an error of `accept` the next try waits so long: it is most often that there are no more
/// file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A client that is silent for so long is asked whether it is still there, as Redis does
/// (`tcp-keepalive`): some kinds of gateways forget connections that are silent for longer, too.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);

/// And asked again after this, as Redis does: a third of it.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(100);

/// Who has answered none of so many is gone.
const KEEPALIVE_PROBES: u32 = 3;

fn take(balancer: &Balancer, stream: DetachedStream, address: String, local_address: String) {
    match balancer.slot(address, local_address) {
        Some(slot) => balancer.assign(stream, slot),
        None => refuse(stream),
    }
}

fn refuse(stream: DetachedStream) {
    use io::Write;
    const REFUSAL: &[u8] = b"-ERR max number of clients reached\r\n";
    // What does not fit into the socket's empty buffer is not sent.
    let _ = match stream {
        DetachedStream::Tcp(mut stream) => stream.write_all(REFUSAL),
        DetachedStream::Unix(mut stream) => stream.write_all(REFUSAL),
        DetachedStream::Tls(_) => Ok(()),
    };
}

/// Begins to take plain connections.
pub(super) fn accept_plain(
    background: &mut BackgroundTasks,
    balancer: &Arc<Balancer>,
    tcp: Vec<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    control: &ControlReceiver,
) {
    for listener in tcp {
        let (balancer, control) = (balancer.clone(), control.clone());
        background.begin(accept_tcp(listener, control, move |stream, address, local| {
            take(&balancer, DetachedStream::Tcp(stream.into_std()?), address.to_string(), local.to_string());
            Ok(())
        }));
    }
    if let Some(listener) = unix {
        let (balancer, control) = (balancer.clone(), control.clone());
        background.begin(async move {
            let Ok(listener) = UnixListener::from_std(listener) else { return };
            let path = listener.local_addr().ok().and_then(|own| Some(own.as_pathname()?.display().to_string()));
            let address = format!("{}:0", path.unwrap_or_default());
            let accept = async || listener.accept().await?.0.into_std();
            until_stopped(control, accept, |stream| {
                take(&balancer, DetachedStream::Unix(stream), address.clone(), address.clone());
                Ok(())
            })
            .await;
        });
    }
}

/// Takes connections of `listener` until the server stops; `then` gets each with the client's
/// address and ours.
pub(super) async fn accept_tcp(
    listener: std::net::TcpListener,
    control: ControlReceiver,
    mut then: impl FnMut(TcpStream, SocketAddr, SocketAddr) -> io::Result<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    until_stopped(
        control,
        async || listener.accept().await,
        |(stream, address)| {
            // Without it small replies wait for an acknowledgement of those before.
            let _ = stream.set_nodelay(true);
            if let Err(error) = keep_alive(&stream) {
                tracing::debug!(%error, "whether a silent client is still there will not be asked");
            }
            let local = stream.local_addr()?;
            then(stream, address, local)
        },
    )
    .await;
}

/// Lets the kernel ask a silent client whether it is still there.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

async fn until_stopped<C>(
    mut control: ControlReceiver,
    mut accept: impl AsyncFnMut() -> io::Result<C>,
    mut then: impl FnMut(C) -> io::Result<()>,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = control.stops() => return,
            accepted = accept() => accepted,
        };
        if let Err(error) = accepted.and_then(&mut then) {
            tracing::warn!(%error, "a connection could not be taken");
            tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
        }
    }
}
