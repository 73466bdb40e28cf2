//! What an event loop reads from and writes to: sockets, plain or with TLS over them.
//!
//! An event loop's code is compiled for each kind of [`ClientStream`], so plain sockets pay nothing
//! for TLS.
//!
//! A socket counts what the kernel has taken of it, which shows whether a client still reads. The
//! kernel says that there is room again only when a third of its buffer is (a quarter is full, for
//! Unix sockets); of a slow client that is many seconds late. [`Progress::look_closely`] makes the
//! next write try whether there is any.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use ecotone_keyspace::CancelReason;

/// A connection on its way to an event loop.
pub(super) enum DetachedStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    /// Still bound to the runtime of the thread that it comes from.
    Tls(Box<TlsSocket>),
}

/// A connection to a client.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// How much of what was written went on to the client.
    fn progress(&mut self) -> &mut Progress;

    /// Whether the client has gone, or sends no more, also where what it sent before has not been
    /// read.
    fn cancel_reason(&self) -> Option<CancelReason>;

    /// The descriptor of its socket.
    fn descriptor(&self) -> RawFd;

    /// Makes it ready to go to another event loop.
    ///
    /// # Errors
    ///
    /// The system's; it is closed then.
    fn leave(self) -> io::Result<DetachedStream>;
}

/// How much of what was written went on to the client.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes that the kernel took, since the beginning.
    pub(super) taken_bytes: u64,
    looks_closely: bool,
}

impl Progress {
    /// The next write finds room where there is any, also where the kernel does not yet say so.
    pub(super) fn look_closely(&mut self) {
        self.looks_closely = true;
    }
}

/// A socket of the system, bound to the runtime of a thread.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    progress: Progress,
    /// What comes is acknowledged as soon as it is read.
    acknowledges: bool,
}

/// A socket with TLS over it.
pub(super) type TlsSocket = TlsStream<Socket<TcpStream>>;

impl<S: AsFd> Socket<S> {
    pub(super) fn of(stream: S) -> Self {
        Self { stream, progress: Progress::default(), acknowledges: false }
    }

    fn count(&mut self, mut written: Poll<io::Result<usize>>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if written.is_pending() && std::mem::take(&mut self.progress.looks_closely) {
            written = self.write_non_blocking(bytes);
        }
        if let Poll::Ready(Ok(bytes)) = &written {
            self.progress.taken_bytes += *bytes as u64;
        }
        written
    }

    /// Asks the kernel itself, past the runtime, which still waits for its notification. The caller
    /// is woken by the runtime all the same.
    fn write_non_blocking(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let same = self.stream.as_fd().try_clone_to_owned()?;
        match File::from(same).write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            outcome => Poll::Ready(outcome),
        }
    }
}

impl Socket<TcpStream> {
    /// One over which a handshake begins. The kernel would wait 40 ms for an answer that takes its
    /// acknowledgement along, and the last that a client says in a handshake has none where it
    /// shows a certificate and so is given no ticket. A client without `TCP_NODELAY` sends its
    /// first command only once that is acknowledged, and of a longer chain of certificates each
    /// piece only after the one before.
    pub(super) fn acknowledging(stream: TcpStream) -> Self {
        Self { acknowledges: true, ..Self::of(stream) }
    }

    /// From now on answers acknowledge what they are for.
    pub(super) fn has_shaken_hands(&mut self) {
        self.acknowledges = false;
    }

    /// Leaves the runtime it was made in for that of the calling thread.
    pub(super) fn move_here(&mut self) -> io::Result<()> {
        let same = self.stream.as_fd().try_clone_to_owned()?;
        self.stream = TcpStream::from_std(same.into())?;
        Ok(())
    }
}

impl ClientStream for Socket<TcpStream> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn cancel_reason(&self) -> Option<CancelReason> {
        cancel_reason(&self.stream)
    }

    fn descriptor(&self) -> RawFd {
        self.stream.as_fd().as_raw_fd()
    }

    fn leave(self) -> io::Result<DetachedStream> {
        Ok(DetachedStream::Tcp(self.stream.into_std()?))
    }
}

impl ClientStream for Socket<UnixStream> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn cancel_reason(&self) -> Option<CancelReason> {
        cancel_reason(&self.stream)
    }

    fn descriptor(&self) -> RawFd {
        self.stream.as_fd().as_raw_fd()
    }

    fn leave(self) -> io::Result<DetachedStream> {
        Ok(DetachedStream::Unix(self.stream.into_std()?))
    }
}

impl ClientStream for Box<TlsSocket> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.get_mut().0.progress
    }

    fn cancel_reason(&self) -> Option<CancelReason> {
        cancel_reason(&self.get_ref().0.stream)
    }

    fn descriptor(&self) -> RawFd {
        self.get_ref().0.stream.as_raw_fd()
    }

    fn leave(self) -> io::Result<DetachedStream> {
        Ok(DetachedStream::Tls(self))
    }
}

/// Over TCP a client that has gone looks like one that only sends no more, until something is sent
/// to it or it has left something unread.
fn cancel_reason(socket: &impl AsFd) -> Option<CancelReason> {
    let ends = PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP | ends)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&now)).ok()?;
    let found = asked[0].revents();
    match found.intersects(ends) {
        true => Some(CancelReason::Gone),
        false => found.intersects(PollFlags::RDHUP).then_some(CancelReason::HalfClosed),
    }
}

impl<S: AsyncRead + AsFd + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if self.acknowledges && read.is_ready() {
            // It holds for what has come; later the kernel decides anew. Where it cannot be had the
            // client waits.
            let _ = sockopt::set_tcp_quickack(&self.stream, true);
        }
        read
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(written, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        self.count(written, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
