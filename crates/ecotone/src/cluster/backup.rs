//! `ecotone cluster backup` and `ecotone cluster restore`: all shards of a federation into a folder of
//! backups, and from there into the first server of another one.
//!
//! The map says which server is the primary of a shard. It is asked of the server that was named, and
//! where a primary is gone of the others as well. The newest map counts, and none that is older
//! than one that was there before: a server that has lost touch may say what was true long ago.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ecotone_bench::target::resp::ServerAddress;
use ecotone_control::settings::{COPIES, MIN_IN_SYNC};
use ecotone_server::backup::{
    self, BackupError, DEFAULT_LIMIT_BYTES_PER_S, FederationBackupReport, FederationRestoreReport, FederationSource,
    SavedFederation, SavedShard, ShardProgress, ShardSource, back_up_federation, restore_federation,
};
use ecotone_server::{RestoredServer, host_name};
use ecotone_types::ServerId;
use serde_json::Value;

use super::print;
use crate::backup::remote::{OfShard, Remote, Server, server};
use crate::backup::{all_removed, described, human, made_text, options};
use crate::live_server::ConnectionArguments;
use crate::output::line;
use crate::progress::Spinner;

/// Before the primary of a shard is looked for once more.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Servers that are asked for the map at once, each in a thread; with each try others of more.
const MAX_ASKED: usize = 8;

/// Copies of a shard that a restored federation begins with, unless others are asked for: there is one
/// server.
const FIRST_COPIES: u64 = 1;

#[derive(clap::Args)]
pub(super) struct BackupArguments {
    /// Where any server of the federation serves clients; or unix:///PATH
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Folder of backups, made if there is none
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    /// How many backups of this federation stay in it, this one included [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Bytes a second that are read of a server at most; 0: as fast as it goes
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_LIMIT_BYTES_PER_S)]
    limit_bytes_per_second: u64,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct RestoreArguments {
    /// Folder of backups
    folder: PathBuf,
    /// Which backup, as `ecotone backup --list FOLDER` names it [default: the newest of a federation]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// Folder of the server that is made: empty, or not there
    #[arg(long)]
    dir: PathBuf,
    /// Name of the first server, at most 64 bytes [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// What fails together with it: a rack, a site, a power supply
    #[arg(long, default_value = "", hide_default_value = true)]
    zone: String,
    /// How many copies each shard is to have from the start, 1 to 7
    #[arg(long, value_name = "NUMBER", default_value_t = FIRST_COPIES, value_parser = clap::value_parser!(u64).range(1..=7))]
    copies: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Backs all shards up.
pub(super) fn backup(arguments: &BackupArguments) -> Result<()> {
    let options = options(arguments.limit_bytes_per_second, arguments.keep)?;
    let mut guide = Guide::new(server(&arguments.address, &arguments.connection)?);
    let spinner = Spinner::start();
    let made = back_up_federation(&arguments.to, &mut guide, options, &|| true, &mut |progress| {
        let ShardProgress { shard, done_shards, shards, copy } = progress;
        spinner.say(format!("shard {shard} ({done_shards} of {shards} are there): {}", described(copy)));
    });
    spinner.end();
    let report = made?;
    print(arguments.json, &serde_json::to_value(&report)?, &backed_up(&report, &arguments.to))?;
    if let Some(why) = &report.not_restorable {
        bail!("the backup is complete, but this version cannot restore it: {why}");
    }
    all_removed(&report.backup)
}

/// Makes the first server of a new federation.
pub(super) fn restore(arguments: &RestoreArguments) -> Result<()> {
    let name = match &arguments.name {
        Some(name) => ServerId::new(name.as_str()).context("--name")?,
        None => host_name()?,
    };
    let server = |saved: &SavedFederation| RestoredServer {
        name: name.clone(),
        zone: arguments.zone.clone(),
        settings: settings(saved, arguments.copies),
    };
    let spinner = Spinner::start();
    let made =
        restore_federation(&arguments.folder, arguments.backup.as_deref(), &arguments.dir, &server, &mut |progress| {
            spinner.say(described(progress));
        });
    spinner.end();
    let report = made?;
    print(arguments.json, &serde_json::to_value(&report)?, &restored(&report, &arguments.dir))
}

/// The settings of the old federation, but that its first server is to serve although it is alone.
fn settings(saved: &SavedFederation, copies: u64) -> BTreeMap<String, String> {
    let mut settings = saved.settings.clone();
    settings.insert(COPIES.to_owned(), copies.to_string());
    if settings.get(MIN_IN_SYNC).is_some_and(|members| members.parse().is_ok_and(|members: u64| members > copies)) {
        settings.insert(MIN_IN_SYNC.to_owned(), copies.to_string());
    }
    settings
}

fn position(shard: &SavedShard) -> String {
    let SavedShard { epoch, number, .. } = shard;
    match number {
        Some(number) => format!("epoch {epoch}, number {number}"),
        None => format!("epoch {epoch}, one copy without positions"),
    }
}

fn backed_up(report: &FederationBackupReport, to: &Path) -> String {
    let mut text = made_text(&report.backup, to);
    line!(
        text,
        "of        federation {}, {} shards, each as its primary had it:",
        report.federation,
        report.shards.len()
    );
    for shard in &report.shards {
        let SavedShard { shard: number, server, files, bytes, .. } = shard;
        line!(text, "  shard {number}  {} on {server}, {} in {files} files", position(shard), human(*bytes));
    }
    if report.retries > 0 {
        line!(text, "retries   {}, since a primary was gone", report.retries);
    }
    text
}

fn restored(report: &FederationRestoreReport, dir: &Path) -> String {
    let mut text = String::new();
    let FederationRestoreReport { restored, federation, old_federation, server, old_settings, settings, shards } =
        report;
    line!(text, "backup      {} of federation {old_federation}", restored.id);
    line!(
        text,
        "files       {} ({}), in {:.1} s",
        restored.files,
        human(restored.bytes),
        restored.took_ms as f64 / 1e3
    );
    if restored.resumed_bytes > 0 {
        line!(text, "resumed     {} had been written before", human(restored.resumed_bytes));
    }
    for shard in shards {
        line!(text, "shard {:<5} as of {}", shard.shard, position(shard));
    }
    line!(text, "federation  {federation}, a new one; first server {server}, with all {} shards", shards.len());
    let dir = dir.display();
    line!(text, "Start it: ecotone serve --dir {dir} --listen ADDRESS:7411");
    line!(
        text,
        "Let others join: ecotone cluster token HOST:PORT (where it serves clients), and on the other machine\n  \
         ecotone serve --dir DIR --listen ADDRESS:7411 --join ADDRESS:7411 --token TOKEN --name NAME"
    );
    for (name, now) in settings {
        if let Some(before) = old_settings.get(name).filter(|before| *before != now) {
            line!(
                text,
                "Setting {name} is {now}, and was {before}: once so many servers are there, ecotone cluster set HOST:PORT {name} {before}"
            );
        }
    }
    text
}

/// Finds the primaries of shards.
struct Guide {
    /// The one that was named.
    first: Server,
    /// Where others serve clients.
    others: Vec<Server>,
    /// What one of them has said last.
    map: Option<FederationMap>,
}

/// What a server says of its federation.
struct FederationMap {
    status: Value,
    /// Who has said so.
    asked: Server,
}

impl FederationMap {
    fn federation(&self) -> &str {
        self.status["federation"].as_str().unwrap_or_default()
    }

    /// Of two the greater one is newer.
    fn age(&self) -> (u64, u64) {
        let number = |name: &str| self.status[name].as_u64().unwrap_or(0);
        (number("generation"), number("map_version"))
    }

    fn servers(&self) -> impl Iterator<Item = &Value> {
        self.status["servers"].as_array().into_iter().flatten()
    }

    /// How a server of it is reached, as the one that was asked is.
    fn reached(&self, server: &Value) -> Option<Server> {
        if server["self"] == Value::Bool(true) {
            return Some(self.asked.clone());
        }
        let address = client_address(server["clients"].as_str()?, self.asked.tls.is_some())?;
        Some(Server { address: ServerAddress::Tcp(address), ..self.asked.clone() })
    }
}

/// Where a server is reached that the map has as `IP:PORT[+TLS_PORT][@HOST_NAME]`, with 0 for a port
/// that it does not have.
fn client_address(text: &str, by_tls: bool) -> Option<String> {
    let (text, host_name) = text.split_once('@').unwrap_or((text, ""));
    let (plain, tls_port) = text.split_once('+').unwrap_or((text, "0"));
    let (ip, port) = plain.rsplit_once(':')?;
    // The name is what its certificate is for.
    let (host, port) = match by_tls {
        true if !host_name.is_empty() => (host_name, tls_port),
        true => (ip, tls_port),
        false => (ip, port),
    };
    (port.parse::<u16>().is_ok_and(|port| port != 0) && !host.is_empty()).then(|| format!("{host}:{port}"))
}

impl Guide {
    fn new(first: Server) -> Guide {
        Guide { first, others: Vec::new(), map: None }
    }

    /// What a server says of its federation.
    fn ask(server: &Server) -> backup::Result<FederationMap> {
        let makes_no_sense = || {
            BackupError::Source(format!("the server at {} answers FEDERATION by what makes no sense", server.address))
        };
        let answer = Remote::of_map(server.clone()).text(&[b"FEDERATION", b"STATUS"])?;
        let status: Value = serde_json::from_slice(&answer).map_err(|_| makes_no_sense())?;
        let map = FederationMap { status, asked: server.clone() };
        if map.federation().is_empty() {
            return Err(makes_no_sense());
        }
        if map.status["is_removed"] == Value::Bool(true) {
            return Err(BackupError::Gone(format!("the server at {} was removed from its federation", server.address)));
        }
        Ok(map)
    }

    /// The newest map of all servers that answer, or of [`MAX_ASKED`] of them, others with each
    /// try.
    fn look(&mut self, tries: u32) -> backup::Result<&FederationMap> {
        let mut all: Vec<&Server> = [&self.first].into_iter().chain(&self.others).collect();
        let count = all.len();
        all.rotate_left(tries as usize * MAX_ASKED % count);
        all.truncate(MAX_ASKED);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> = all.into_iter().map(|server| scope.spawn(|| Self::ask(server))).collect();
            // One that panicked has told so.
            asking.into_iter().filter_map(|asking| asking.join().ok()).collect()
        });
        let map = newest(self.map.as_ref(), answers)?;
        self.others = map.servers().filter_map(|server| map.reached(server)).collect();
        let first = self.first.address.to_string();
        self.others.retain(|server| server.address.to_string() != first);
        Ok(self.map.insert(map))
    }
}

impl FederationSource for Guide {
    fn describe(&mut self) -> backup::Result<SavedFederation> {
        let first = self.first.address.clone();
        // The first time only the one that was named is known, which may be behind.
        let looked = self.look(0).map(|_| ()).and_then(|()| self.look(0));
        let map = looked.map_err(|error| match error {
            BackupError::Gone(why) => BackupError::Source(format!(
                "{why}; name the address after `clients are served` in the log of any server of the federation"
            )),
            error => error,
        })?;
        saved(&map.status).ok_or_else(|| {
            BackupError::Source(format!(
                "the server at {first} is of another version than this command: its map cannot be read"
            ))
        })
    }

    fn shard(&mut self, shard: u32, tries: u32) -> backup::Result<ShardSource<'_>> {
        if tries > 0 || self.map.is_none() {
            std::thread::sleep(RETRY_PAUSE);
            self.look(tries)?;
        }
        let gone = |why: String| BackupError::Gone(format!("shard {shard}: {why}"));
        let Some(map) = &self.map else { return Err(gone("the map is not known".into())) };
        let shards = map.status["shards"].as_array().into_iter().flatten();
        let state = shards.into_iter().find(|state| state["shard"] == shard);
        let state = state.ok_or_else(|| gone("the federation has it no more".into()))?;
        let name = state["primary"].as_str().ok_or_else(|| gone("no server is its primary now".into()))?;
        let primary = map.servers().find(|server| server["name"] == name);
        let found = primary.and_then(|primary| Some((map.reached(primary)?, primary["member"].as_u64()?)));
        let (server, member) = found.ok_or_else(|| {
            let how = if map.asked.tls.is_some() { "by TLS" } else { "without TLS" };
            gone(format!("its primary {name} does not say where it serves clients {how}"))
        })?;
        // Another server may have come to this address.
        let own = Self::ask(&server)?;
        let is_of_old = own.age().0 < map.age().0;
        if own.federation() != map.federation() || is_of_old || own.status["asked"]["name"] != name {
            return Err(gone(format!("the server at {} is not its primary {name}", server.address)));
        }
        let of = OfShard { shard, stamps: format!("{}-{member}:", map.federation()) };
        Ok(ShardSource {
            server: name.to_owned(),
            epoch: state["epoch"].as_u64().unwrap_or(0),
            source: Box::new(Remote::of_shard(server, of)),
        })
    }
}

/// The newest of `answers` that is not older than what was known `before`, and of the same
/// federation.
///
/// # Errors
/// That of an answer; [`BackupError::Gone`] where something was known before: it may pass.
fn newest(
    before: Option<&FederationMap>,
    answers: Vec<backup::Result<FederationMap>>,
) -> backup::Result<FederationMap> {
    let (mut found, mut why): (Option<FederationMap>, _) = (None, None);
    for answer in answers {
        let address = |map: &FederationMap| map.asked.address.to_string();
        match (answer, before) {
            (Ok(map), Some(before)) if map.federation() != before.federation() => {
                let (address, other) = (address(&map), map.federation());
                let other = format!("the server at {address} is of another federation, {other}");
                why = Some(BackupError::Gone(other));
            }
            (Ok(map), Some(before)) if map.age() < before.age() => {
                let old = format!("the server at {} has an older map than others: it has lost touch", address(&map));
                why = Some(BackupError::Gone(old));
            }
            (Ok(map), _) => {
                if found.as_ref().is_none_or(|found| found.age() < map.age()) {
                    found = Some(map);
                }
            }
            (Err(error), _) => why = Some(error),
        }
    }
    found.ok_or_else(|| match (why, before) {
        (Some(error), Some(_)) => BackupError::Gone(error.to_string()),
        (Some(error), None) => error,
        (None, _) => BackupError::Gone("no server of the federation is known".into()),
    })
}

/// What is saved of a federation.
fn saved(status: &Value) -> Option<SavedFederation> {
    let shard = |state: &Value| {
        let slots: Option<Vec<(u16, u16)>> = serde_json::from_value(state["slots"].clone()).ok();
        Some(SavedShard {
            shard: u32::try_from(state["shard"].as_u64()?).ok()?,
            slots: slots?,
            server: String::new(),
            store: String::new(),
            epoch: state["epoch"].as_u64()?,
            number: None,
            time_ms: 0,
            files: 0,
            bytes: 0,
        })
    };
    Some(SavedFederation {
        id: status["federation"].as_str()?.to_owned(),
        generation: status["generation"].as_u64()?,
        map_version: status["map_version"].as_u64()?,
        feature_level: u32::try_from(status["feature_level"].as_u64()?).ok()?,
        settings: serde_json::from_value(status["settings"].clone()).ok()?,
        shards: status["shards"].as_array()?.iter().map(shard).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_as_the_one_that_was_asked() {
        for (text, plain, by_tls) in [
            ("10.0.0.1:6379", Some("10.0.0.1:6379"), None),
            ("10.0.0.1:6379+6380", Some("10.0.0.1:6379"), Some("10.0.0.1:6380")),
            ("10.0.0.1:0+6380@edge-1", None, Some("edge-1:6380")),
            ("[::1]:6379+6380", Some("[::1]:6379"), Some("[::1]:6380")),
            ("", None, None),
            (":6379", None, None),
        ] {
            assert_eq!(client_address(text, false).as_deref(), plain, "{text}");
            assert_eq!(client_address(text, true).as_deref(), by_tls, "{text}");
        }
    }

    #[test]
    fn the_newest_map_counts_and_none_older_than_was_there_before() {
        let map = |federation: &str, generation: u64, version: u64| FederationMap {
            status: serde_json::json!({ "federation": federation, "generation": generation, "map_version": version }),
            asked: Server { address: ServerAddress::Tcp("host:1".into()), credentials: None, tls: None },
        };
        let gone = || Err(BackupError::Gone("nobody answers".into()));
        let before = map("a", 2, 40);
        let found = |answers| newest(Some(&before), answers).map(|map| map.age());
        assert_eq!(found(vec![gone(), Ok(map("a", 2, 40)), Ok(map("a", 3, 1)), Ok(map("a", 2, 90))]).unwrap(), (3, 1));
        for (said, other) in [
            ("older", map("a", 2, 39)),
            // Of a generation that was given up it is old, whatever its version.
            ("older", map("a", 1, 90)),
            ("another federation", map("b", 3, 90)),
        ] {
            let error = found(vec![Ok(other)]).unwrap_err();
            assert!(matches!(&error, BackupError::Gone(why) if why.contains(said)), "{error}");
        }
        assert_eq!(newest(None, vec![Ok(map("b", 1, 1)), gone()]).unwrap().age(), (1, 1));
        newest(None, vec![gone()]).map(|map| map.age()).unwrap_err();
    }

    #[test]
    fn what_is_saved_of_the_settings_lets_one_server_serve() {
        let saved = |settings: &[(&str, &str)]| SavedFederation {
            id: String::new(),
            generation: 1,
            map_version: 1,
            feature_level: 2,
            settings: settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            shards: Vec::new(),
        };
        let three =
            saved(&[(COPIES, "3"), (MIN_IN_SYNC, "2"), ("replication.level", "all"), ("power.mode", "all-low")]);
        let one = settings(&three, 1);
        assert_eq!((one[COPIES].as_str(), one[MIN_IN_SYNC].as_str()), ("1", "1"));
        assert_eq!((one["replication.level"].as_str(), one["power.mode"].as_str()), ("all", "all-low"));
        assert_eq!(settings(&three, 3), three.settings);
        assert_eq!(settings(&saved(&[]), 1), BTreeMap::from([(COPIES.to_owned(), "1".to_owned())]));
    }
}
