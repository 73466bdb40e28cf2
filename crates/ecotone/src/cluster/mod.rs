//! `ecotone cluster`: a federation as its operator makes it, sees it and changes it.
//!
//! [`folder`] is for the folder of a server that does not run, [`running`] asks a server by
//! `FEDERATION`; [`text`] shows what it answers. [`backup`] copies all shards, and makes another
//! federation of such a copy.

mod backup;
mod folder;
mod running;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::live_server::ConnectionArguments;
use crate::output;

#[derive(clap::Args)]
#[command(after_help = "A federation begins with one server and grows by tokens, each good once and for an hour:\n  \
                  ecotone cluster init --dir /var/lib/ecotone --name edge-1 --zone north\n  \
                  ecotone serve --dir /var/lib/ecotone --listen 10.0.0.1:7411\n  \
                  ecotone cluster token 127.0.0.1:6379\n\
                  and on the next machine:\n  \
                  ecotone serve --dir /var/lib/ecotone --listen 10.0.0.2:7411 --join 10.0.0.1:7411 --token TOKEN --name edge-2 --zone south\n\n\
                  When all are there, `create` deals the hash slots; with --copies 3 each shard survives the loss of one server. With three servers or more three vote (five with five or more): one may be \
                  lost, and the others go on deciding. To take a server away: drain it, move its shards, remove it.\n\n\
                  A running server is asked where it serves clients, by TLS with --tls, or by its folder on its own machine. What is asked for is decided by \
                  the leader, whichever server is asked; only a token is given by one that votes.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a federation: its authority, the identity of its first server, and its log
    #[command(
        after_help = "What the folder's store holds already becomes shard 1 of the federation, with all slots. Without a store nothing is dealt \
                            until `ecotone cluster create`."
    )]
    Init {
        #[command(flatten)]
        folder: Folder,
        /// Name of the first server, at most 64 bytes [default: the host's name]
        #[arg(long)]
        name: Option<String>,
        /// What fails together with it: a rack, a site, a power supply
        #[arg(long, default_value = "", hide_default_value = true)]
        zone: String,
        /// It only votes, and holds no data
        #[arg(long)]
        witness: bool,
    },
    /// Print a token with which one server can join within an hour
    #[command(
        after_help = "Ask a server that votes: these keep the federation's authority. The folder of one that is stopped will do as well."
    )]
    Token {
        #[command(flatten)]
        server: Server,
    },
    /// Print the command that has one more server join within an hour
    #[command(
        after_help = "It has a token in it, good once. Run it on the new server's machine, with an empty folder and the address at which the others \
                            reach it."
    )]
    Add {
        #[command(flatten)]
        server: Server,
        /// Name of the new server [default: its host's name]
        #[arg(long)]
        name: Option<String>,
        /// Its zone
        #[arg(long)]
        zone: Option<String>,
    },
    /// Show the servers, the shards, and who leads
    Status {
        #[command(flatten)]
        server: Server,
    },
    /// Deal all hash slots to shards, once
    #[command(
        after_help = "Shards are dealt evenly to the servers that are there and hold data; neighbours are in different zones. Their number stays. \
                            Several for each server let later ones take some over. Copies are made by themselves, in other zones where there are such; how \
                            many there are to be can be changed later: `ecotone cluster set HOST:PORT replication.copies N`."
    )]
    Create {
        #[command(flatten)]
        server: Server,
        /// How many [default: one for each server that can hold one]
        #[arg(long)]
        shards: Option<u32>,
        /// How many servers hold each shard, 1 to 7 [default: 1]
        #[arg(long)]
        copies: Option<u32>,
        /// Who must have a write before it is acknowledged: one, quorum or all [default: quorum, with one copy one]
        #[arg(long)]
        level: Option<String>,
    },
    /// Have a server get no more shards and vote no longer
    #[command(
        after_help = "Shards with copies leave it by themselves: another copy is made, and takes over where this was the primary. Shards with one \
                            copy stay, and are served, until they are moved: `ecotone cluster rebalance` says where to."
    )]
    Drain {
        #[command(flatten)]
        server: Server,
        /// Its name or number
        name: String,
    },
    /// Take back that a server is drained
    Undrain {
        #[command(flatten)]
        server: Server,
        /// Its name or number
        name: String,
    },
    /// Remove a server for ever: within a second all that reach the leader refuse it
    #[command(
        after_help = "Drain it first, so that it does not vote, and move its shards. With --force shards of which it has the only copy are lost, until \
                            `ecotone cluster move` gives them to a server that has a copy of their store. It comes back with a token and an empty folder only."
    )]
    Remove {
        #[command(flatten)]
        server: Server,
        /// Its name or number
        name: String,
        /// Also when it has the only copy of a shard, or votes
        #[arg(long)]
        force: bool,
    },
    /// Say what is being moved, and which shards should be moved by hand
    #[command(
        after_help = "Shards with copies move by themselves, one step after the other, when servers come, are drained or are lost. A shard with one copy \
                            is moved by hand: `ecotone cluster move`."
    )]
    Rebalance {
        #[command(flatten)]
        server: Server,
    },
    /// Hand a shard over to another copy of it that is in sync, without loss
    #[command(
        after_help = "Writes of clients wait for it, mostly for less than a tenth of a second. Nothing that was acknowledged is lost, at any level."
    )]
    SwitchOver {
        #[command(flatten)]
        server: Server,
        /// Its number
        shard: u32,
        /// Name or number of the server that is to be its primary
        #[arg(long, value_name = "NAME")]
        to: String,
    },
    /// Make a copy the primary though acknowledged writes may be lost
    #[command(
        after_help = "A shard whose primary is lost gets another one by itself as long as enough copies in sync are there; `ecotone cluster status` says which are \
                            missing. This is for those that are lost for good. Stop the old primary first: one that nobody reaches may go on acknowledging \
                            writes, which are lost as well."
    )]
    Promote {
        #[command(flatten)]
        server: Server,
        /// Its number
        shard: u32,
        /// Name or number of the server whose copy is to be the primary
        #[arg(long, value_name = "NAME")]
        to: String,
        /// Do it whatever that copy lacks; without this it is only said what to do instead
        #[arg(long)]
        force: bool,
        /// Do not ask back
        #[arg(long, requires = "force")]
        yes: bool,
    },
    /// Compare the files of a shard's copies, and replace what differs
    #[command(
        after_help = "Every table, segment and log of every copy is read from its device and compared with what the primary, and the copy itself, know of it. \
                            What differs is replaced by another copy's file of the same content; where the primary's own differs, the shard is handed over \
                            first, without loss. Servers do the same by themselves, slowly, about once a week.\n\n\
                            Exit status: 0 when all copies were compared and hold what they should now, 1 otherwise."
    )]
    Repair {
        #[command(flatten)]
        server: Server,
        /// Its number
        shard: u32,
        /// Name or number of the only server whose copy is compared
        #[arg(long = "server", value_name = "NAME")]
        only: Option<String>,
    },
    /// Show the settings of the federation, or one
    Get {
        #[command(flatten)]
        server: Server,
        /// Its name [default: all]
        name: Option<String>,
    },
    /// Change a setting of the federation
    #[command(after_help = "How many copies shards have and what is promised to clients:\n  \
                            replication.copies            how many servers hold each shard, 1 to 7\n  \
                            replication.level             who must have a write before it is acknowledged: one, quorum or all\n  \
                            replication.min_in_sync       the least number of copies in sync for level all\n  \
                            replication.max_lag_bytes     a copy that lacks more does not count any more until it has caught up\n  \
                            replication.max_staleness_ms  replicas whose data may be older answer no reads\n  \
                            replication.seed_bytes_per_s  what the making of a copy may take of the network\n  \
                            power.mode                    how fast cores run: all-high, all-low or concerto\n  \
                            power.cap_watts               the most that all servers together may draw\n\
                            Copies come and go by themselves when their number is changed.")]
    Set {
        #[command(flatten)]
        server: Server,
        /// Its name
        name: String,
        /// Its value; without it the default again
        value: Option<String>,
    },
    /// State that a shard was moved by hand, while its server was stopped
    #[command(
        after_help = "1. Stop the server that has the shard. 2. Copy the shard's store to the other server, where it must not be open. 3. State the move \
                            at a third server, or at the other one: from then on clients are sent there. 4. Start the first server again: it gives the shard up."
    )]
    Move {
        #[command(flatten)]
        server: Server,
        /// Its number
        shard: u32,
        /// Name or number of the server that has it now
        #[arg(long, value_name = "NAME")]
        to: String,
    },
    /// Back up all shards of a federation, while it runs
    #[command(
        after_help = "Each shard is read of its primary, as that has it at a moment of its own: all that was acknowledged before the backup began, and no \
                            part of a transaction. Shards are not of one moment: of two keys in different shards that are written while the backup runs the later \
                            one may be in it, and the earlier one not. Each position (epoch and number) is stated.\n\n\
                            The folder may be that of `ecotone backup`; of what earlier backups in it have nothing is sent again, and one that was cut short is gone on \
                            with by the same command. Where a primary is gone the next one is read, and is waited for half a minute at least. `ecotone backup --list FOLDER` and \
                            `--verify FOLDER` list and check what is there. All servers have one password, and are reached by TLS, or not, as the one that is named. \
                            Ends with an error unless the backup is complete and durable.\n\nExamples:\n  \
                            ecotone cluster backup 10.0.0.1:6379 --to /backup/ecotone --keep 7 --password-file /etc/ecotone/password\n  \
                            ecotone cluster restore /backup/ecotone --dir /var/lib/ecotone --name edge-1"
    )]
    Backup(Box<backup::BackupArguments>),
    /// Make the first server of a new federation from a backup
    #[command(
        after_help = "It holds all shards, each as it was at the position that the backup states, and a new federation begins with it: with an id and an authority \
                            of its own, so that servers of the old one, should some still run, do not speak with it. Take care yourself that clients do not write to \
                            both.\n\n\
                            Every byte is read against its checksum. Nothing is overwritten, and in a folder whose restore was cut short no server starts: run the same \
                            command again, and it goes on.\n\n\
                            Others join by token as ever, and shards spread over them by themselves. Settings are those of the old federation, but each shard is to have \
                            one copy, so that the first server serves at once; raise that when others are there (`ecotone cluster set HOST:PORT replication.copies N`), \
                            or say --copies N: with level quorum it then serves only once enough others have joined.\n\n\
                            Example:\n  ecotone cluster restore /backup/ecotone --dir /var/lib/ecotone --name edge-1 --zone north\n  \
                            ecotone serve --dir /var/lib/ecotone --listen 10.0.0.1:7411\n  \
                            ecotone cluster token 127.0.0.1:6379"
    )]
    Restore(backup::RestoreArguments),
    /// Write the map of the federation to a file
    #[command(
        after_help = "For `ecotone cluster import`, after the loss of most voters. It holds who belongs and who has which shard, no keys and no values; \
                            the authority's key is in it, sealed."
    )]
    Export {
        #[command(flatten)]
        server: Server,
        /// The file, which is replaced whole
        file: PathBuf,
    },
    /// Begin anew with one server after the loss of most voters
    #[command(after_help = folder::RISKS)]
    Recover {
        #[command(flatten)]
        folder: Folder,
        /// Begin a new generation by force: there is no other way yet
        #[arg(long, required = true)]
        force_new: bool,
        /// Begin with this map (`ecotone cluster export`), not with what the server knows
        #[arg(long, value_name = "FILE")]
        map: Option<PathBuf>,
        /// Do it; without this it is only said what would be lost
        #[arg(long)]
        yes: bool,
    },
    /// Begin anew with one server and a map that was exported
    #[command(after_help = folder::RISKS)]
    Import {
        /// The file of `ecotone cluster export`
        file: PathBuf,
        #[command(flatten)]
        folder: Folder,
        /// Do it; without this it is only said what would be lost
        #[arg(long)]
        yes: bool,
    },
}

/// A server that does not run.
#[derive(clap::Args)]
struct Folder {
    /// Folder of the server, which must not run
    #[arg(long)]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A server that runs.
#[derive(clap::Args)]
struct Server {
    /// Where a server of the federation serves clients, or its folder
    #[arg(value_name = "HOST:PORT|DIR")]
    server: PathBuf,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Init { folder, name, zone, witness } => folder::init(folder, name.as_deref(), zone, *witness),
        Command::Recover { folder, force_new: _, map, yes } => folder::recover(folder, map.as_deref(), *yes),
        Command::Import { file, folder, yes } => folder::recover(folder, Some(file), *yes),
        Command::Token { server } => running::token(server),
        Command::Add { server, name, zone } => running::add(server, name.as_deref(), zone.as_deref()),
        Command::Backup(arguments) => backup::backup(arguments),
        Command::Restore(arguments) => backup::restore(arguments),
        Command::Export { server, file } => running::export(server, file),
        Command::Status { server } => running::ask(server, &["STATUS"], text::status),
        Command::Create { server, shards, copies, level } => {
            let [shards, copies] = [shards, copies].map(|number| number.map(|number| number.to_string()));
            let mut words: Vec<&str> = ["CREATE"].into_iter().chain(shards.as_deref()).collect();
            words.extend(copies.as_deref().into_iter().flat_map(|copies| ["COPIES", copies]));
            words.extend(level.as_deref().into_iter().flat_map(|level| ["LEVEL", level]));
            running::ask(server, &words, text::created)
        }
        Command::Drain { server, name } => running::ask(server, &["DRAIN", name], text::drained),
        Command::Undrain { server, name } => running::ask(server, &["UNDRAIN", name], text::drained),
        Command::Remove { server, name, force } => {
            let words: Vec<&str> = ["REMOVE", name.as_str()].into_iter().chain(force.then_some("FORCE")).collect();
            running::ask(server, &words, text::removed)
        }
        Command::Rebalance { server } => running::ask(server, &["REBALANCE"], text::plan),
        Command::Move { server, shard, to } => {
            running::ask(server, &["MOVE", &shard.to_string(), "TO", to], text::moved)
        }
        Command::SwitchOver { server, shard, to } => {
            running::ask(server, &["SWITCHOVER", &shard.to_string(), "TO", to], text::switched_over)
        }
        Command::Promote { server, shard, to, force, yes } => running::promote(server, *shard, to, *force, *yes),
        Command::Repair { server, shard, only } => running::repair(server, *shard, only.as_deref()),
        Command::Get { server, name } => {
            let words: Vec<&str> = ["GET"].into_iter().chain(name.as_deref()).collect();
            running::ask(server, &words, text::settings)
        }
        Command::Set { server, name, value } => {
            let words: Vec<&str> = ["SET", name].into_iter().chain(value.as_deref()).collect();
            running::ask(server, &words, text::set)
        }
    }
}

/// Prints for programs or for people.
fn print(as_json: bool, json: &serde_json::Value, text: &str) -> Result<()> {
    if as_json { output::print(&format!("{json}\n")) } else { output::print(text) }
}
