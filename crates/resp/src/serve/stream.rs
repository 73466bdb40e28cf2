//! What a lane reads from and writes to: sockets, plain or with TLS over them.
//!
//! A lane's code is compiled for each kind of [`ClientStream`], so plain sockets pay nothing for TLS.
//!
//! A socket counts what the kernel has taken of it, for whoever must know whether a client still reads. The kernel says that there is
//! room again only when a third of its buffer is (a quarter is full, for Unix sockets); of a slow client that is many
//! seconds late. [`Progress::look_closely`] makes the next write try whether there is any.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::deal::Stream;

/// A connection to a client.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// How much of what was written went on to the client.
    fn progress(&mut self) -> &mut Progress;

    /// Whether the client sends no more, also where what it sent before has not been read.
    fn has_hung_up(&self) -> bool;

    /// Makes it ready to go to another lane.
    ///
    /// # Errors
    ///
    /// The system's; it is closed then.
    fn leave(self) -> io::Result<Stream>;
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
}

/// A socket with TLS over it.
pub(super) type TlsSocket = TlsStream<Socket<TcpStream>>;

impl<S: AsFd> Socket<S> {
    pub(super) fn of(stream: S) -> Self {
        Self { stream, progress: Progress::default() }
    }

    fn count(&mut self, mut written: Poll<io::Result<usize>>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if written.is_pending() && std::mem::take(&mut self.progress.looks_closely) {
            written = self.write_at_once(bytes);
        }
        if let Poll::Ready(Ok(bytes)) = &written {
            self.progress.taken_bytes += *bytes as u64;
        }
        written
    }

    /// Asks the kernel itself, past the runtime that still waits to be told of room. Who calls is woken by the runtime all the same.
    fn write_at_once(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let same = self.stream.as_fd().try_clone_to_owned()?;
        match File::from(same).write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            outcome => Poll::Ready(outcome),
        }
    }
}

impl Socket<TcpStream> {
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

    fn has_hung_up(&self) -> bool {
        has_hung_up(&self.stream)
    }

    fn leave(self) -> io::Result<Stream> {
        Ok(Stream::Tcp(self.stream.into_std()?))
    }
}

impl ClientStream for Socket<UnixStream> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn has_hung_up(&self) -> bool {
        has_hung_up(&self.stream)
    }

    fn leave(self) -> io::Result<Stream> {
        Ok(Stream::Unix(self.stream.into_std()?))
    }
}

impl ClientStream for Box<TlsSocket> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.get_mut().0.progress
    }

    fn has_hung_up(&self) -> bool {
        has_hung_up(&self.get_ref().0.stream)
    }

    fn leave(self) -> io::Result<Stream> {
        Ok(Stream::Tls(self))
    }
}

fn has_hung_up(socket: &impl AsFd) -> bool {
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::new(socket, ends)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(ends)
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
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
