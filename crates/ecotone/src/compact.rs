//! `ecotone compact`: frees the garbage of a running server, or of a store that nobody has open.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ecotone_bench::target::resp::{Bounds, Broken, Client, Limits, Reply, ServerAddress};
use ecotone_engine::{CompactionProgress, CompactionStage, Error, OpenMode, Store, StoreSettings};
use ecotone_server::config::{Config, FILE_VARIABLE};

use crate::live_server::{PasswordArgument, store_in};
use crate::output;
use crate::progress::Spinner;
use crate::top::with_port;

/// How often a server is asked how far it is.
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// What asks how far it is waits no longer than this for an answer.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(2),
    silence_timeout: Duration::from_secs(10),
    reply_timeout: Some(Duration::from_secs(10)),
    reply_bounds: Bounds { bytes: 64 << 10, elements: 64 },
};

/// What waits for the end waits as long as that takes.
const WAITING: Limits = Limits { silence_timeout: Duration::from_secs(365 * 86_400), reply_timeout: None, ..LIMITS };

#[derive(clap::Args)]
#[command(
    after_help = "A running server is asked by its clients' address (COMPACT), without TLS; it ends what it has begun when this program ends. A folder is opened for \
                  writing, so no server may have it open. All keys are rewritten, and all values that lie beside them: that takes as long as the store is large.\n\nExamples:\n  \
                  ecotone compact 127.0.0.1:6379\n  ecotone compact /var/lib/ecotone --config /etc/ecotone.toml --json"
)]
pub(crate) struct Arguments {
    /// Where a server serves clients, or the folder of a store or of the server that has it
    #[arg(value_name = "HOST:PORT|DIR")]
    what: String,
    #[command(flatten)]
    password: PasswordArgument,
    /// The configuration of the server that the folder belongs to: tables are made as it makes
    /// them; default: the one that ECOTONE_CONFIG names, else the defaults of all store options
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let spinner = Spinner::start();
    let began = Instant::now();
    let folder = Path::new(&arguments.what);
    let is_folder = folder.is_dir() || arguments.what.contains('/');
    let outcome = if is_folder {
        of_folder(&store_in(folder)?, store_options(arguments.config.as_deref()), &spinner)
    } else {
        of_server(&with_port(&arguments.what), arguments.password.password()?.as_deref(), &spinner)
    };
    spinner.end();
    let done = outcome?;
    output::print(&if arguments.json { json(&done, began.elapsed()) } else { text(&done, began.elapsed()) })
}

/// The options that a server with this configuration opens its store with.
fn store_options(file: Option<&Path>) -> Result<StoreSettings> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(match file.map(Path::to_path_buf).or(named) {
        Some(file) => Config::load(Some(&file), std::env::vars_os())?.serve_options()?.store,
        None => StoreSettings::default(),
    })
}

/// Compacts a store that nobody has open.
fn of_folder(folder: &Path, options: Result<StoreSettings>, spinner: &Spinner) -> Result<CompactionProgress> {
    // Expired values go as they do in a server; that changes nothing for a store without any.
    let options = StoreSettings { reclaim_expired: true, ..options? };
    let store = match Store::open(folder, OpenMode::Open, options) {
        Ok(store) => store,
        Err(locked @ Error::Locked { .. }) => {
            bail!(
                "{locked}; ask the server that has it: `ecotone compact HOST:PORT`, with the address that it serves clients at"
            )
        }
        Err(error) => return Err(error.into()),
    };
    let done = store.compact_all(&mut |progress| {
        spinner.say(said(progress));
        true
    })?;
    store.close()?;
    Ok(done)
}

/// Has a running server compact its store, and asks how far it is meanwhile.
fn of_server(address: &str, password: Option<&str>, spinner: &Spinner) -> Result<CompactionProgress> {
    let mut asks = connected(address, password, LIMITS)?;
    let mut waits = connected(address, password, WAITING)?;
    waits.queue(&[b"COMPACT"]);
    waits.send().map_err(|broken| explained(address, &broken))?;
    let waiting = std::thread::scope(|scope| -> Result<Reply> {
        let waiting = scope.spawn(|| waits.receive());
        while !waiting.is_finished() {
            // How far it is matters less than that it goes on.
            if let Ok(Some(progress)) = status(&mut asks) {
                spinner.say(said(&progress));
            }
            let until = Instant::now() + ASKED_EVERY;
            while Instant::now() < until && !waiting.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let reply = waiting.join().map_err(|_| anyhow::anyhow!("the thread that waits for the server panicked"))?;
        reply.map_err(|broken| explained(address, &broken))
    })?;
    if let Reply::Error(said) = waiting {
        bail!("the server at {address} did not compact everything: {}", printable(&said));
    }
    // The connection may have been closed for idling.
    let mut last = status(&mut asks).ok().flatten();
    if last.is_none() {
        last = status(&mut connected(address, password, LIMITS)?)?;
    }
    last.with_context(|| format!("the server at {address} does not report what it has done (COMPACT STATUS)"))
}

fn connected(address: &str, password: Option<&str>, limits: Limits) -> Result<Client> {
    let mut client =
        Client::open(&ServerAddress::Tcp(address.to_owned()), limits).map_err(|broken| explained(address, &broken))?;
    if let Some(password) = password
        && let Reply::Error(said) =
            client.ask(&[b"AUTH", password.as_bytes()]).map_err(|broken| explained(address, &broken))?
        && said.starts_with("WRONGPASS")
    {
        bail!(
            "the server at {address} does not take the password: {}\n  it is the `clients.password` of its configuration; give it with \
             --password-file FILE or in ECOTONE_CLIENTS_PASSWORD",
            printable(&said)
        );
    }
    Ok(client)
}

/// What the server says of the compaction; `None` where that is not understood.
fn status(client: &mut Client) -> Result<Option<CompactionProgress>> {
    let Reply::Array(Some(parts)) = client.ask(&[b"COMPACT", b"STATUS"])? else { return Ok(None) };
    Ok(progress_of(&parts))
}

fn progress_of(parts: &[Reply]) -> Option<CompactionProgress> {
    let value = |name: &str| {
        let pair = parts
            .chunks_exact(2)
            .find(|pair| matches!(&pair[0], Reply::Bulk(Some(found)) if found == name.as_bytes()))?;
        Some(&pair[1])
    };
    let number = |name: &str| match value(name)? {
        Reply::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let Reply::Bulk(Some(stage)) = value("stage")? else { return None };
    let stages = [
        CompactionStage::Memtables,
        CompactionStage::Tables,
        CompactionStage::Values,
        CompactionStage::Done,
        CompactionStage::Ended,
    ];
    Some(CompactionProgress {
        stage: stages.into_iter().find(|known_stage| known_stage.name().as_bytes() == stage)?,
        pieces: number("pieces")?,
        pieces_done: number("pieces_done")?,
        bytes_before: number("bytes_before")?,
        bytes: number("bytes")?,
    })
}

fn explained(address: &str, broken: &Broken) -> anyhow::Error {
    let why = printable(&broken.to_string());
    match broken {
        Broken::NoServer(_) => anyhow::anyhow!(
            "no server at {address}: {why}\n  give the address after `clients are served` in the log of `ecotone serve`, or the folder of a store that no server has open"
        ),
        Broken::Lost(_) => anyhow::anyhow!(
            "the server at {address} is gone: {why}\n  what was compacted stays so; see its log, and try again"
        ),
        Broken::NotRedis(_) => anyhow::anyhow!("what listens at {address} is no server for clients: {why}"),
        Broken::SpeaksTls => anyhow::anyhow!(
            "the server at {address} speaks TLS, which this command does not\n  give an address without it, on its own machine or through a tunnel such as ssh"
        ),
    }
}

/// A server is not trusted to steer the terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(512).collect()
}

fn said(progress: &CompactionProgress) -> String {
    let mib = progress.bytes >> 20;
    match progress.stage {
        CompactionStage::Tables => {
            format!("tables: piece {} of {}, {mib} MiB taken", progress.pieces_done + 1, progress.pieces.max(1))
        }
        stage => format!("{}: {mib} MiB taken", stage.name()),
    }
}

fn text(done: &CompactionProgress, took: Duration) -> String {
    format!(
        "{} bytes before, {} now: {} freed in {:.1} s\n",
        done.bytes_before,
        done.bytes,
        done.bytes_before.saturating_sub(done.bytes),
        took.as_secs_f64()
    )
}

fn json(done: &CompactionProgress, took: Duration) -> String {
    serde_json::json!({
        "bytes_before": done.bytes_before,
        "bytes": done.bytes,
        "pieces": done.pieces,
        "stage": done.stage.name(),
        "seconds": took.as_secs_f64(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_its_compaction_is_understood_or_is_nothing() {
        let bulk = |text: &str| Reply::Bulk(Some(text.as_bytes().to_vec()));
        let mut parts = vec![bulk("state"), bulk("running"), bulk("stage"), bulk("tables")];
        for (name, number) in [("pieces", 7), ("pieces_done", 2), ("bytes_before", 300 << 20), ("bytes", 200 << 20)] {
            parts.extend([bulk(name), Reply::Integer(number)]);
        }
        let found = progress_of(&parts).unwrap();
        assert_eq!((found.stage, found.pieces, found.pieces_done), (CompactionStage::Tables, 7, 2));
        assert_eq!(said(&found), "tables: piece 3 of 7, 200 MiB taken");
        parts[3] = bulk("another stage");
        assert_eq!(progress_of(&parts), None);
        assert_eq!(progress_of(&[]), None);
        assert_eq!(printable("a\x1b[2J\r\nb"), "a[2Jb");
    }
}
