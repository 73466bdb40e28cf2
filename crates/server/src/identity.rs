//! Who this server is, read from its folder or got with a token at its first start, and the log of
//! the federation that goes with it.

use std::sync::Arc;

use ecotone_cluster::{Introduction, join_federation};
use ecotone_identity::{Clock, Identity, JoinToken, SystemClock};
use ecotone_membership::{FEATURES, Options as MembershipOptions, folder};
use tracing::{info, warn};

use crate::backup::refuse_unfinished;
use crate::error::{Error, Result};
use crate::founding::{IDENTITY_FOLDER, begin_log, host_name};
use crate::options::ServeOptions;

/// The identity in the server's folder; with a token and without identity it joins first.
pub(crate) fn open(options: &ServeOptions) -> Result<Option<Arc<Identity>>> {
    refuse_unfinished(&options.directory).map_err(Error::Configuration)?;
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
