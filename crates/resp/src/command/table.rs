//! The table of all commands.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::{COMMAND_TABLE, Command};
use ecotone_keyspace::error::{Failure, repeated};

/// Bytes of names, and of all arguments together, that the reply to an unknown command repeats, as
/// in Redis.
const MAX_REPEATED: usize = 128;

/// A longer word is no command.
const MAX_NAME_BYTES: usize = 32;

/// All commands, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Command> {
    COMMAND_TABLE.iter().copied().flatten()
}

/// All commands, each with its subcommands behind it.
pub fn all_with_subcommands() -> impl Iterator<Item = &'static Command> {
    all().flat_map(|command| std::iter::once(command).chain(command.subcommands))
}

/// The command of this name, or the subcommand of a name such as `client|list`, in any case.
pub fn find_full(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|byte| *byte == b'|') {
        Some(bar) => find(&name[..bar])?.subcommand(&name[bar + 1..]),
        None => find(name),
    }
}

/// The command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    static BY_NAME: OnceLock<HashMap<&'static [u8], &'static Command>> = OnceLock::new();
    let mut lower = [0; MAX_NAME_BYTES];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    BY_NAME.get_or_init(|| all().map(|command| (command.name.as_bytes(), command)).collect()).get(&*lower).copied()
}

/// The command, or the subcommand, that `arguments` begin with.
///
/// # Errors
///
/// Redis' refusals.
pub(crate) fn resolve(arguments: &[&[u8]]) -> Result<&'static Command, Failure> {
    let command = find_called(arguments)?;
    check_number(command, arguments)?;
    Ok(command)
}

/// The same, whether or not it takes so many arguments.
pub(crate) fn find_called(arguments: &[&[u8]]) -> Result<&'static Command, Failure> {
    let name = arguments[0];
    let mut command = find(name).ok_or_else(|| unknown(arguments))?;
    if let (false, [_, sub, ..]) = (command.subcommands.is_empty(), arguments) {
        command = command.subcommand(sub).ok_or_else(|| {
            let behind = format!("'. Try {} HELP.", command.name.to_ascii_uppercase());
            Failure::repeating("ERR unknown subcommand '", shown(sub), &behind)
        })?;
    }
    Ok(command)
}

pub(crate) fn check_number(command: &Command, arguments: &[&[u8]]) -> Result<(), Failure> {
    if command.takes(arguments.len()) {
        return Ok(());
    }
    Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", command.name)))
}

fn unknown(arguments: &[&[u8]]) -> Failure {
    let mut begin = Vec::new();
    for argument in &arguments[1..] {
        if begin.len() >= MAX_REPEATED {
            break;
        }
        let argument = &argument[..argument.len().min(MAX_REPEATED - begin.len())];
        begin.extend_from_slice(&[b"'", repeated(argument), b"' "].concat());
    }
    Failure::with([b"ERR unknown command '", shown(arguments[0]), b"', with args beginning with: ", &begin].concat())
}

/// What of a name is repeated where Redis repeats no more than its beginning.
pub(crate) fn shown(name: &[u8]) -> &[u8] {
    repeated(&name[..name.len().min(MAX_REPEATED)])
}

impl Command {
    /// The subcommand of this name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands.iter().find(|command| {
            let (_, own) = command.name.split_once('|').unwrap_or(("", command.name));
            own.as_bytes().eq_ignore_ascii_case(name)
        })
    }

    /// What it is counted by: the address of its entry.
    pub(crate) fn id(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether all of these [`super::flag`]s are set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether so many arguments, the name counted, are what it takes.
    pub fn takes(&self, arguments: usize) -> bool {
        let arguments = i64::try_from(arguments).unwrap_or(i64::MAX);
        if self.arity < 0 { arguments >= -i64::from(self.arity) } else { arguments == i64::from(self.arity) }
    }
}
