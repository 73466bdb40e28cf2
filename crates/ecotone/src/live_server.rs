//! The server that has a store open: whether there is one, where it can be asked, and asking it.
//!
//! Commands that read a store's folder are wrong about one that is written meanwhile. So they first
//! find out who has it open for writing: by the lock of the store, which names a process, and by
//! the file in which that process says where it listens ([`ecotone_server::addresses`]). That file
//! is believed only where both name one process, and what answers must be it as well.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ecotone_bench::target::resp::{Bounds, Broken, Client, Limits, Reply, ServerAddress, Tls};
use ecotone_engine::{LockHolder, holder};
use ecotone_server::addresses::{self, Addresses};
use ecotone_server::stores_of_server;

/// Bounds of what a server is asked here: a report of a thousand findings, or of all segments of a
/// large store, is the longest reply.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(5),
    silence_timeout: Duration::from_secs(60),
    reply_timeout: Some(Duration::from_secs(120)),
    reply_bounds: Bounds { bytes: 256 << 20, elements: 0 },
};

/// Files of which every store has one, unless it is damaged.
const SIGNS: [&str; 2] = ["CURRENT", "STORE"];

/// Where the password of clients comes from.
#[derive(clap::Args)]
pub(crate) struct PasswordArgument {
    /// File with the password of clients [default: what ECOTONE_CLIENTS_PASSWORD says, or none]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl PasswordArgument {
    /// The file's, without the end of its line; else the variable's.
    pub(crate) fn password(&self) -> Result<Option<String>> {
        if let Some(path) = &self.password_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the password in {} (--password-file)", path.display()))?;
            let password = text.lines().next().unwrap_or_default();
            if password.is_empty() {
                bail!("the first line of {} is empty; it must be the password (--password-file)", path.display());
            }
            return Ok(Some(password.to_owned()));
        }
        Ok(std::env::var("ECOTONE_CLIENTS_PASSWORD").ok().filter(|password| !password.is_empty()))
    }
}

/// How a server is reached that asks for a password, or speaks TLS.
#[derive(clap::Args)]
pub(crate) struct ConnectionArguments {
    #[command(flatten)]
    password: PasswordArgument,
    /// Connect by TLS
    #[arg(long, requires = "cacert")]
    tls: bool,
    /// File with the certificates of authorities whose servers are trusted, in PEM
    #[arg(long, value_name = "FILE", requires = "tls")]
    cacert: Option<PathBuf>,
    /// File with the certificate that is shown to the server, in PEM
    #[arg(long, value_name = "FILE", requires = "tls", requires = "key")]
    cert: Option<PathBuf>,
    /// File with the key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl ConnectionArguments {
    /// The password, if there is one.
    pub(crate) fn password(&self) -> Result<Option<String>> {
        self.password.password()
    }

    /// By TLS, if that was asked for.
    pub(crate) fn tls(&self) -> Result<Option<Tls>> {
        let Some(ca) = self.cacert.as_ref().filter(|_| self.tls) else { return Ok(None) };
        let own = self.cert.as_deref().zip(self.key.as_deref());
        Tls::new(ca, own).map(Some).context("cannot connect by TLS")
    }
}

/// What an argument `DIR|HOST:PORT` leads to.
#[derive(Debug)]
pub(crate) enum StoreLocation {
    /// A store that nobody has open for writing.
    Store(PathBuf),
    /// A server that can be asked, or why it cannot.
    Server(LiveServer),
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct LiveServer {
    /// The store that it has open, where that is what was asked for, and its process, where the
    /// kernel shows it.
    store: Option<(PathBuf, Option<i32>)>,
    /// Where it listens, if it has said so.
    listens: Option<Listens>,
}

#[derive(Debug)]
enum Listens {
    Said(Box<Addresses>),
    At(String),
}

/// Finds out what is at `argument`: the folder of a store or of a server, or the address of one.
///
/// # Errors
///
/// As [`store_in`].
pub(crate) fn locate(argument: &Path) -> Result<StoreLocation> {
    let store = store_in(argument)?;
    if !store.exists()
        && let Some(address) = argument.to_str().filter(|text| is_address(text))
    {
        return Ok(StoreLocation::Server(LiveServer { store: None, listens: Some(Listens::At(address.to_owned())) }));
    }
    let pid = match holder(&store) {
        Some(LockHolder::AnotherProcess { pid }) => pid,
        Some(LockHolder::ThisProcess) | None => return Ok(StoreLocation::Store(store)),
    };
    // The server's folder, whichever was named: a store lies in it, or in its folder of shards.
    let above = store.parent();
    let folders = [Some(argument), above, above.and_then(Path::parent)].into_iter().flatten();
    let said = pid.and_then(|pid| folders.into_iter().find_map(|folder| addresses::of(folder, pid)));
    Ok(StoreLocation::Server(LiveServer {
        store: Some((store, pid)),
        listens: said.map(|said| Listens::Said(Box::new(said))),
    }))
}

/// `folder`, or the store in it where it is the folder of a server (`ecotone serve --dir`), which
/// is no store itself.
///
/// # Errors
///
/// The server has several shards, each with a store: names them.
pub(crate) fn store_in(folder: &Path) -> Result<PathBuf> {
    // Of one that may not be read whoever opens it says so.
    let is_there =
        |path: PathBuf| path.try_exists().unwrap_or_else(|error| error.kind() == ErrorKind::PermissionDenied);
    let is_store = |folder: &Path| SIGNS.iter().any(|sign| is_there(folder.join(sign)));
    if is_store(folder) {
        return Ok(folder.to_path_buf());
    }
    let mut within = stores_of_server(folder);
    within.retain(|store| is_store(store));
    match &within[..] {
        [] => Ok(folder.to_path_buf()),
        [only] => Ok(only.clone()),
        several => bail!(
            "{} is the folder of a server with {} shards, each with a store of its own: name one of them: {}",
            folder.display(),
            several.len(),
            several.iter().map(|store| store.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Whether it can be `HOST:PORT`.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok())
}

impl LiveServer {
    /// Who has the store open, for a line that says so.
    pub(crate) fn in_use(&self) -> String {
        match &self.store {
            Some((store, Some(pid))) => format!("the store {} is in use by process {pid}", store.display()),
            Some((store, None)) => format!("the store {} is in use by another process", store.display()),
            None => "the server has its store open".into(),
        }
    }

    /// Connects to it. `command` is what it would be asked by whoever can connect, for who cannot:
    /// the words of the command line before the address, and requests.
    ///
    /// # Errors
    ///
    /// Where it cannot be asked: who has the store, why not, and how else.
    pub(crate) fn connect(&self, password: Option<&str>, command: &str, requests: &str) -> Result<Connected> {
        self.connect_by(None, password, command, requests)
    }

    /// The same by TLS, where that is given.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_by(
        &self,
        tls: Option<&Tls>,
        password: Option<&str>,
        command: &str,
        requests: &str,
    ) -> Result<Connected> {
        let addresses = match tls {
            Some(_) => self.tls_addresses()?,
            None => self.addresses(command, requests)?,
        };
        let mut failed = String::new();
        for address in &addresses {
            let opened = match tls {
                Some(tls) => Client::open_tls(address, tls, LIMITS),
                None => Client::open(address, LIMITS),
            };
            match opened {
                Ok(client) => {
                    let mut connected = Connected { client, address: shown(address) };
                    self.introduce(&mut connected, password)?;
                    return Ok(connected);
                }
                Err(broken) => {
                    let _ = write!(failed, "; {}: {broken}", shown(address));
                }
            }
        }
        bail!(
            "{}, and no server answers where it listens{failed}: ask it by `{command} HOST:PORT`, or stop it",
            self.in_use()
        )
    }

    /// Where it can be asked by TLS.
    fn tls_addresses(&self) -> Result<Vec<ServerAddress>> {
        let found: Vec<String> = match &self.listens {
            Some(Listens::At(address)) => vec![address.clone()],
            Some(Listens::Said(said)) => said.tls.iter().map(ToString::to_string).collect(),
            None => Vec::new(),
        };
        match found.is_empty() {
            true => bail!("{}, which does not say where it serves clients by TLS: name HOST:PORT", self.in_use()),
            false => Ok(found.into_iter().map(ServerAddress::Tcp).collect()),
        }
    }

    /// Where it can be asked without TLS.
    fn addresses(&self, command: &str, requests: &str) -> Result<Vec<ServerAddress>> {
        let said = match &self.listens {
            Some(Listens::At(address)) => return Ok(vec![ServerAddress::Tcp(address.clone())]),
            Some(Listens::Said(said)) => said,
            None => bail!(
                "{}, which does not say in its folder where it listens: if it is a server, ask it by `{command} HOST:PORT`, with the \
                 address where it serves clients; or stop it first",
                self.in_use()
            ),
        };
        let socket = said.socket.iter().map(|path| ServerAddress::Unix(path.clone()));
        let plain = said.clients.iter().map(|address| ServerAddress::Tcp(address.to_string()));
        let found: Vec<_> = socket.chain(plain).collect();
        match (found.is_empty(), said.tls.first()) {
            (false, _) => Ok(found),
            (true, Some(tls)) => bail!(
                "{}, which serves clients by TLS only, and this command does not speak TLS (`ecotone cluster` does, with --tls and \
                 --cacert FILE): send it {requests} with a client that does, such as redis-cli --tls -h {} -p {}; or have it listen on a socket as well (clients.unix_socket)",
                self.in_use(),
                tls.ip(),
                tls.port()
            ),
            (true, None) => bail!("{}, which serves no clients that could ask it: stop it first", self.in_use()),
        }
    }

    /// Gives the password, and makes sure that it is the server that has the store.
    fn introduce(&self, connected: &mut Connected, password: Option<&str>) -> Result<()> {
        let how = "give it with --password-file FILE or in ECOTONE_CLIENTS_PASSWORD";
        if let Some(password) = password
            && let Reply::Error(said) = connected.reply(&[b"AUTH", password.as_bytes()])?
            && said.starts_with("WRONGPASS")
        {
            bail!(
                "{}, and the server at {} does not take the password ({said}): {how}",
                self.in_use(),
                connected.address
            );
        }
        let info = match connected.reply(&[b"INFO", b"server"])? {
            Reply::Bulk(Some(info)) => String::from_utf8_lossy(&info).into_owned(),
            Reply::Error(said) if said.starts_with("NOAUTH") => {
                bail!("{}, and the server at {} asks for a password: {how}", self.in_use(), connected.address)
            }
            other => bail!("the server at {} answers INFO by {other:?}", connected.address),
        };
        let own = info.lines().find_map(|line| line.strip_prefix("process_id:")?.trim().parse::<i32>().ok());
        if let (Some((_, Some(pid))), Some(Listens::Said(_))) = (&self.store, &self.listens)
            && own != Some(*pid)
        {
            bail!("{}, but another server answers at {}: stop the process first", self.in_use(), connected.address);
        }
        Ok(())
    }
}

fn shown(address: &ServerAddress) -> String {
    match address {
        ServerAddress::Tcp(address) => address.clone(),
        ServerAddress::Unix(path) => path.display().to_string(),
    }
}

/// A connection to a server that takes commands.
#[derive(Debug)]
pub(crate) struct Connected {
    client: Client,
    address: String,
}

impl Connected {
    /// Where it is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends one request. An error reply is a reply.
    pub(crate) fn reply(&mut self, parts: &[&[u8]]) -> Result<Reply> {
        self.client.ask(parts).map_err(|broken| match broken {
            Broken::SpeaksTls => anyhow!(
                "the server at {} speaks TLS: `ecotone cluster` and `ecotone backup` do with --tls and --cacert FILE, other commands do not",
                self.address
            ),
            broken => anyhow!("the server at {} does not answer: {broken}", self.address),
        })
    }

    /// Sends one request, of which an error reply is an error.
    pub(crate) fn ask(&mut self, parts: &[&[u8]]) -> Result<Reply> {
        match self.reply(parts)? {
            Reply::Error(said) => bail!("the server at {} answers: {said}", self.address),
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_one_store_or_each_must_be_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |within: &str| folder.path().join(within);
        let make = |within: &str| {
            std::fs::create_dir_all(path(within)).unwrap();
            std::fs::write(path(within).join(SIGNS[0]), "").unwrap();
        };
        assert_eq!(store_in(folder.path()).unwrap(), folder.path());
        make("shards/7");
        assert_eq!(store_in(folder.path()).unwrap(), path("shards/7"));
        make("store");
        let said = store_in(folder.path()).unwrap_err().to_string();
        assert!(said.contains("2 shards") && said.contains("store, ") && said.ends_with("shards/7"), "{said}");
        assert_eq!(store_in(&path("shards/7")).unwrap(), path("shards/7"));
    }

    #[test]
    fn an_address_is_told_from_a_folder() {
        for (text, is) in [
            ("127.0.0.1:6379", true),
            ("[::1]:6379", true),
            ("host:1", true),
            ("/a:b/c:1", false),
            ("folder", false),
            (":6379", false),
            ("host:port", false),
            ("host:70000", false),
        ] {
            assert_eq!(is_address(text), is, "{text}");
        }
    }
}
