//! The authority's key: sealed it lies in the map, the seal in the folders of those that vote.
//!
//! A server that begins to vote gets the seal from another voter. It keeps it when it votes no
//! longer: it could have copied it. So who takes a voter's folder has the authority, as docs say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_control::map::Map;
use ecotone_identity::{Authority, FederationId, SealKey};
use parking_lot::Mutex;

use crate::error::Result;

/// The seal of this server, if it has one, and the authority that it opens.
pub(crate) struct Custody {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seal: Option<SealKey>,
    /// What was opened last, and as what.
    opened: Option<(Vec<u8>, Arc<Authority>)>,
}

impl Custody {
    pub(crate) fn new(folder: &Path) -> Result<Custody> {
        let seal = SealKey::load(folder)?;
        Ok(Custody { folder: folder.to_owned(), state: Mutex::new(State { seal, opened: None }) })
    }

    pub(crate) fn seal(&self) -> Option<SealKey> {
        self.state.lock().seal.clone()
    }

    /// Takes a seal that another voter gave, if it opens what is in the map.
    pub(crate) fn take(&self, seal: SealKey, map: &Map) -> Result<()> {
        if let Some(sealed) = &map.authority {
            Authority::open(sealed, &seal, FederationId::from_bytes(map.federation.0))?;
        }
        seal.store(&self.folder)?;
        *self.state.lock() = State { seal: Some(seal), opened: None };
        Ok(())
    }

    /// The authority; `None` where this server has no seal, or the federation no authority.
    pub(crate) fn authority(&self, map: &Map) -> Result<Option<Arc<Authority>>> {
        let Some(sealed) = &map.authority else { return Ok(None) };
        let mut state = self.state.lock();
        if let Some((of, authority)) = &state.opened
            && of == sealed
        {
            return Ok(Some(authority.clone()));
        }
        let Some(seal) = &state.seal else { return Ok(None) };
        let authority = Arc::new(Authority::open(sealed, seal, FederationId::from_bytes(map.federation.0))?);
        state.opened = Some((sealed.clone(), authority.clone()));
        Ok(Some(authority))
    }
}
