//! What owner and worker say to each other over a socket: requests `operation, length, body`,
//! answers `status, length, body`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// What a worker asks of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The job: the store's name and RocksDB's input.
    Job,
    /// A file is opened: its length.
    Open,
    /// The length of a file.
    Size,
    /// The names in the store's directory.
    List,
    /// Bytes of a file: offset, length, path.
    Read,
    /// One output: name and bytes.
    Output,
    /// The job is done: RocksDB's result.
    Done,
}

const OPERATIONS: [Operation; 7] = [
    Operation::Job,
    Operation::Open,
    Operation::Size,
    Operation::List,
    Operation::Read,
    Operation::Output,
    Operation::Done,
];

pub fn send_request(stream: &mut UnixStream, operation: Operation, body: &[u8]) -> io::Result<()> {
    send(stream, OPERATIONS.iter().position(|known| *known == operation).expect("listed") as u8, body)
}

pub fn receive_request(stream: &mut UnixStream) -> io::Result<(Operation, Vec<u8>)> {
    let (code, body) = receive(stream)?;
    Ok((OPERATIONS[usize::from(code)], body))
}

/// An answer: the bytes, or that the file does not exist.
pub fn send_answer(stream: &mut UnixStream, answer: Option<&[u8]>) -> io::Result<()> {
    send(stream, u8::from(answer.is_none()), answer.unwrap_or_default())
}

pub fn receive_answer(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    match receive(stream)? {
        (0, body) => Ok(body),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn send(stream: &mut UnixStream, code: u8, body: &[u8]) -> io::Result<()> {
    stream.write_all(&[code])?;
    stream.write_all(&(body.len() as u64).to_le_bytes())?;
    stream.write_all(body)
}

fn receive(stream: &mut UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let mut len = [0; 8];
    len.copy_from_slice(&head[1..]);
    let mut body = vec![0; u64::from_le_bytes(len) as usize];
    stream.read_exact(&mut body)?;
    Ok((head[0], body))
}

/// Two byte strings in one body.
pub fn join(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut body = (first.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(first);
    body.extend_from_slice(second);
    body
}

pub fn split(body: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = body.split_first_chunk::<8>().expect("a length");
    rest.split_at(u64::from_le_bytes(*len) as usize)
}
