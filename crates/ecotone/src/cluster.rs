//! `ecotone cluster`: who is in a federation. These commands work on the folder of the server that
//! keeps the federation's authority, whether it runs or not.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ecotone_identity::token::TOKEN_LIFETIME_S;
use ecotone_identity::{Authority, Clock, SystemClock};
use ecotone_server::{IDENTITY_FOLDER, host_name};
use ecotone_types::ServerId;
use serde_json::json;

use crate::output;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a federation: its certificate authority, and the identity of its first server
    Init {
        #[command(flatten)]
        folder: Folder,
        /// Name of the first server, at most 64 bytes [default: the host's name]
        #[arg(long)]
        name: Option<String>,
    },
    /// Print a token with which one server can join within an hour
    Token {
        #[command(flatten)]
        folder: Folder,
    },
    /// List the servers of the federation
    Servers {
        #[command(flatten)]
        folder: Folder,
    },
    /// Remove a server: within a second all that reach the coordinator refuse it
    RemoveServer {
        /// Its name, or its id
        server: String,
        #[command(flatten)]
        folder: Folder,
    },
}

#[derive(clap::Args)]
struct Folder {
    /// Folder of the server that keeps the authority
    #[arg(long)]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Folder {
    fn identity(&self) -> PathBuf {
        self.dir.join(IDENTITY_FOLDER)
    }

    fn authority(&self) -> Result<Authority> {
        let folder = self.identity();
        let authority = Authority::open(&folder).context("the authority cannot be used")?;
        match authority {
            Some(authority) => Ok(authority),
            None => bail!(
                "{} has no authority: name the folder of the federation's first server, or make a federation with `ecotone cluster \
                 init --dir {}`",
                folder.display(),
                self.dir.display()
            ),
        }
    }

    fn print(&self, json: &serde_json::Value, text: &str) -> Result<()> {
        if self.json { output::print(&format!("{json}\n")) } else { output::print(text) }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let now = SystemClock.now();
    match &arguments.command {
        Command::Init { folder, name } => {
            let name = match name {
                Some(name) => ServerId::new(name).context("--name")?,
                None => host_name()?,
            };
            let authority = Authority::create(&folder.identity(), &name, now)?;
            let federation = authority.federation();
            let text = format!(
                "federation {federation}, first server {name}\nStart it: ecotone serve --dir {dir} --listen ADDRESS:7411\nLet others \
                 join: ecotone cluster token --dir {dir}\nKeep {identity} secret, and a copy of it: without it no server can join or \
                 renew its certificate.\n",
                dir = folder.dir.display(),
                identity = folder.identity().display(),
            );
            let json =
                json!({ "federation": federation.to_string(), "server": name, "member": first_member(&authority)? });
            folder.print(&json, &text)
        }
        Command::Token { folder } => {
            let token = folder.authority()?.issue_token(now)?.to_string();
            let json = json!({ "token": token, "ends_unix": now.plus(TOKEN_LIFETIME_S).0 });
            folder.print(&json, &format!("{token}\n"))
        }
        Command::Servers { folder } => {
            let state = folder.authority()?.state()?;
            let servers: Vec<_> = state
                .servers()
                .iter()
                .map(|(member, server)| {
                    json!({ "member": member, "name": server.name, "certificate_expiry_seconds": server.ends.0 })
                })
                .collect();
            let lines = state.servers().iter().map(|(member, server)| format!("{member}  {}\n", server.name));
            folder.print(&json!({ "servers": servers }), &lines.collect::<String>())
        }
        Command::RemoveServer { server, folder } => {
            let member = folder.authority()?.remove(server, now)?;
            folder.print(
                &json!({ "removed": member }),
                &format!("removed server {member}; running servers refuse it as soon as they hear of it from the coordinator\n"),
            )
        }
    }
}

fn first_member(authority: &Authority) -> Result<Option<String>> {
    Ok(authority.state()?.servers().keys().next().map(ToString::to_string))
}
