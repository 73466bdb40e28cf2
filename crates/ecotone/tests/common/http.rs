//! A plain client of HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends `request` as it is and reads until the server closes.
pub fn send(address: &str, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    answer(&mut stream)
}

/// Reads an answer up to the end of the connection.
pub fn answer(stream: &mut TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.unwrap_or_else(|| panic!("{head}")), head: head.into(), body: body.into() }
}

pub fn get(address: &str, path: &str) -> Answer {
    send(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

/// The page of metrics.
pub fn metrics(address: &str) -> super::prometheus::Page {
    let answer = get(address, "/metrics");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{}", answer.head);
    let length = answer.head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(length.parse(), Ok(answer.body.len()));
    super::prometheus::Page::parse(&answer.body)
}
