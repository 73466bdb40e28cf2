//! A client that gives up on servers that do not answer in time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// All servers have it: they listen beyond loopback.
pub const PASSWORD: &str = "of-the-test";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Text(String),
    Nothing,
    Error(String),
    Array(Vec<Reply>),
}

pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects, and waits for each reply for at most `patience`.
    pub fn connect(address: &str, patience: Duration) -> io::Result<Client> {
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let mut client = Client(BufReader::new(stream));
        match client.ask(&["AUTH", PASSWORD])? {
            Reply::Text(ok) if ok == "OK" => Ok(client),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    pub fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.as_bytes())?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<usize>().map_err(io::Error::other);
        match kind {
            "$" | "*" if rest == "-1" => Ok(Reply::Nothing),
            "$" => {
                let mut bytes = vec![0; number()? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).map(Reply::Text).map_err(io::Error::other)
            }
            "*" => (0..number()?).map(|_| self.read()).collect::<io::Result<_>>().map(Reply::Array),
            "-" => Ok(Reply::Error(rest.to_owned())),
            _ => Ok(Reply::Text(rest.to_owned())),
        }
    }
}

/// One question to a server: its answer, if it comes in time.
pub fn ask(address: &str, words: &[&str], patience: Duration) -> io::Result<Reply> {
    Client::connect(address, patience)?.ask(words)
}
