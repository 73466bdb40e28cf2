//! Elements of large collections that have a [rank](crate::ranks), as one command sees them.

use crate::error::Outcome;
use crate::keys::Keys;
use crate::layout::{self, CollectionId};
use crate::pending::UndoStep;
use crate::ranks::{Blocks, Cut, RankChange};

impl Keys<'_> {
    /// Adds an element that is not in the large collection, whose key's slot is held: its kind,
    /// which all such elements of the collection have in common, and behind it its place, whose
    /// order counts.
    pub fn add_placed(&mut self, id: CollectionId, sub_key: &[&[u8]], value: &[u8]) -> Outcome {
        self.put_element(id, sub_key, value, RankChange::Added)
    }

    /// Removes such an element, which is in it. Whether there was memory to note that is told by
    /// [`refusal`](Self::refusal).
    pub fn remove_placed(&mut self, id: CollectionId, sub_key: &[&[u8]]) {
        self.put_removal(id, sub_key, RankChange::Removed);
    }

    /// Whether anything is known of the ranks of a collection.
    pub fn knows_ranks(&self, id: CollectionId) -> bool {
        self.keyspace.ranks.has(id)
    }

    /// What is known of the ranks of a collection is wrong.
    pub fn forget_ranks(&self, id: CollectionId) {
        if !self.reads_earlier() {
            self.keyspace.ranks.forget(id);
        }
    }

    /// What `look` sees of the ranks of a large collection, which has so many `elements` with a
    /// place, and whose key's slot is held.
    /// Who reads an earlier moment sees that nothing is known.
    pub fn look_at_ranks<T>(&mut self, id: CollectionId, elements: u64, look: impl FnOnce(&Blocks) -> T) -> T {
        if self.reads_earlier() {
            return look(&Blocks::new(elements));
        }
        let Self { keyspace, state, .. } = self;
        let (outcome, is_new) = keyspace.ranks.look(id, elements, look);
        if is_new && state.changes(&layout::elements(id)) {
            // What was written before is not counted, so it could not be counted back.
            state.undo.push(UndoStep::Counting { id });
        }
        outcome
    }

    /// Notes that the block which begins at `start` can be cut, and which place is the `first` one,
    /// or the `last`, of all.
    pub fn cut_ranks(
        &mut self,
        id: CollectionId,
        start: &[u8],
        cuts: &[Cut],
        first: Option<&[u8]>,
        last: Option<&[u8]>,
    ) {
        if self.reads_earlier() {
            return;
        }
        self.keyspace.ranks.cut(id, start, cuts, first, last);
    }
}
