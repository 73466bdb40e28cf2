//! Files of other copies, as this server's copies fetch them.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_mirror::directory::Want;
use ecotone_mirror::names::FileName;
use ecotone_mirror::seed::Listing;
use ecotone_replica::position::Mark;
use ecotone_replica::stream::ContentId;

use crate::error::{Error, Result};
use crate::fetching::{Limiter, ask_repair, fetch_contents, fetch_offer, fetch_range};
use crate::links::Links;
use crate::repairing::Repair;
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

    /// Has a finished file written to `path`, unless `is_over` says that nobody waits for it any more.
    /// False: there is no such file any more.
    pub(crate) fn file(
        &self,
        from: MemberId,
        shard: ShardId,
        want: &Want,
        path: &Path,
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let failed = |source| Error::io("write", path, source);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path).map_err(failed)?;
        let what = Fetched::Finished { file: want.file, content: want.content };
        let range = (0, want.content.len);
        let fetched = fetch_range(&self.links, from, shard, what, range, None, |bytes| {
            if is_over() { Err(Error::Stopped) } else { file.write_all(bytes).map_err(failed) }
        });
        match fetched {
            Ok(()) => Ok(true),
            Err(Error::NotThere(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What the finished files of another copy hold, if it is the primary.
    pub(crate) fn contents(&self, from: MemberId, shard: ShardId) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
        fetch_contents(&self.links, from, shard)
    }

    /// Has another server compare the files of its copy, or asks how far that is.
    pub(crate) fn repair(&self, to: MemberId, shard: ShardId, begin: bool) -> Result<Repair> {
        ask_repair(&self.links, to, shard, begin)
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
