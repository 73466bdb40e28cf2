//! Who this server is, read from its folder or got with a token at its first start, and the log of
//! the federation that goes with it.

use std::path::Path;
use std::sync::Arc;

use ecotone_cluster::{Introduction, join_federation};
use ecotone_control::entry::NewServer;
use ecotone_control::ids::{DirectoryId, FederationId, MemberId};
use ecotone_control::map::{Addresses, Role};
use ecotone_identity::founding::Founded;
use ecotone_identity::{Clock, Identity, JoinToken, Joined, SystemClock};
use ecotone_membership::{FEATURES, Options as MembershipOptions, folder};
use ecotone_types::ServerId;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::options::ServeOptions;

/// The folder of a server's identity, in its own.
pub const IDENTITY_FOLDER: &str = "identity";

/// Where the kernel tells the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The identity in the server's folder; with a token and without identity it joins first.
pub(crate) fn open(options: &ServeOptions) -> Result<Option<Arc<Identity>>> {
    let folder = options.directory.join(IDENTITY_FOLDER);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut identity = Identity::open(&folder, clock.clone())?;
    match (&identity, &options.token) {
        (None, Some(token)) => {
            let token: JoinToken = token.parse()?;
            let address = options.join.as_ref().ok_or_else(|| {
                let why =
                    "a token is for joining: give the address of a server of the federation as well (--join or federation.join)";
                Error::Configuration(why.into())
            })?;
            let name = options.name.clone().map_or_else(host_name, Ok)?;
            let about = Introduction {
                zone: options.zone.clone(),
                is_witness: options.witness,
                min_feature_level: FEATURES.min,
                max_feature_level: FEATURES.max,
                address: options.announce.clone(),
            };
            join_federation(&folder, address, token, name.clone(), &about, &clock)?;
            info!(server = %name, through = address, "joined the federation");
            identity = Identity::open(&folder, clock)?;
        }
        // The same command line starts it again and again.
        (Some(identity), Some(_)) => {
            info!(server = %identity.own().name, "it has joined already; the token is not used")
        }
        _ => {}
    }
    let Some(identity) = identity else { return Ok(None) };
    begin_log(&options.directory, &identity, &options.zone, options.witness)?;
    let own = identity.own();
    if identity.now() > own.ends {
        warn!(server = %own.name, "the certificate has ended; it is renewed before other servers take this one again");
    }
    Ok(Some(Arc::new(identity)))
}

/// Begins the log of a server that has founded a federation or joined one, if that was not done
/// yet. A store that is there already has all slots of the federation that it founds.
///
/// # Errors
/// A log that is missing though it was begun: this server may have voted, and would not know.
pub fn begin_log(directory: &Path, identity: &Identity, zone: &str, witness: bool) -> Result<()> {
    let (folder, log) = (directory.join(IDENTITY_FOLDER), directory.join(folder::CONTROL_FOLDER));
    let joined = Joined::read(&folder, identity)?;
    if let Some(founded) = Founded::read(&folder, identity)? {
        let server = NewServer {
            directory: DirectoryId(founded.joined.directory),
            name: founded.name.clone(),
            addresses: Addresses::default(),
            zone: zone.to_owned(),
            role: if witness { Role::Witness } else { Role::Data },
            features: FEATURES,
        };
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

/// Whether a store is there that holds what clients have written, or may.
fn holds_store(directory: &Path) -> bool {
    directory.join("store").join("CURRENT").exists()
}

/// Its part in the control plane.
pub(crate) fn membership_options(options: &ServeOptions) -> MembershipOptions {
    MembershipOptions {
        directory: options.directory.join(folder::CONTROL_FOLDER),
        identity_folder: options.directory.join(IDENTITY_FOLDER),
        join: options.join.clone(),
        zone: options.zone.clone(),
        features: FEATURES,
    }
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
