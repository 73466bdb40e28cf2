//! Accepts connections of other servers: those for files go to threads of their own, those for
//! calls to the services.
//!
//! The number of connections for calls is bounded: each holds a permit until it ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::{debug, warn};

use crate::file_server::{FileServer, MAGIC};

/// How long to wait for the rest of a greeting that came in parts.
const GREETING_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long to wait after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Accepts connections until the run time ends.
pub async fn accept(
    listener: TcpListener,
    file_server: Arc<FileServer>,
    for_calls: mpsc::Sender<io::Result<CountedStream>>,
    max_connections: usize,
    greeting_timeout: Duration,
) {
    let permits = Arc::new(Semaphore::new(max_connections));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, mostly; it passes.
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            debug!("too many connections; one is refused");
            continue;
        };
        let (file_server, for_calls) = (file_server.clone(), for_calls.clone());
        tokio::spawn(async move {
            let mut first = [0; MAGIC.len()];
            let greeting = async {
                // Either side speaks first on a new connection, and both greetings are longer than
                // this.
                while stream.peek(&mut first).await? < first.len() {
                    tokio::time::sleep(GREETING_POLL_INTERVAL).await;
                }
                stream.set_nodelay(true)
            };
            match tokio::time::timeout(greeting_timeout, greeting).await {
                Ok(Ok(())) if first == MAGIC => match stream.into_std() {
                    Ok(stream) => file_server.serve(stream),
                    Err(error) => debug!(%error, "a connection for files was lost"),
                },
                Ok(Ok(())) => {
                    let _ = for_calls.send(Ok(CountedStream { stream, _permit: permit })).await;
                }
                Ok(Err(_)) | Err(_) => debug!("a connection ended before it said anything"),
            }
        });
    }
}

/// A connection for calls, and its permit.
pub struct CountedStream {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for CountedStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
