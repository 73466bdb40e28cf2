//! CLIENT: the connected clients, and their settings.
//!
//! All clients are of type `normal` and of the user `default`: there are no replicas, no channels
//! and no other users.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::entry::{container, help, plain};
use super::{Call, Command, flag, word};
use crate::client::{Client, ClientInfo, Then};
use crate::copies::{level_name, level_of};
use crate::protocol::number::parse_integer;
use crate::service::CLIENT_BYTES;
use ecotone_keyspace::error::{Failure, Outcome, texts};

/// The longest name of a client or its library, in bytes: it is kept for as long as the client
/// stays, and in the slow log for longer.
pub const MAX_NAME_BYTES: usize = 256;

const ALWAYS: u32 = flag::NOSCRIPT | flag::LOADING | flag::STALE;
const ADMIN: u32 = ALWAYS | flag::ADMIN;

const fn subcommand(
    name: &'static str,
    arity: i32,
    flags: u32,
    since: &'static str,
    summary: &'static str,
    run: super::Run,
) -> Command {
    plain(name, arity, flags, "connection", since, summary, run)
}

const OF_ALL: &str = "O(N) where N is the number of client connections";

/// The family.
pub const COMMANDS: &[Command] =
    &[container("client", "connection", "2.4.0", "A container for client connection commands.", SUBCOMMANDS)];

const SUBCOMMANDS: &[Command] = &[
    subcommand("client|id", 2, ALWAYS, "5.0.0", "Returns the unique client ID of the connection.", id),
    subcommand("client|info", 2, ALWAYS, "6.2.0", "Returns information about the connection.", info),
    Command {
        usage: "[TYPE (client-type: NORMAL | MASTER | REPLICA | PUBSUB)]@5.0.0 [ID client-id:integer...]@6.2.0",
        complexity: OF_ALL,
        ..subcommand("client|list", -2, ADMIN, "2.4.0", "Lists open connections.", list)
    },
    subcommand("client|getname", 2, ALWAYS, "2.6.9", "Returns the name of the connection.", getname),
    Command {
        usage: "connection-name",
        ..subcommand("client|setname", 3, ALWAYS, "2.6.9", "Sets the connection name.", setname)
    },
    Command {
        usage: "(attr: 'lib-name libname | 'lib-ver libver)",
        ..subcommand("client|setinfo", 4, ALWAYS, "7.2.0", "Sets information specific to the client.", setinfo)
    },
    Command {
        usage: "(filter: old-format=ip:port:string!2.8.12 | (new-format: [ID client-id:integer]@2.8.12 | \
                [TYPE (client-type: NORMAL | MASTER@3.2.0 | SLAVE | REPLICA@5.0.0 | PUBSUB)]@2.8.12 | \
                [USER username] | [ADDR addr=ip:port:string] | [LADDR laddr=ip:port:string]@6.2.0 | [SKIPME (skipme: YES | NO)])...)",
        complexity: OF_ALL,
        ..subcommand("client|kill", -3, ADMIN, "2.4.0", "Terminates open connections.", kill)
    },
    Command {
        usage: "(enabled: ON | OFF)",
        ..subcommand("client|no-evict", 3, ADMIN, "7.0.0", "Sets the client eviction mode of the connection.", no_evict)
    },
    Command {
        usage: "(enabled: ON | OFF)",
        ..subcommand(
            "client|no-touch",
            3,
            ALWAYS,
            "7.2.0",
            "Controls whether commands sent by the client affect the LRU/LFU of accessed keys.",
            no_touch,
        )
    },
    Command {
        usage: "capability...",
        ..subcommand("client|capa", -3, ALWAYS, "8.0.0", "Declares what the client is capable of.", capabilities)
    },
    Command {
        usage: "(level: ONE | QUORUM | ALL | DEFAULT)",
        ..subcommand(
            "client|level",
            3,
            ALWAYS,
            "7.2.0",
            "Sets which copies must have what replies to the connection tell of; not of Redis.",
            set_level,
        )
    },
    subcommand(
        "client|help",
        2,
        flag::LOADING | flag::STALE,
        "5.0.0",
        "Returns helpful text about the different subcommands.",
        client_help,
    ),
];

fn id(call: &mut Call<'_>) -> Outcome {
    call.reply.integer(call.client.info.id as i64);
    Ok(())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let line = line(&call.client.info);
    call.reply.verbatim(*b"txt", &line);
    Ok(())
}

fn list(call: &mut Call<'_>) -> Outcome {
    let all = call.service.clients.all();
    let shown = match &call.arguments[2..] {
        [] => all,
        [option, of] if option.eq_ignore_ascii_case(b"TYPE") => {
            if is_type(of)? {
                all
            } else {
                Vec::new()
            }
        }
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
            let mut shown = Vec::new();
            for id in ids {
                let id = parse_integer(id).ok_or(Failure::text("ERR Invalid client ID"))?;
                shown.extend(all.iter().find(|client| client.id as i64 == id).cloned());
            }
            shown
        }
        _ => return Err(texts::SYNTAX),
    };
    let (mut lines, mut reservation) = (String::new(), call.keys.reserve_memory());
    for client in &shown {
        let line = line(client);
        // It grows by doubling.
        reservation.take(2 * line.len())?;
        lines.push_str(&line);
    }
    call.reply.verbatim(*b"txt", &lines);
    Ok(())
}

/// Whether a client of this type can be connected: whether it is `normal`.
fn is_type(of: &[u8]) -> Outcome<bool> {
    const OTHERS: [&[u8]; 4] = [b"master", b"replica", b"slave", b"pubsub"];
    if of.eq_ignore_ascii_case(b"normal") {
        return Ok(true);
    }
    if OTHERS.iter().any(|other| other.eq_ignore_ascii_case(of)) {
        return Ok(false);
    }
    Err(Failure::repeating("ERR Unknown client type '", of, "'"))
}

/// As Redis 7.2 has it. `rbs` and `obl` are of the buffer that replies are made in, `oll` and
/// `omem` of what is being sent: there is no other list of replies. What there is not in this
/// server is 0.
fn line(client: &ClientInfo) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (queued, buffers) = (client.queued.load(Ordering::Relaxed), &client.buffers);
    let of = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed);
    let (query, sending) = (of(&buffers.query_bytes), of(&buffers.sending_capacity));
    // Only of who has set it: the fields of all others are Redis'.
    let level = client.level.lock().map(|level| format!(" level={}", level_name(level))).unwrap_or_default();
    let mut line = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(
        line,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={queued} \
         qbuf={query} qbuf-free={} argv-mem={} multi-mem={} rbs={} rbp={} obl={} oll={} omem={sending} tot-mem={} events={} \
         cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}{level}",
        client.id,
        client.address,
        client.local_address,
        client.descriptor.load(Ordering::Relaxed),
        text(&client.name.lock()),
        client.since.elapsed().as_secs(),
        client.idle().as_secs(),
        letters(client),
        of(&buffers.query_capacity).saturating_sub(query),
        of(&buffers.argument_bytes),
        of(&buffers.queued_bytes),
        of(&buffers.reply_capacity),
        buffers.reply_peak(client.age_ms()),
        of(&buffers.reply_bytes),
        u8::from(sending > 0),
        buffers.memory() + CLIENT_BYTES,
        if sending > 0 { "rw" } else { "r" },
        client.last_command.lock(),
        client.protocol.load(Ordering::Relaxed),
        text(&client.library_name.lock()),
        text(&client.library_version.lock()),
    );
    line
}

fn letters(client: &ClientInfo) -> String {
    let letters: String = [
        ('x', client.is_in_transaction()),
        ('A', client.is_killed.load(Ordering::Relaxed)),
        ('U', client.is_of_unix_socket()),
        ('r', client.is_readonly.load(Ordering::Relaxed)),
        ('e', client.is_no_evict.load(Ordering::Relaxed)),
        ('T', client.is_no_touch.load(Ordering::Relaxed)),
    ]
    .iter()
    .filter_map(|(letter, is_so)| is_so.then_some(*letter))
    .collect();
    if letters.is_empty() { "N".into() } else { letters }
}

/// As in Valkey: what is not known is ignored. A client that follows redirects is told of them also
/// where others are spared them (`clients.proxy`).
fn capabilities(call: &mut Call<'_>) -> Outcome {
    let follows_redirects = call.arguments[2..].iter().any(|word| word.eq_ignore_ascii_case(b"redirect"));
    call.client.seen(&call.service.cluster).follows_redirects |= follows_redirects;
    call.reply.simple("OK");
    Ok(())
}

fn set_level(call: &mut Call<'_>) -> Outcome {
    let word = call.arguments[2];
    let level = level_of(word)
        .ok_or_else(|| Failure::repeating("ERR Unknown level '", word, "': it is one, quorum, all or default"))?;
    call.client.set_level(level);
    call.reply.simple("OK");
    Ok(())
}

fn getname(call: &mut Call<'_>) -> Outcome {
    let name = call.client.info.name.lock();
    if name.is_empty() {
        call.reply.null();
    } else {
        call.reply.bulk(&name);
    }
    Ok(())
}

fn setname(call: &mut Call<'_>) -> Outcome {
    set_name(call.client, call.arguments[2])?;
    call.reply.simple("OK");
    Ok(())
}

/// Names a client; an empty name is none.
pub(super) fn set_name(client: &Client, name: &[u8]) -> Outcome {
    check_name(name)?;
    *client.info.name.lock() = name.to_vec();
    Ok(())
}

/// Whether `name` fits into a line of `CLIENT LIST`.
pub(super) fn check_name(name: &[u8]) -> Outcome {
    check(name, "Client names")
}

fn check(text: &[u8], what: &str) -> Outcome {
    if text.len() > MAX_NAME_BYTES {
        return Err(Failure::with(format!("ERR {what} cannot have more than {MAX_NAME_BYTES} bytes.")));
    }
    if text.iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    Err(Failure::with(format!("ERR {what} cannot contain spaces, newlines or special characters.")))
}

fn setinfo(call: &mut Call<'_>) -> Outcome {
    let (option, value) = (call.arguments[2], call.arguments[3]);
    let place = if option.eq_ignore_ascii_case(b"lib-name") {
        &call.client.info.library_name
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        &call.client.info.library_version
    } else {
        return Err(Failure::repeating("ERR Unrecognized option '", option, "'"));
    };
    check(value, &String::from_utf8_lossy(option))?;
    *place.lock() = value.to_vec();
    call.reply.simple("OK");
    Ok(())
}

/// Which clients `CLIENT KILL` means.
#[derive(Default)]
struct Killed<'a> {
    id: Option<u64>,
    is_no_type: bool,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    spares_itself: bool,
}

impl Killed<'_> {
    fn has(&self, client: &ClientInfo, itself: u64) -> bool {
        !self.is_no_type
            && self.id.is_none_or(|id| id == client.id)
            && self.address.is_none_or(|address| address == client.address.as_bytes())
            && self.local_address.is_none_or(|address| address == client.local_address.as_bytes())
            && !(self.spares_itself && client.id == itself)
    }
}

fn kill(call: &mut Call<'_>) -> Outcome {
    if let [_, _, address] = call.arguments {
        let killed = Killed { address: Some(address), ..Killed::default() };
        if kill_all(call, &killed) == 0 {
            return Err(Failure::text("ERR No such client"));
        }
        call.reply.simple("OK");
        return Ok(());
    }
    let killed = killed(&call.arguments[2..])?;
    let number = kill_all(call, &killed);
    call.reply.integer(number);
    Ok(())
}

fn killed<'a>(options: &[&'a [u8]]) -> Outcome<Killed<'a>> {
    let mut killed = Killed { spares_itself: true, ..Killed::default() };
    for pair in options.chunks(2) {
        let [option, value] = *pair else { return Err(texts::SYNTAX) };
        match word::upper(option).as_slice() {
            b"ID" => {
                let id = parse_integer(value).filter(|id| *id > 0);
                killed.id = Some(id.ok_or(Failure::text("ERR client-id should be greater than 0"))? as u64);
            }
            b"TYPE" => killed.is_no_type = !is_type(value)?,
            b"ADDR" => killed.address = Some(value),
            b"LADDR" => killed.local_address = Some(value),
            b"USER" if value == b"default" => {}
            b"USER" => return Err(Failure::repeating("ERR No such user '", value, "'")),
            b"SKIPME" if value.eq_ignore_ascii_case(b"yes") => killed.spares_itself = true,
            b"SKIPME" if value.eq_ignore_ascii_case(b"no") => killed.spares_itself = false,
            _ => return Err(texts::SYNTAX),
        }
    }
    Ok(killed)
}

fn kill_all(call: &mut Call<'_>, killed: &Killed<'_>) -> i64 {
    let itself = call.client.info.id;
    let all: Vec<Arc<ClientInfo>> =
        call.service.clients.all().into_iter().filter(|client| killed.has(client, itself)).collect();
    for client in &all {
        // A client that kills itself gets its reply first.
        if client.id == itself {
            call.client.then = Then::Close;
        } else {
            client.kill();
        }
    }
    all.len() as i64
}

fn on_or_off(value: &[u8]) -> Outcome<bool> {
    match word::lower(value).as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(texts::SYNTAX),
    }
}

fn no_evict(call: &mut Call<'_>) -> Outcome {
    let is_on = on_or_off(call.arguments[2])?;
    call.client.info.is_no_evict.store(is_on, Ordering::Relaxed);
    call.reply.simple("OK");
    Ok(())
}

/// The use of keys is not tracked, so only the flag that is shown changes.
fn no_touch(call: &mut Call<'_>) -> Outcome {
    let is_on = on_or_off(call.arguments[2])?;
    call.client.info.is_no_touch.store(is_on, Ordering::Relaxed);
    call.reply.simple("OK");
    Ok(())
}

fn client_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "GETNAME",
            "    Return the name of the current connection.",
            "ID",
            "    Return the ID of the current connection.",
            "INFO",
            "    Return information about the current client connection.",
            "KILL <ip:port>",
            "    Kill connection made from <ip:port>.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Kill connections. Options are:",
            "    * ADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made from the specified address",
            "    * LADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made to specified local address",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Kill connections by type.",
            "    * USER <username>",
            "      Kill connections authenticated by <username>.",
            "    * SKIPME (YES|NO)",
            "      Skip killing current connection (default: yes).",
            "LIST [options ...]",
            "    Return information about client connections. Options:",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Return clients of specified type.",
            "SETNAME <name>",
            "    Assign the name <name> to the current connection.",
            "SETINFO <option> <value>",
            "    Set client meta attr. Options are:",
            "    * LIB-NAME: the client lib name.",
            "    * LIB-VER: the client lib version.",
            "CAPA <capability> [<capability> ...]",
            "    Declare what the client is capable of: REDIRECT, it follows redirects itself.",
            "LEVEL (ONE|QUORUM|ALL|DEFAULT)",
            "    From now on replies wait until the primary, a majority of all copies or every copy in sync",
            "    has what they tell of; DEFAULT: what the federation has set.",
            "NO-EVICT (ON|OFF)",
            "    Protect current client connection from eviction.",
            "NO-TOUCH (ON|OFF)",
            "    Will not touch LRU/LFU stats when this mode is on.",
        ],
    );
    Ok(())
}
