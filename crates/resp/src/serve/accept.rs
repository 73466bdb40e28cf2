//! Takes connections, to be [dealt out](super::deal) to the lanes.
//!
//! Failure: of a client that lost its power, or its network, nothing comes any more, not even an end. The kernel asks it whether it is still
//! there ([`KEEPALIVE_IDLE`]), and ends the connection when it is not; else it would have its seat for ever, unless clients may not be idle.
//!
//! Bounds: [`Limits::clients`](crate::service::Limits) of them, from the moment one is taken until it is closed, on whatever thread it is
//! then. Who comes beyond that is told so and closed.
//!
//! Threads: the first lane's takes plain connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener};

use super::deal::{Dealer, Stream};
use super::lasting::Lasting;
use super::signal::Signal;

/// After an error of `accept` the next try waits so long: it is most often that there are no more file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A client that is silent for so long is asked whether it is still there, as Redis does (`tcp-keepalive`): some kinds of gateways forget
/// connections that are silent for longer, too.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);

/// And asked again after this, as Redis does: a third of it.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(100);

/// Who has answered none of so many is gone.
const KEEPALIVE_PROBES: u32 = 3;

fn take(dealer: &Dealer, stream: Stream, address: String, local_address: String) {
    match dealer.seat(address, local_address) {
        Some(seat) => dealer.deal(stream, seat),
        None => refuse(stream),
    }
}

fn refuse(stream: Stream) {
    use io::Write;
    const TOLD: &[u8] = b"-ERR max number of clients reached\r\n";
    // What does not fit into the socket's empty buffer is not sent.
    let _ = match stream {
        Stream::Tcp(mut stream) => stream.write_all(TOLD),
        Stream::Unix(mut stream) => stream.write_all(TOLD),
        Stream::Tls(_) => Ok(()),
    };
}

/// Begins to take plain connections.
pub(super) fn accept_plain(
    lasting: &mut Lasting,
    dealer: &Arc<Dealer>,
    tcp: Vec<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    signal: &Signal,
) {
    for listener in tcp {
        let (dealer, signal) = (dealer.clone(), signal.clone());
        lasting.begin(accept_tcp(listener, signal, move |stream, address, local| {
            take(&dealer, Stream::Tcp(stream.into_std()?), address.to_string(), local.to_string());
            Ok(())
        }));
    }
    if let Some(listener) = unix {
        let (dealer, signal) = (dealer.clone(), signal.clone());
        lasting.begin(async move {
            let Ok(listener) = UnixListener::from_std(listener) else { return };
            let path = listener.local_addr().ok().and_then(|own| Some(own.as_pathname()?.display().to_string()));
            let address = format!("{}:0", path.unwrap_or_default());
            let accept = async || listener.accept().await?.0.into_std();
            until_stopped(signal, accept, |stream| {
                take(&dealer, Stream::Unix(stream), address.clone(), address.clone());
                Ok(())
            })
            .await;
        });
    }
}

/// Takes connections of `listener` until the server stops; `then` gets each with the client's address and ours.
pub(super) async fn accept_tcp(
    listener: std::net::TcpListener,
    signal: Signal,
    mut then: impl FnMut(TcpStream, SocketAddr, SocketAddr) -> io::Result<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    until_stopped(
        signal,
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
    mut signal: Signal,
    mut accept: impl AsyncFnMut() -> io::Result<C>,
    mut then: impl FnMut(C) -> io::Result<()>,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = signal.stops() => return,
            accepted = accept() => accepted,
        };
        if let Err(error) = accepted.and_then(&mut then) {
            tracing::warn!(%error, "a connection could not be taken");
            tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
        }
    }
}
