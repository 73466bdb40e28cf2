//! The table of all commands.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::{
    Command, acl, backup, clients, cluster, compaction, config, connection, diagnostics, expiry, hashes, info,
    inspecting, introspection, keys, lists, saving, scan, set_algebra, sets, sorted_set_random, sorted_set_ranges,
    sorted_sets, strings, transactions,
};

/// A longer word is no command.
const MAX_NAME_BYTES: usize = 32;

// Not a constant: there is one of it, so a command is known by its address.
static FAMILIES: &[&[Command]] = &[
    strings::COMMANDS,
    keys::COMMANDS,
    expiry::COMMANDS,
    scan::COMMANDS,
    hashes::COMMANDS,
    sets::COMMANDS,
    set_algebra::COMMANDS,
    lists::COMMANDS,
    sorted_sets::COMMANDS,
    sorted_set_ranges::COMMANDS,
    sorted_set_random::COMMANDS,
    transactions::COMMANDS,
    connection::COMMANDS,
    clients::COMMANDS,
    introspection::COMMANDS,
    info::COMMANDS,
    config::COMMANDS,
    diagnostics::COMMANDS,
    saving::COMMANDS,
    inspecting::COMMANDS,
    compaction::COMMANDS,
    backup::COMMANDS,
    cluster::COMMANDS,
    acl::COMMANDS,
];

/// All commands, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Command> {
    FAMILIES.iter().copied().flatten()
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

impl Command {
    /// The subcommand of this name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands.iter().find(|command| {
            let (_, own) = command.name.split_once('|').unwrap_or(("", command.name));
            own.as_bytes().eq_ignore_ascii_case(name)
        })
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
