//! What the leader of the control plane does about copies: it promotes where a primary is lost, and
//! has copies added, removed and handed over where the map asks for it.
//!
//! Everything it remembers may be lost: the next leader finds the same in the log and at the members.
//!
//! Threads: `ecotone-promotions`; reports of others come by its inbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ecotone_control::entry::Entry;
use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_control::map::Map;
use ecotone_control::placing::{Change, Presence, next_changes};
use ecotone_control::settings::Replication;
use ecotone_membership::Known;
use ecotone_replica::promotion::{LeaderCommand, PromotionSettings, Promotions};
use ecotone_replica::wire::Message;
use tracing::{info, warn};

/// A primary that has not said for so long that it serves is suspected.
const SUSPECT_AFTER_US: u64 = 600_000;
/// Between two questions to one member.
const ASK_EVERY_US: u64 = 60_000;
/// How long others are waited for instead of a copy that was named and could not be opened.
const WAIT_FOR_OTHERS_US: u64 = 2_000_000;
/// Between two looks at where copies belong.
const PLACE_EVERY_US: u64 = 1_000_000;
/// A server that has said nothing for so long gets no copies, and no shards.
const ABSENT_AFTER_US: u64 = 3_000_000;
/// A server that has said nothing for so long is given up: its copies are made elsewhere.
const REPLACE_AFTER_US: u64 = 300_000_000;
/// A hand-over that takes longer is taken back.
const MAX_HAND_OVER_US: u64 = 5_000_000;
/// The successor's log is verified within this, or nothing comes of it. It is read as a whole.
const MAX_VERIFY_US: u64 = 30_000_000;
/// Between two questions whether it is.
const VERIFY_EVERY_US: u64 = 1_000_000;
/// A hand-over that came to nothing is not planned again before this: writes are refused meanwhile.
const HAND_OVER_PAUSE_US: u64 = 60_000_000;
/// What is said again of a shard that stays without a primary.
const WARN_EVERY_US: u64 = 30_000_000;

/// Between two looks while this server leads.
pub(crate) const LEADING_TICK: Duration = Duration::from_millis(50);

/// What the leader asks of others.
pub(crate) enum Order {
    /// Have it decided.
    Propose(Entry),
    /// Say it to a server, which may be this one.
    Send(MemberId, Message),
}

struct HandOver {
    to: MemberId,
    epoch: Epoch,
    since_us: u64,
    /// The log of the successor is undamaged: others will be built from it.
    is_verified: bool,
    asked_us: Option<u64>,
}

/// What a leader remembers.
pub(crate) struct Leader {
    promotions: Promotions,
    last_us: BTreeMap<MemberId, u64>,
    since_us: u64,
    placed_us: u64,
    warned_us: BTreeMap<ShardId, u64>,
    hand_overs: BTreeMap<ShardId, HandOver>,
    /// Until when none is planned, where one came to nothing.
    paused_us: BTreeMap<ShardId, u64>,
}

impl Leader {
    /// Leads since `now_us`, and knows nothing yet.
    pub(crate) fn new(now_us: u64) -> Leader {
        let settings = PromotionSettings {
            suspect_after_us: SUSPECT_AFTER_US,
            ask_every_us: ASK_EVERY_US,
            wait_for_others_us: WAIT_FOR_OTHERS_US,
        };
        Leader {
            promotions: Promotions::new(settings),
            last_us: BTreeMap::new(),
            since_us: now_us,
            placed_us: now_us,
            warned_us: BTreeMap::new(),
            hand_overs: BTreeMap::new(),
            paused_us: BTreeMap::new(),
        }
    }

    /// A server says something.
    pub(crate) fn said(&mut self, from: MemberId, message: Message, now_us: u64) {
        self.last_us.insert(from, now_us);
        match message {
            Message::Report(reports) => {
                for report in reports {
                    self.promotions.reported(report.shard, report.serving, now_us);
                }
            }
            Message::Sealed(report) if report.member == from => self.promotions.sealed(report),
            Message::Verified { shard, epoch, is_sound } => {
                self.promotions.verified(shard, from, is_sound);
                self.successor_verified((shard, epoch, from), is_sound, now_us);
            }
            Message::Repaired { shard, is_whole, .. } => self.promotions.repaired(shard, from, is_whole),
            _ => {}
        }
    }

    /// A server is there: this one, which says nothing to itself.
    pub(crate) fn is_here(&mut self, member: MemberId, now_us: u64) {
        self.last_us.insert(member, now_us);
    }

    /// People ask that `to` becomes the primary of a shard.
    pub(crate) fn begin_hand_over(&mut self, map: &Map, shard: ShardId, to: MemberId, now_us: u64) -> bool {
        let Some(state) = map.shards.get(&shard) else { return false };
        let is_possible = state.primary.is_some_and(|primary| primary != to) && state.in_sync.contains(&to);
        if is_possible {
            let (epoch, since_us) = (state.epoch, now_us);
            let new = HandOver { to, epoch, since_us, is_verified: false, asked_us: None };
            self.hand_overs.entry(shard).or_insert(new);
        }
        is_possible
    }

    fn successor_verified(&mut self, (shard, epoch, of): (ShardId, Epoch, MemberId), is_sound: bool, now_us: u64) {
        let Some(hand_over) = self.hand_overs.get_mut(&shard).filter(|it| (it.epoch, it.to) == (epoch, of)) else {
            return;
        };
        if !is_sound {
            warn!(shard = shard.0, server = of.0, "a shard is not handed over: the log of its successor is damaged");
            self.hand_overs.remove(&shard);
            self.paused_us.insert(shard, now_us + HAND_OVER_PAUSE_US);
        } else if !hand_over.is_verified {
            (hand_over.is_verified, hand_over.since_us) = (true, now_us);
        }
    }

    /// What is to be done now. `is_replicated` says which shards have copies to be watched.
    pub(crate) fn tick(
        &mut self,
        known: &Arc<Known>,
        is_replicated: impl Fn(&Map, ShardId) -> bool,
        now_us: u64,
    ) -> Vec<Order> {
        let mut watched = (*known.map).clone();
        watched.shards.retain(|shard, _| is_replicated(&known.map, *shard));
        let mut orders = Vec::new();
        for command in self.promotions.tick(&watched, now_us) {
            match command {
                LeaderCommand::Propose(entry) => orders.push(Order::Propose(entry)),
                LeaderCommand::Seal(member, shard, epoch) => {
                    orders.push(Order::Send(member, Message::Seal(shard, epoch)));
                }
                LeaderCommand::Verify(member, shard) => {
                    let epoch = watched.shards.get(&shard).map_or(Epoch(0), |state| state.epoch);
                    orders.push(Order::Send(member, Message::Verify(shard, epoch)));
                }
                LeaderCommand::Repair(member, shard, from) => {
                    let epoch = watched.shards.get(&shard).map_or(Epoch(0), |state| state.epoch);
                    orders.push(Order::Send(member, Message::Repair { shard, epoch, from }));
                }
                LeaderCommand::Stuck(shard, need) => {
                    let warned_us = self.warned_us.entry(shard).or_default();
                    if *warned_us == 0 || now_us > *warned_us + WARN_EVERY_US {
                        *warned_us = now_us;
                        warn!(
                            shard = shard.0,
                            ?need,
                            "a shard has no primary: copies that hold all that was acknowledged are missing; start their servers, or see `ecotone cluster promote --help`"
                        );
                    }
                }
            }
        }
        self.hand_over(&known.map, now_us, &mut orders);
        if now_us >= self.placed_us + PLACE_EVERY_US {
            self.placed_us = now_us;
            self.place(&watched, now_us, &mut orders);
        }
        orders
    }

    fn hand_over(&mut self, map: &Map, now_us: u64, orders: &mut Vec<Order>) {
        self.hand_overs.retain(|shard, hand_over| {
            let Some(state) = map.shards.get(shard).filter(|state| state.epoch == hand_over.epoch) else {
                return false;
            };
            let Some(primary) = state.primary else { return false };
            if !hand_over.is_verified {
                if hand_over.asked_us.is_none_or(|asked_us| now_us >= asked_us + VERIFY_EVERY_US) {
                    hand_over.asked_us = Some(now_us);
                    orders.push(Order::Send(hand_over.to, Message::Verify(*shard, state.epoch)));
                }
                return now_us <= hand_over.since_us + MAX_VERIFY_US;
            }
            let is_over = now_us > hand_over.since_us + MAX_HAND_OVER_US;
            if is_over {
                self.paused_us.insert(*shard, now_us + HAND_OVER_PAUSE_US);
            }
            let to = Some(hand_over.to).filter(|_| !is_over);
            let message = Message::HandOver { shard: *shard, epoch: state.epoch, to };
            orders.push(Order::Send(primary, message));
            !is_over
        });
    }

    /// Where copies belong.
    fn place(&mut self, map: &Map, now_us: u64, orders: &mut Vec<Order>) {
        let settings = Replication::of(map);
        let last_us = |member: MemberId| self.last_us.get(&member).copied().unwrap_or(self.since_us);
        let members = || map.members().map(|(member, _)| member);
        let alive: BTreeSet<MemberId> =
            members().filter(|member| now_us < last_us(*member) + ABSENT_AFTER_US).collect();
        let given_up: BTreeSet<MemberId> =
            members().filter(|member| now_us > last_us(*member) + REPLACE_AFTER_US).collect();
        let busy: BTreeSet<ShardId> = self.hand_overs.keys().copied().collect();
        let presence = Presence { alive: &alive, given_up: &given_up };
        self.paused_us.retain(|_, until_us| now_us < *until_us);
        for change in next_changes(map, settings.copies, presence, &busy) {
            let Some(state) = map.shards.get(&change.shard()) else { continue };
            let epoch = state.epoch;
            match change {
                Change::AddCopy { shard, member } => {
                    info!(shard = shard.0, server = member.0, "a copy is added");
                    orders.push(Order::Propose(Entry::AddCopy { shard, epoch, member }));
                }
                Change::RemoveCopy { shard, member } if state.in_sync.contains(&member) => {
                    // It leaves the set first, when all that was acknowledged counts without it.
                    let Some(primary) = state.primary else { continue };
                    let message = Message::Excuse { shard, epoch, members: BTreeSet::from([member]) };
                    orders.push(Order::Send(primary, message));
                }
                Change::RemoveCopy { shard, member } => {
                    info!(shard = shard.0, server = member.0, "a copy is given up");
                    orders.push(Order::Propose(Entry::RemoveCopy { shard, epoch, member }));
                }
                Change::HandOver { shard, .. } if self.paused_us.contains_key(&shard) => {}
                Change::HandOver { shard, to } => {
                    if self.begin_hand_over(map, shard, to, now_us) {
                        info!(shard = shard.0, server = to.0, "a shard is handed over");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::FederationId;
    use ecotone_control::map::Shard;

    use super::*;

    const SHARD: ShardId = ShardId(1);
    const PRIMARY: MemberId = MemberId(1);
    const SUCCESSOR: MemberId = MemberId(2);

    fn known() -> Arc<Known> {
        let copies: BTreeSet<MemberId> = [PRIMARY, SUCCESSOR].into();
        let (in_sync, primary) = (copies.clone(), Some(PRIMARY));
        let state = Shard { slots: Vec::new(), copies, in_sync, primary, epoch: Epoch(3), set_version: 1 };
        let mut map = Map::new(FederationId([0; 8]));
        map.shards.insert(SHARD, state);
        Arc::new(Known {
            map: Arc::new(map),
            member: PRIMARY,
            leader: Some(PRIMARY),
            term: 1,
            voters: BTreeSet::new(),
            gone: BTreeSet::new(),
            applied: 1,
            stopped: None,
            told_removed: false,
        })
    }

    /// What is sent about the hand-over: whom it is asked to verify, and to whom the primary hands over.
    fn sent(leader: &mut Leader, now_us: u64) -> (Vec<MemberId>, Vec<Option<MemberId>>) {
        let (mut asked, mut handed) = (Vec::new(), Vec::new());
        for order in leader.tick(&known(), |_, _| false, now_us) {
            match order {
                Order::Send(to, Message::Verify(SHARD, Epoch(3))) => asked.push(to),
                Order::Send(PRIMARY, Message::HandOver { shard: SHARD, epoch: Epoch(3), to }) => handed.push(to),
                Order::Send(..) | Order::Propose(_) => panic!("nothing else is asked for"),
            }
        }
        (asked, handed)
    }

    fn verified(leader: &mut Leader, epoch: u64, is_sound: bool, now_us: u64) {
        leader.said(SUCCESSOR, Message::Verified { shard: SHARD, epoch: Epoch(epoch), is_sound }, now_us);
    }

    #[test]
    fn a_shard_is_handed_over_to_a_log_that_was_verified() {
        let mut leader = Leader::new(0);
        assert!(leader.begin_hand_over(&known().map, SHARD, SUCCESSOR, 0));
        assert_eq!(sent(&mut leader, 0), (vec![SUCCESSOR], vec![]));
        assert_eq!(sent(&mut leader, VERIFY_EVERY_US - 1), (vec![], vec![]));
        verified(&mut leader, 2, true, VERIFY_EVERY_US);
        assert_eq!(sent(&mut leader, VERIFY_EVERY_US), (vec![SUCCESSOR], vec![]), "that was of another epoch");
        let long = 2 * MAX_HAND_OVER_US;
        verified(&mut leader, 3, true, long);
        assert_eq!(sent(&mut leader, long), (vec![], vec![Some(SUCCESSOR)]));
        // It takes too long, and is not planned again at once; people may.
        assert_eq!(sent(&mut leader, long + MAX_HAND_OVER_US + 1), (vec![], vec![None]));
        assert_eq!(sent(&mut leader, long + MAX_HAND_OVER_US + 2), (vec![], vec![]));
        assert!(leader.paused_us.contains_key(&SHARD));
        assert!(leader.begin_hand_over(&known().map, SHARD, SUCCESSOR, long + MAX_HAND_OVER_US + 2));
    }

    #[test]
    fn a_shard_is_not_handed_over_to_a_damaged_log() {
        let mut leader = Leader::new(0);
        leader.begin_hand_over(&known().map, SHARD, SUCCESSOR, 0);
        sent(&mut leader, 0);
        verified(&mut leader, 3, false, 1);
        assert_eq!(sent(&mut leader, VERIFY_EVERY_US), (vec![], vec![]));
        assert!(leader.hand_overs.is_empty() && leader.paused_us.contains_key(&SHARD));
    }
}
