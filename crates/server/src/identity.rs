//! Who this server is: read from its folder, or got with a token at its first start.

use std::sync::Arc;

use ecotone_cluster::join_federation;
use ecotone_identity::{Authority, Clock, Identity, JoinToken, SystemClock};
use ecotone_types::ServerId;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::options::ServeOptions;

/// The folder of a server's identity, in its own.
pub const IDENTITY_FOLDER: &str = "identity";

/// Where the kernel tells the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The identity of a server, and the authority where it keeps that.
pub(crate) type Opened = (Option<Arc<Identity>>, Option<Arc<Authority>>);

/// The identity in the server's folder; with a token and without identity it joins first.
pub(crate) fn open(options: &ServeOptions) -> Result<Opened> {
    let folder = options.directory.join(IDENTITY_FOLDER);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut identity = Identity::open(&folder, clock.clone())?;
    match (&identity, &options.token) {
        (None, Some(token)) => {
            let token: JoinToken = token.parse()?;
            let address = options.join.as_ref().ok_or_else(|| {
                let why =
                    "a token is for joining: give the address of the coordinator as well (--join or federation.join)";
                Error::Configuration(why.into())
            })?;
            let name = options.name.clone().map_or_else(host_name, Ok)?;
            join_federation(&folder, address, token, name.clone(), &clock)?;
            info!(server = %name, coordinator = address, "joined the federation");
            identity = Identity::open(&folder, clock)?;
        }
        // The same command line starts it again and again.
        (Some(identity), Some(_)) => {
            info!(server = %identity.own().name, "it has joined already; the token is not used")
        }
        _ => {}
    }
    let authority = Authority::open(&folder)?;
    if let Some(identity) = &identity {
        let own = identity.own();
        if identity.now() > own.ends {
            warn!(server = %own.name, "the certificate has ended; it is renewed before other servers take this one again");
        }
    }
    Ok((identity.map(Arc::new), authority.map(Arc::new)))
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
