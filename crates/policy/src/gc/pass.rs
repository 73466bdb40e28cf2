//! Which segments are candidates, and how long they stay so.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_types::units::{Bytes, Time};

use super::event::{Conditions, StoreState};
use super::{GcParameters, SegmentUse, candidates, copied_per_pass, forced_end, is_forced, ratio};

/// The garbage collection of a candidate set, which may grow until it is gone.
#[derive(Debug, Clone, Default)]
pub(super) struct Pass {
    pub(super) candidates: BTreeSet<u32>,
    /// Forced compactions that are left until the candidate set must have shrunk; `None` before the
    /// first.
    pub(super) steps_left: Option<usize>,
    /// Tables are compacted forcibly, down to this ratio.
    pub(super) forced: Option<f64>,
    /// Since when the candidate set has not shrunk.
    pub(super) waits_since: Option<Time>,
}

/// How a candidate set has changed.
pub(super) struct Change {
    /// Whether it is another one than before.
    pub(super) is_new: bool,
    /// Whether a segment of it has gone.
    pub(super) has_shrunk: bool,
    /// Whether others are in it than the tables' references were asked for.
    pub(super) is_unknown: bool,
}

impl Pass {
    /// Brings the candidate set up to date. It changes also while a pass is under way: a compaction
    /// takes along what is known when it begins. Opportunistically it is what is worth most now,
    /// with what samples tell of garbage that no compaction has met: most likely the one that
    /// copies will. Where it is forced it is chosen by what tables tell alone and pursued until it
    /// is gone: what is worth more by now joins it only as far as there is room beside what is left
    /// of it.
    ///
    /// Only what is `free` is chosen: segments of passes that were given up are not.
    pub(super) fn choose(
        &mut self,
        now: Time,
        store: &StoreState,
        free: &[SegmentUse],
        conditions: &Conditions,
        parameters: &GcParameters,
    ) -> Change {
        let free_bytes = conditions.free_for_copies.0;
        let free_space = free_bytes.min(copied_per_pass(&store.segments, parameters).0);
        let ratio = ratio(&store.segments);
        let was_forced = self.forced.is_some();
        self.forced =
            is_forced(ratio, self.forced, parameters).then(|| self.forced.unwrap_or_else(|| forced_end(parameters)));
        let forced = self.forced.is_some();
        // What goes on only because it was begun when less might stay takes nothing more.
        let may_grow = !forced || ratio >= forced_end(parameters);
        // What an old version is kept for is not garbage when a compaction meets it. A compaction
        // for garbage collection alone would copy what shadows, instead of meeting it. So would one
        // that does not reach what shadows it, but the copy is not copied again for that: it lies
        // in a segment of relocated values.
        let meets_shadowed = !store.has_snapshots && !forced;
        let sampled = |it: &SegmentUse| match store.shadowed.get(&it.segment) {
            Some(shadowed) if meets_shadowed && !store.relocated.contains(&it.segment) => {
                it.less_garbage(shadowed.at_least)
            }
            _ => *it,
        };
        let chosen = candidates(&free.iter().map(sampled).collect::<Vec<_>>(), parameters, Bytes(free_space));
        let there: BTreeSet<u32> = store.segments.iter().map(|it| it.segment).collect();
        let before = self.candidates.len();
        self.candidates.retain(|segment| there.contains(segment));
        let kept = self.candidates.len();
        let known = self.candidates.clone();
        if !(was_forced && forced) {
            self.candidates.clear();
        }
        let uses: BTreeMap<u32, (u64, u64)> =
            store.segments.iter().map(|it| (it.segment, (sampled(it).referenced.0, it.referenced.0))).collect();
        let copies = |segment: &u32| uses.get(segment).copied().unwrap_or_default();
        let sum = |(sampled, referenced): (u64, u64), (more, more_referenced): (u64, u64)| {
            (sampled.saturating_add(more), referenced.saturating_add(more_referenced))
        };
        // What is left of the candidate set will be copied, too.
        let mut copied = self.candidates.iter().map(copies).fold((0, 0), sum);
        for segment in chosen.segments {
            if self.candidates.contains(&segment) {
                continue;
            }
            let with_it = sum(copied, copies(&segment));
            // What shadows may be copied after all: that must not fill the device.
            if may_grow && with_it.0 <= free_space && with_it.1 <= free_bytes {
                copied = with_it;
                self.candidates.insert(segment);
            }
        }
        let grown = !self.candidates.is_subset(&known);
        let is_new = grown || self.candidates.len() < before;
        if is_new {
            self.steps_left = None;
        }
        let has_shrunk = kept < before;
        if has_shrunk || self.waits_since.is_none() {
            self.waits_since = Some(now);
        }
        // One opportunistically that gives way to one forcibly may lose segments that nobody has
        // removed.
        Change { is_new, has_shrunk, is_unknown: grown || (forced && self.candidates != known) }
    }
}
