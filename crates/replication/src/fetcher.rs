//! Files of other copies, as this server's copies fetch them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_mirror::directory::Want;
use ecotone_mirror::names::FileName;
use ecotone_mirror::seed::Listing;

use crate::error::{Error, Result};
use crate::fetching::{Limiter, fetch_offer, fetch_range};
use crate::links::Links;
use crate::service::Fetched;

/// Fetches, each on the thread of who asks.
pub(crate) struct Fetcher {
    links: Links,
    /// For seeds.
    limiter: Limiter,
}

impl Fetcher {
    pub(crate) fn new(links: Links) -> Fetcher {
        Fetcher { links, limiter: Limiter::default() }
    }

    /// What seeds may take of the network from now on.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>) {
        self.limiter.set(bytes_per_s);
    }

    /// Has a finished file written to `path`. False: there is no such file any more.
    pub(crate) fn file(&self, from: MemberId, shard: ShardId, want: &Want, path: &Path) -> Result<bool> {
        let failed = |source| Error::io("write", path, source);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path).map_err(failed)?;
        let what = Fetched::Finished { file: want.file, content: want.content };
        let range = (0, want.content.len);
        let fetched =
            fetch_range(&self.links, from, shard, what, range, None, |bytes| file.write_all(bytes).map_err(failed));
        match fetched {
            Ok(()) => Ok(true),
            Err(Error::NotThere(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What another copy offers.
    pub(crate) fn offer(&self, from: MemberId, shard: ShardId, session: u64) -> Result<Listing> {
        fetch_offer(&self.links, from, shard, session)
    }

    /// Hands bytes of an offered file on, with where each piece begins.
    pub(crate) fn range(
        &self,
        from: MemberId,
        shard: ShardId,
        (session, file): (u64, FileName),
        (mut offset, len): (u64, u64),
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let what = Fetched::OfOffer { session, file };
        fetch_range(&self.links, from, shard, what, (offset, len), Some(&self.limiter), |bytes| {
            sink(offset, bytes)?;
            offset += bytes.len() as u64;
            Ok(())
        })
    }
}
