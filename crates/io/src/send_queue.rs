//! What the kernel holds of a connection's outgoing bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were written to a TCP connection and that its other side has not acknowledged.
///
/// # Errors
///
/// Those of the kernel, for what is no connection.
pub fn unacknowledged_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one `int` (SIOCOUTQ, the same number as
    // TIOCOUTQ), which is alive during the call.
    let outcome = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome == 0 { Ok(bytes.max(0) as u64) } else { Err(io::Error::last_os_error()) }
}

/// Memory that the kernel gives the outgoing bytes of a connection now; it grows with the need.
///
/// # Errors
///
/// Those of the kernel, for what is no socket.
pub fn send_buffer_bytes(socket: &impl AsFd) -> io::Result<u64> {
    let (mut bytes, mut length): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `bytes`,
    // which is alive during the call and has as many.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw mut bytes).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 { Ok(bytes.max(0) as u64) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_the_other_side_does_not_take_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged_bytes(&sender).unwrap(), 0);
        assert!(send_buffer_bytes(&sender).unwrap() > 0);
        // Nobody reads: both buffers fill.
        sender.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(bytes) = sender.write(&[0; 65_536]) {
            written += bytes;
        }
        let waiting = unacknowledged_bytes(&sender).unwrap();
        assert!(waiting > 0 && waiting <= written as u64, "{waiting} of {written}");
        receiver.read_exact(&mut vec![0; written]).unwrap();
        let began = Instant::now();
        while unacknowledged_bytes(&sender).unwrap() > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "what was read is not acknowledged");
            std::thread::yield_now();
        }
        let no_socket = std::fs::File::open("/dev/null").unwrap();
        assert!(unacknowledged_bytes(&no_socket).is_err() && send_buffer_bytes(&no_socket).is_err());
    }
}
