//! What is done to the folder of a server that does not run: a federation is made there, or begun
//! anew.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail};
use ecotone_control::map::Map;
use ecotone_identity::token::TOKEN_LIFETIME_S;
use ecotone_identity::{Authority, Clock, FederationId, Founded, Identity, SealKey, SystemClock, found};
use ecotone_membership::folder::{self, CONTROL_FOLDER, Recovered};
use ecotone_server::backup::refuse_unfinished;
use ecotone_server::{IDENTITY_FOLDER, begin_log, host_name};
use ecotone_types::ServerId;
use serde_json::json;

use super::{Folder, print};

/// What whoever begins anew must know.
pub(super) const RISKS: &str = "For the loss of most voters only: while most are there, nothing is lost by waiting for them, or by starting them again. It makes this server \
                                the only voter of a new generation of the federation, with what this server knows (or the map says).\n\n\
                                What is lost, or must not be:\n  \
                                - Whatever most voters had decided and this server has not heard of is lost: servers let in or removed, shards moved. A shard \
                                that was moved since is served by the old server's copy again.\n  \
                                - Every other old voter must be stopped when this is done, and must never again run where it cannot reach this server: two of them \
                                could go on deciding under the old generation, and both parts would serve the same shards. One that reaches this server gives its \
                                log up and learns.\n  \
                                - Do it on one server only. On two, there would be two federations of one name. Choose the one with the highest index (shown \
                                without --yes).\n  \
                                - Servers that were let in by lost decisions are refused, and join anew with a token and an empty folder. Tokens that were spent \
                                by them are good again for the rest of their hour.\n\n\
                                Shards of servers that are lost stay theirs until `ecotone cluster remove --force` and `ecotone cluster move`.";

/// Makes a federation, or ends what was interrupted of that.
pub(super) fn init(folder: &Folder, name: Option<&str>, zone: &str, witness: bool) -> Result<()> {
    let name = match name {
        Some(name) => ServerId::new(name).context("--name")?,
        None => host_name()?,
    };
    refuse_unfinished(&folder.dir).map_err(Error::msg)?;
    let has_store = folder.dir.join("store").join("CURRENT").exists();
    if witness && has_store {
        bail!(
            "{} has a store, and a witness holds no data: choose another folder, or leave out --witness",
            folder.dir.display()
        );
    }
    let identity_folder = folder.dir.join(IDENTITY_FOLDER);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let interrupted = match Identity::open(&identity_folder, clock.clone())? {
        Some(identity) => Founded::read(&identity_folder, &identity)?.is_some(),
        None => false,
    };
    if !interrupted {
        found(&identity_folder, &name, clock.now())?;
    }
    let identity = Identity::open(&identity_folder, clock)?
        .with_context(|| format!("{}: the identity is not there any more", identity_folder.display()))?;
    begin_log(&folder.dir, &identity, zone, witness)?;
    let (own, dir) = (identity.own(), folder.dir.display());
    let first = if witness {
        format!("Start it: ecotone serve --dir {dir} --witness --clients off --listen ADDRESS:7411\n")
    } else {
        format!("Start it: ecotone serve --dir {dir} --listen ADDRESS:7411\n")
    };
    let slots = if has_store {
        "What is stored here is shard 1, with all slots.\n"
    } else {
        "No slots are dealt yet: when all servers are there, ecotone cluster create HOST:PORT\n"
    };
    let text = format!(
        "federation {federation}, first server {name}\n{first}Let others join: ecotone cluster token HOST:PORT (where it serves clients), and on the \
         other machine\n  ecotone serve --dir DIR --listen ADDRESS:7411 --join ADDRESS:7411 --token TOKEN --name NAME\n{slots}Keep {identity} \
         secret: whoever has a voter's folder can let servers join.\n",
        federation = own.federation,
        name = own.name,
        identity = identity_folder.display(),
    );
    let json = json!({
        "federation": own.federation.to_string(),
        "server": own.name,
        "member": own.member.number(),
        "zone": zone,
        "witness": witness,
        "shards": usize::from(has_store),
    });
    print(folder.json, &json, &text)
}

/// What a server that does not run knows.
pub(super) fn known(dir: &Path) -> Result<Recovered> {
    let log = dir.join(CONTROL_FOLDER);
    if !folder::is_there(&log) {
        bail!(
            "{} has no log of a federation: name the folder of a server that belongs to one, or the HOST:PORT of one that runs",
            dir.display()
        );
    }
    Ok(folder::read(&log)?)
}

/// A token, and when it ends (seconds since 1970), by the authority's key in the folder of a
/// voter.
pub(super) fn token(dir: &Path) -> Result<(String, u64)> {
    let map = known(dir)?.map;
    let authority = authority(dir, &map)?;
    let now = SystemClock.now();
    Ok((authority.issue_token(now)?.to_string(), now.plus(TOKEN_LIFETIME_S).0))
}

fn authority(dir: &Path, map: &Map) -> Result<Authority> {
    let folder = dir.join(IDENTITY_FOLDER);
    match (SealKey::load(&folder)?, &map.authority) {
        (Some(seal), Some(sealed)) => {
            let federation = FederationId::from_bytes(map.federation.0);
            Authority::open(sealed, &seal, federation).context("the authority's key cannot be opened")
        }
        (None, _) => bail!(
            "{} has no {}: this server has never voted, so it does not keep the federation's authority; name one that does",
            folder.display(),
            SealKey::FILE
        ),
        (_, None) => bail!("the map in {} has no authority", dir.join(CONTROL_FOLDER).display()),
    }
}

/// Begins a new generation of the federation with this server as its only voter.
pub(super) fn recover(folder: &Folder, file: Option<&Path>, yes: bool) -> Result<()> {
    let own = known(&folder.dir)?;
    let exported = file.map(|file| std::fs::read(file).with_context(|| format!("cannot read {}", file.display())));
    let exported = exported.transpose()?;
    let given = match (&exported, file) {
        (Some(bytes), Some(file)) => {
            Map::decode(bytes).with_context(|| format!("{} is no map of a federation", file.display()))?
        }
        _ => own.map.clone(),
    };
    let mut text = described(&own, &given, file);
    let keeps_authority = authority(&folder.dir, &given);
    if let Err(why) = &keeps_authority {
        let _ = writeln!(
            text,
            "Beware: {why:#}. Begun anew here, no server can join, and no certificate is renewed: all end within a day. A server that votes \
             or has voted is the better choice, or copy its {}/{} here first.",
            IDENTITY_FOLDER,
            SealKey::FILE
        );
    }
    if !yes {
        bail!("nothing was changed.\n\n{text}\n{RISKS}\n\nTo do it, say --yes.");
    }
    let begun = folder::force_new(&folder.dir.join(CONTROL_FOLDER), exported.as_deref())?;
    let generation = begun.map.generation;
    let dir = folder.dir.display();
    let _ = writeln!(
        text,
        "Begun anew: generation {generation}. Start this server first (ecotone serve --dir {dir}), then those that are left, which learn from \
         it; look at `ecotone cluster status`, and remove those that are lost (`ecotone cluster remove HOST:PORT NAME --force`)."
    );
    let json = json!({
        "federation": begun.map.federation.to_string(),
        "generation": generation,
        "member": begun.member.0,
        "index": begun.last_index,
        "servers": begun.map.members().count(),
        "shards": begun.map.shards.len(),
        "keeps_authority": keeps_authority.is_ok(),
    });
    print(folder.json, &json, &text)
}

fn described(own: &Recovered, given: &Map, file: Option<&Path>) -> String {
    let map = &own.map;
    let name = |map: &Map| map.server(own.member).map_or("(not in the map)".into(), |server| server.name.to_string());
    let mut text = format!(
        "{} of federation {}: {}, knows generation {} up to index {} (version {}).\n",
        own.member,
        map.federation,
        name(map),
        map.generation,
        own.last_index,
        map.version
    );
    if let Some(file) = file {
        let _ = writeln!(
            text,
            "The map in {} is of generation {}, version {}; what this server knows beyond it is given up.",
            file.display(),
            given.generation,
            given.version
        );
    }
    let servers: Vec<String> = given.members().map(|(_, server)| server.name.to_string()).collect();
    let _ = writeln!(text, "Servers: {}. Shards: {}.", servers.join(", "), given.shards.len());
    text
}
