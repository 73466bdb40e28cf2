//! Copies of shards on this server, by shard. A server without a federation has none of it.
//!
//! A server holds so many shards at most that their numbers are a bounded set of labels. What is not
//! known has no value: a lag before the primary was heard of is not 0.

use std::collections::BTreeMap;

use ecotone_control::ids::ShardId;
use ecotone_control::map::{Map, Shard};
use ecotone_control::settings::Replication;
use ecotone_membership::Known;
use ecotone_replication::{Facts, is_replicated};

use super::page::{Number, Page};
use crate::host::copies::{is_unprotected, missing_copies};
use crate::monitor::ServerSample;
use crate::replica_reads::ReadFacts;

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>) {
    let known = sample.and_then(|sample| sample.known.as_deref());
    federation(page, known);
    copies(page, known, sample.map_or(&[], |sample| &sample.copies));
    reads(page, sample.map_or(&[], |sample| &sample.reads));
}

/// What the map says: every server says the same.
fn federation(page: &mut Page, known: Option<&Known>) {
    let count = |is: fn(&Map, &Shard) -> bool| {
        known.map(|known| known.map.shards.values().filter(|shard| is(&known.map, shard)).count())
    };
    page.gauge(
        "ecotone_replication_wanted_copies",
        "Copies that a shard should have (replication.copies).",
        known.map(|known| Replication::of(&known.map).copies),
    );
    page.gauge(
        "ecotone_replication_unprotected_shards",
        "Shards that should have several copies, and have one in sync: what it acknowledges hangs on one server.",
        count(is_unprotected),
    );
    page.gauge(
        "ecotone_replication_incomplete_shards",
        "Shards with fewer copies in sync than there should be.",
        count(|map, shard| missing_copies(map, shard) > 0),
    );
    page.gauge(
        "ecotone_replication_waiting_shards",
        "Shards with copies of which none is the primary: another one is being chosen, or people are needed.",
        count(|map, shard| is_replicated(map, shard) && shard.primary.is_none()),
    );
}

type Copy<'a> = (String, ShardId, &'a Facts);

/// What is so here.
fn copies(page: &mut Page, known: Option<&Known>, facts: &[(ShardId, Facts)]) {
    let all: BTreeMap<ShardId, &Facts> = facts.iter().map(|(id, facts)| (*id, facts)).collect();
    let all: Vec<Copy<'_>> = all.into_iter().map(|(id, facts)| (id.0.to_string(), id, facts)).collect();
    let shard_of = |id: ShardId| Some((known?, known?.map.shards.get(&id)?));
    let of = |number: &dyn Fn(ShardId, &Facts) -> Option<Number>| {
        let values = all.iter().filter_map(|(name, id, facts)| Some(([name.clone()], number(*id, facts)?)));
        values.collect::<Vec<_>>()
    };
    // Of a primary the farthest replica, and of a replica itself.
    let lag_bytes = |facts: &Facts| {
        let farthest = facts.lag_bytes.values().filter_map(|lag| *lag).max();
        facts.staleness.map(|staleness| staleness.bytes).or(farthest)
    };
    let mut gauge = |name, help, number: &dyn Fn(ShardId, &Facts) -> Option<Number>| {
        page.gauges(name, help, ["shard"], of(number));
    };
    gauge(
        "ecotone_replication_is_primary",
        "Whether the copy here is the primary and serves clients; 0 for a replica, and for a primary that may not serve.",
        &|_, facts| Some(facts.is_serving.into()),
    );
    gauge("ecotone_replication_in_sync", "Whether the copy here is in the in-sync set.", &|id, _| {
        let (known, shard) = shard_of(id)?;
        Some(shard.in_sync.contains(&known.member).into())
    });
    gauge(
        "ecotone_replication_whole",
        "Whether the copy here holds all that it acknowledged; not after a loss of power that took some of it.",
        &|_, facts| Some(facts.is_whole.into()),
    );
    gauge(
        "ecotone_replication_in_sync_copies",
        "Copies in the in-sync set of a shard that has a copy here.",
        &|id, _| Some(shard_of(id)?.1.in_sync.len().into()),
    );
    gauge(
        "ecotone_replication_epoch",
        "The epoch of the shard: it rises with each change of its primary.",
        &|_, facts| Some(facts.epoch.0.into()),
    );
    gauge(
        "ecotone_replication_position",
        "How far the copy here is: the number of the last item of the stream that it has, in the epoch of that item.",
        &|_, facts| Some(facts.position.number.into()),
    );
    gauge(
        "ecotone_replication_lag_bytes",
        "Bytes of the stream that a replica here lacks; of a primary what its farthest replica lacks.",
        &|_, facts| lag_bytes(facts).map(Number::from),
    );
    gauge(
        "ecotone_replication_lag_seconds",
        "Time since a replica here had all that its primary had. None at a primary.",
        &|_, facts| Some((facts.staleness?.us as f64 / 1e6).into()),
    );
    gauge(
        "ecotone_replication_seeding_bytes",
        "Bytes of files that a copy here has got while it is being made.",
        &|_, facts| Some(facts.seeding?.0.into()),
    );
    gauge("ecotone_replication_seeding_wanted_bytes", "Bytes of files that it has to get.", &|_, facts| {
        Some(facts.seeding?.1.into())
    });
    gauge(
        "ecotone_replication_in_trouble",
        "Whether something is wrong with the copy here; `ecotone cluster status` and the log say what.",
        &|_, facts| Some(facts.trouble.is_some().into()),
    );
    gauge(
        "ecotone_replication_damaged_files",
        "Files of the copy here that do not hold what they should, and that no other copy has whole: \
         `ecotone cluster repair` says which.",
        &|_, facts| Some(facts.scrubbed.damaged.len().into()),
    );
    gauge(
        "ecotone_replication_compared_timestamp_seconds",
        "When all files of the copy here were last compared, in seconds since 1970. None before the first time.",
        &|_, facts| facts.scrubbed.ended_s.map(Number::from),
    );
    page.counters(
        "ecotone_replication_compared_bytes_total",
        "Bytes of files of a copy here that were compared with what they should hold.",
        ["shard"],
        of(&|_, facts| Some(facts.scrubbed.compared_bytes.into())),
    );
    page.counters(
        "ecotone_replication_differing_files_total",
        "Files of a copy here that did not hold what they should.",
        ["shard"],
        of(&|_, facts| Some(facts.scrubbed.differing.into())),
    );
    page.counters(
        "ecotone_replication_replaced_files_total",
        "Of these, files that were replaced by another copy's.",
        ["shard"],
        of(&|_, facts| Some(facts.scrubbed.replaced.into())),
    );
    page.counters(
        "ecotone_replication_applied_bytes_total",
        "Bytes of the stream that a copy here has applied.",
        ["shard"],
        of(&|_, facts| Some(facts.bytes_applied.into())),
    );
    page.counters(
        "ecotone_replication_sent_bytes_total",
        "Bytes of the stream that a primary here has sent, to all copies together.",
        ["shard"],
        of(&|_, facts| Some(facts.bytes_sent.into())),
    );
    page.counters(
        "ecotone_replication_spared_bytes_total",
        "Bytes of values moved by garbage collection that a primary here has not sent, to all copies together: these \
         make them of what they have.",
        ["shard"],
        of(&|_, facts| Some(facts.bytes_spared.into())),
    );
}

/// Reads at replicas here.
fn reads(page: &mut Page, facts: &[(ShardId, ReadFacts)]) {
    let all: BTreeMap<ShardId, &ReadFacts> = facts.iter().map(|(id, facts)| (*id, facts)).collect();
    let of = |number: &dyn Fn(&ReadFacts) -> Option<Number>| {
        let values = all.iter().filter_map(|(id, facts)| Some(([id.0.to_string()], number(facts)?)));
        values.collect::<Vec<_>>()
    };
    page.gauges(
        "ecotone_replica_reads_open",
        "Whether a replica here is open to be read: it is while clients with READONLY read there, and some time after.",
        ["shard"],
        of(&|facts| Some(facts.is_open.into())),
    );
    page.gauges(
        "ecotone_replica_reads_staleness_bytes",
        "Bytes of the stream that are not in what reads at a replica here show. None while it is not open.",
        ["shard"],
        of(&|facts| Some(facts.staleness?.bytes.into())),
    );
    page.gauges(
        "ecotone_replica_reads_staleness_seconds",
        "How old what reads at a replica here show may be. None while it is not open.",
        ["shard"],
        of(&|facts| Some((facts.staleness?.us as f64 / 1e6).into())),
    );
    page.counters(
        "ecotone_replica_reads_total",
        "Commands that a replica here has answered.",
        ["shard"],
        of(&|facts| Some(facts.reads.into())),
    );
    page.counters(
        "ecotone_replica_reads_refused_total",
        "Commands of clients with READONLY that were sent to the primary: the replica was not open yet, or too stale.",
        ["shard"],
        of(&|facts| Some(facts.refused.into())),
    );
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::{Epoch, MemberId};
    use ecotone_mirror::names::FileName;
    use ecotone_replica::position::Position;
    use ecotone_replica::receiver::Staleness;
    use ecotone_replica::stream::FileKind;
    use ecotone_replication::Scrubbed;

    use super::*;

    #[test]
    fn reads_of_a_replica_that_is_not_open_have_no_staleness() {
        let open =
            ReadFacts { is_open: true, staleness: Some(Staleness { bytes: 9, us: 1_500_000 }), reads: 4, refused: 2 };
        let mut page = Page::default();
        reads(&mut page, &[(ShardId(3), open), (ShardId(5), ReadFacts::default())]);
        let (text, _) = page.finish();
        for line in [
            "ecotone_replica_reads_open{shard=\"3\"} 1",
            "ecotone_replica_reads_open{shard=\"5\"} 0",
            "ecotone_replica_reads_staleness_bytes{shard=\"3\"} 9",
            "ecotone_replica_reads_staleness_seconds{shard=\"3\"} 1.5",
            "ecotone_replica_reads_total{shard=\"3\"} 4",
            "ecotone_replica_reads_refused_total{shard=\"3\"} 2",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}: {text}");
        }
        assert!(!text.contains("staleness_bytes{shard=\"5\"}"), "{text}");
    }

    #[test]
    fn a_primary_shows_its_farthest_replica_and_a_replica_itself() {
        let primary = Facts {
            epoch: Epoch(4),
            is_serving: true,
            position: Position { epoch: Epoch(4), number: 90 },
            lag_bytes: [(MemberId(2), Some(7)), (MemberId(3), Some(70)), (MemberId(4), None)].into(),
            bytes_sent: 500,
            bytes_spared: 300,
            ..Facts::default()
        };
        let replica =
            Facts { staleness: Some(Staleness { bytes: 5, us: 2_500_000 }), seeding: Some((3, 9)), ..Facts::default() };
        // One of which nothing is known yet.
        let damaged = FileName::new(FileKind::Table, 12);
        let scrubbed = Scrubbed {
            compared_bytes: 900,
            differing: 4,
            replaced: 3,
            damaged: [(damaged, "nobody has it".into())].into(),
            ended_s: Some(1_700_000_000),
        };
        let new = Facts { trouble: Some("no space".into()), scrubbed, ..Facts::default() };
        let mut page = Page::default();
        copies(&mut page, None, &[(ShardId(7), replica), (ShardId(2), primary), (ShardId(9), new)]);
        let (text, _) = page.finish();
        for line in [
            "ecotone_replication_is_primary{shard=\"2\"} 1",
            "ecotone_replication_is_primary{shard=\"7\"} 0",
            "ecotone_replication_epoch{shard=\"2\"} 4",
            "ecotone_replication_position{shard=\"2\"} 90",
            "ecotone_replication_lag_bytes{shard=\"2\"} 70",
            "ecotone_replication_lag_bytes{shard=\"7\"} 5",
            "ecotone_replication_lag_seconds{shard=\"7\"} 2.5",
            "ecotone_replication_seeding_wanted_bytes{shard=\"7\"} 9",
            "ecotone_replication_in_trouble{shard=\"9\"} 1",
            "ecotone_replication_sent_bytes_total{shard=\"2\"} 500",
            "ecotone_replication_spared_bytes_total{shard=\"2\"} 300",
            "ecotone_replication_damaged_files{shard=\"9\"} 1",
            "ecotone_replication_damaged_files{shard=\"2\"} 0",
            "ecotone_replication_compared_timestamp_seconds{shard=\"9\"} 1700000000",
            "ecotone_replication_compared_bytes_total{shard=\"9\"} 900",
            "ecotone_replication_differing_files_total{shard=\"9\"} 4",
            "ecotone_replication_replaced_files_total{shard=\"9\"} 3",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}: {text}");
        }
        for unknown in [
            "compared_timestamp_seconds{shard=\"2\"}",
            "lag_bytes{shard=\"9\"}",
            "lag_seconds{shard=\"2\"}",
            "seeding_bytes{shard=\"2\"}",
            "in_sync{",
        ] {
            assert!(!text.contains(&format!("ecotone_replication_{unknown}")), "{unknown}: {text}");
        }
    }
}
