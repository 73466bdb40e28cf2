//! How a server's folder becomes that of a federation's first server, or of one that has joined: the
//! identity is there, and the log of the federation begins.
//!
//! Failure: what is cut short is gone on with by the same call.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ecotone_control::entry::NewServer;
use ecotone_control::ids::{DirectoryId, FederationId, MemberId, ShardId};
use ecotone_control::map::{Addresses, MAX_ZONE_BYTES, Role, SlotRange};
use ecotone_control::recover::restored;
use ecotone_identity::founding::{Founded, found};
use ecotone_identity::names::check_name;
use ecotone_identity::{Clock, Identity, Joined, Peer, SystemClock};
use ecotone_membership::{FEATURES, folder};
use ecotone_types::ServerId;

use crate::error::{Error, Result};

/// The folder of a server's identity, in its own.
pub const IDENTITY_FOLDER: &str = "identity";

/// Where the kernel tells the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Begins the log of a server that has founded a federation or joined one, if that was not done
/// yet. A store that is there already has all slots of the federation that it founds.
///
/// # Errors
/// A log that is missing though it was begun: this server may have voted, and would not know.
pub fn begin_log(directory: &Path, identity: &Identity, zone: &str, witness: bool) -> Result<()> {
    let (folder, log) = (directory.join(IDENTITY_FOLDER), directory.join(folder::CONTROL_FOLDER));
    let joined = Joined::read(&folder, identity)?;
    if let Some(founded) = Founded::read(&folder, identity)? {
        let server = first_server(&founded, zone, if witness { Role::Witness } else { Role::Data });
        let has_data = !witness && holds_store(directory);
        let federation = FederationId(founded.federation().bytes());
        folder::found(&log, federation, server, founded.sealed.clone(), has_data)?;
        Founded::end(&folder)?;
    } else if let Some(joined) = joined {
        let federation = FederationId(joined.federation.bytes());
        let member = MemberId(joined.member.number());
        folder::begin(&log, federation, joined.generation, member, DirectoryId(joined.directory))?;
    }
    // From here on a log that is missing is lost, and not only not there yet.
    Joined::end(&folder)?;
    if folder::is_there(&log) {
        return Ok(());
    }
    Err(Error::Configuration(format!(
        "{} is missing: this server has voted in its federation, and without its log it could vote twice. If the folder is lost, remove the \
         server from the federation at another one (`ecotone cluster remove`) and let it join anew, with a token and without the folder {}",
        log.display(),
        folder.display()
    )))
}

/// The server that founds a federation.
fn first_server(founded: &Founded, zone: &str, role: Role) -> NewServer {
    NewServer {
        directory: DirectoryId(founded.joined.directory),
        name: founded.name.clone(),
        addresses: Addresses::default(),
        zone: zone.to_owned(),
        role,
        features: FEATURES,
    }
}

/// Who is made the first server of a federation that is restored.
#[derive(Debug, Clone)]
pub struct RestoredServer {
    /// Its name.
    pub name: ServerId,
    /// Its zone.
    pub zone: String,
    /// Settings of the federation.
    pub settings: BTreeMap<String, String>,
}

/// Whether [`found_restored`] can make a federation of these, with an id and an authority that are
/// drawn then.
///
/// # Errors
/// What is wrong with the server's name or zone, with the settings, or with the shards.
pub(crate) fn check_founding(
    server: &RestoredServer,
    shards: &BTreeMap<ShardId, Vec<SlotRange>>,
) -> std::result::Result<(), String> {
    check_name(&server.name).map_err(|error| error.to_string())?;
    if server.zone.len() > MAX_ZONE_BYTES {
        return Err(format!("the zone has {} bytes, and may have {MAX_ZONE_BYTES}", server.zone.len()));
    }
    let first = NewServer {
        directory: DirectoryId([0; 16]),
        name: server.name.clone(),
        addresses: Addresses::default(),
        zone: server.zone.clone(),
        role: Role::Data,
        features: FEATURES,
    };
    restored(FederationId([1; 8]), &first, vec![0], shards, server.settings.clone()).map(drop)
}

/// Makes the server of `directory` the first one of a new federation, with its own id and authority,
/// that holds these shards: their stores lie there already. What an earlier try has made of it is
/// gone on with, under the name that it was given then. Who it is.
///
/// # Errors
/// Those of files; an identity that was not made here; shards that make no federation.
pub(crate) fn found_restored(
    directory: &Path,
    server: &RestoredServer,
    shards: &BTreeMap<ShardId, Vec<SlotRange>>,
) -> Result<Peer> {
    let (folder, log) = (directory.join(IDENTITY_FOLDER), directory.join(folder::CONTROL_FOLDER));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    if Identity::open(&folder, clock.clone())?.is_none() {
        found(&folder, &server.name, clock.now())?;
    }
    let identity = Identity::open(&folder, clock)?.ok_or_else(|| {
        Error::Configuration(format!("{}: the identity is not there any more: begin again", folder.display()))
    })?;
    // Ended: the log has it.
    let Some(founded) = Founded::read(&folder, &identity)? else { return Ok(identity.own()) };
    let first = first_server(&founded, &server.zone, Role::Data);
    let federation = FederationId(founded.federation().bytes());
    folder::found_restored(&log, federation, &first, founded.sealed.clone(), shards, server.settings.clone())?;
    Founded::end(&folder)?;
    Joined::end(&folder)?;
    Ok(identity.own())
}

/// Whether a store is there that holds what clients have written, or may.
fn holds_store(directory: &Path) -> bool {
    directory.join("store").join("CURRENT").exists()
}

/// The host's name, for a server that was given none.
///
/// # Errors
/// [`Error::Configuration`] if the host has none that can be used.
pub fn host_name() -> Result<ServerId> {
    let text = std::fs::read_to_string(HOST_NAME).unwrap_or_default();
    ServerId::new(text.trim()).map_err(|error| {
        Error::Configuration(format!("the host's name is no name of a server ({error}): give one (--name)"))
    })
}
