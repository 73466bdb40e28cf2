//! The connection for files as a stranger speaks it: see `src/file_server.rs` for its form.

use std::io::{self, Read, Write};
use std::net::TcpStream;

pub const MAGIC: [u8; 4] = *b"ECOF";

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Range {
    pub file: String,
    pub offset: u64,
    pub length: u32,
}

/// A connection for files of a server.
pub struct Files(TcpStream);

impl Files {
    /// `PermissionDenied` if the server refuses the token, `Unsupported` with its version if it
    /// refuses this one.
    pub fn connect(address: &str, token: &[u8]) -> io::Result<Files> {
        Files::connect_as(ecotone_cluster::PROTOCOL_VERSION, address, token)
    }

    pub fn connect_as(version: u32, address: &str, token: &[u8]) -> io::Result<Files> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(super::PATIENCE))?;
        stream.write_all(&[&MAGIC, &version.to_le_bytes(), token].concat())?;
        let mut status = [0];
        stream.read_exact(&mut status)?;
        match status[0] {
            0 => Ok(Files(stream)),
            2 => {
                let mut version = [0; 4];
                stream.read_exact(&mut version)?;
                Err(io::Error::new(io::ErrorKind::Unsupported, u32::from_le_bytes(version).to_string()))
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// `PermissionDenied` if the server refuses the range.
    pub fn read(&mut self, range: &Range) -> io::Result<Vec<u8>> {
        let name = range.file.as_bytes();
        let mut request = vec![name.len() as u8];
        request.extend_from_slice(&name[..name.len().min(255)]);
        request.extend_from_slice(&range.offset.to_le_bytes());
        request.extend_from_slice(&range.length.to_le_bytes());
        self.0.write_all(&request)?;
        let mut head = [0; 5];
        self.0.read_exact(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut data = vec![0; length];
        self.0.read_exact(&mut data)?;
        if head[0] == 0 { Ok(data) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

/// The server's side: the token that was shown.
pub fn read_hello(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut hello = [0; 40];
    stream.read_exact(&mut hello)?;
    Ok(hello[8..].to_vec())
}

/// The server's side: the next request.
pub fn read_request(stream: &mut TcpStream) -> io::Result<Range> {
    let mut name_length = [0];
    stream.read_exact(&mut name_length)?;
    let mut rest = vec![0; usize::from(name_length[0]) + 12];
    stream.read_exact(&mut rest)?;
    let (name, numbers) = rest.split_at(usize::from(name_length[0]));
    let (offset, length) = numbers.split_at(8);
    Ok(Range {
        file: String::from_utf8_lossy(name).into_owned(),
        offset: u64::from_le_bytes(offset.try_into().unwrap()),
        length: u32::from_le_bytes(length.try_into().unwrap()),
    })
}
