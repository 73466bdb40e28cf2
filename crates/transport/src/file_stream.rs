//! A connection for files, encrypted or not. Blocking.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, ServerConnection, StreamOwned};

/// A connection for files.
pub(crate) enum FileStream {
    /// On loopback, between servers without identity.
    Plain(TcpStream),
    /// Of a peer that connected here.
    Accepted(Box<StreamOwned<ServerConnection, TcpStream>>),
    /// To a peer.
    Connected(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl FileStream {
    fn socket(&self) -> &TcpStream {
        match self {
            FileStream::Plain(socket) => socket,
            FileStream::Accepted(stream) => &stream.sock,
            FileStream::Connected(stream) => &stream.sock,
        }
    }

    pub(crate) fn set_read_timeout(&self, longest: Duration) -> io::Result<()> {
        self.socket().set_read_timeout(Some(longest))
    }

    pub(crate) fn set_write_timeout(&self, longest: Duration) -> io::Result<()> {
        self.socket().set_write_timeout(Some(longest))
    }

    /// The socket of an unencrypted connection: the kernel may send files by it.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            FileStream::Plain(socket) => Some(socket),
            FileStream::Accepted(_) | FileStream::Connected(_) => None,
        }
    }
}

impl Read for FileStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            FileStream::Plain(stream) => stream.read(buffer),
            FileStream::Accepted(stream) => stream.read(buffer),
            FileStream::Connected(stream) => stream.read(buffer),
        }
    }
}

impl Write for FileStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            FileStream::Plain(stream) => stream.write(bytes),
            FileStream::Accepted(stream) => stream.write(bytes),
            FileStream::Connected(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            FileStream::Plain(stream) => stream.flush(),
            FileStream::Accepted(stream) => stream.flush(),
            FileStream::Connected(stream) => stream.flush(),
        }
    }
}
