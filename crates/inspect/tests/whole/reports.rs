//! The JSON of reports, which users read (`--json`) and servers send (`INSPECT STATUS`): no name in
//! it changes unseen.

use std::fmt::Debug;

use ecotone_engine::LevelProperties;
use ecotone_inspect::{
    Checking, CountedLevel, DuplicateCensus, Finding, FindingKind, LostTable, LostValue, LostWal, ManifestState,
    RepairReport, SegmentSpace, Space, VerifyReport,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn assert_json(value: &impl Serialize, json: &str) {
    let lines: Vec<_> = json.lines().map(str::trim).collect();
    assert_eq!(serde_json::to_string(value).unwrap(), lines.concat());
}

/// What a server sends is read by the program that asked it.
fn assert_read_back<R: Serialize + DeserializeOwned + PartialEq + Debug>(value: &R, json: &str) {
    assert_json(value, json);
    assert_eq!(serde_json::from_value::<R>(serde_json::to_value(value).unwrap()).unwrap(), *value);
}

#[test]
fn verify() {
    let finding = |kind| Finding { kind, place: "a file".into(), detail: "why".into() };
    let report = VerifyReport {
        tables: 1,
        table_bytes: 2,
        segments: 3,
        segment_bytes: 4,
        records: 5,
        entries: 6,
        damaged: vec![
            finding(FindingKind::Damage),
            finding(FindingKind::UnderstatedReferences),
            finding(FindingKind::DanglingPointer),
        ],
        damaged_count: 7,
        values_without_dictionary: 9,
        overstated: vec![finding(FindingKind::OverstatedReferences)],
        overstated_count: 8,
        torn_ends: vec![finding(FindingKind::TornEnd)],
    };
    assert_read_back(
        &report,
        r#"{"tables":1,"table_bytes":2,"segments":3,"segment_bytes":4,"records":5,"entries":6,
        "damaged":[{"kind":"damage","place":"a file","detail":"why"},
        {"kind":"understated-references","place":"a file","detail":"why"},
        {"kind":"dangling-pointer","place":"a file","detail":"why"}],"damaged_count":7,
        "values_without_dictionary":9,"overstated":[{"kind":"overstated-references","place":"a file","detail":"why"}],"overstated_count":8,
        "torn_ends":[{"kind":"torn-end","place":"a file","detail":"why"}]}"#,
    );
    for finding in report.damaged.iter().chain(&report.overstated).chain(&report.torn_ends) {
        assert_json(&finding.kind, &format!("{:?}", finding.kind.name()));
    }
}

#[test]
fn progress() {
    assert_read_back(&Checking::Table { done: 1, of: 2 }, r#"{"table":{"done":1,"of":2}}"#);
    assert_read_back(&Checking::Segment { done: 1, of: 2 }, r#"{"segment":{"done":1,"of":2}}"#);
    assert_read_back(&Checking::Entries { done: 1 }, r#"{"entries":{"done":1}}"#);
}

#[test]
fn space() {
    let level = LevelProperties { tables: 1, bytes: 2 };
    let segment = SegmentSpace { segment: 1, bytes: 2, referenced_bytes: 3, resting_level: None };
    let counted = CountedLevel { entries: 1, shadowed_keys: 2, shadowed_bytes: 3 };
    let report = Space {
        levels: vec![level],
        segments: vec![segment, SegmentSpace { resting_level: Some(4), ..segment }],
        saved_bytes: 9,
        wal_bytes: 5,
        other_bytes: 6,
        keys_estimate: 7,
        silent_tables: vec!["a table".into()],
        duplicates: Some(DuplicateCensus { levels: vec![counted], relative_error: Some(0.5), unsampled_tables: 8 }),
    };
    assert_read_back(
        &report,
        r#"{"levels":[{"tables":1,"bytes":2}],
        "segments":[{"segment":1,"bytes":2,"referenced_bytes":3,"resting_level":null},
        {"segment":1,"bytes":2,"referenced_bytes":3,"resting_level":4}],
        "saved_bytes":9,"wal_bytes":5,"other_bytes":6,"keys_estimate":7,"silent_tables":["a table"],
        "duplicates":{"levels":[{"entries":1,"shadowed_keys":2,"shadowed_bytes":3}],"relative_error":0.5,
        "unsampled_tables":8}}"#,
    );
}

#[test]
fn repair() {
    let lost_table = LostTable {
        table: "a table".into(),
        reason: "why".into(),
        from: Some("a".into()),
        to: None,
        entries: Some(1),
        gaps: 2,
    };
    let lost_wal = LostWal { wal: "a log".into(), offset: 1, bytes: 2, writes: Some(3), reason: "why".into() };
    let report = RepairReport {
        value_log: true,
        manifest: ManifestState::Damaged("why".into()),
        tables: 1,
        table_bytes: 2,
        unlisted_tables: 3,
        unfinished_tables: 4,
        segments: 5,
        segment_bytes: 6,
        wals: 7,
        wal_bytes: 8,
        saved_entries: 9,
        saved_bytes: 10,
        lost_tables: vec![lost_table],
        lost_table_count: 11,
        lost_values: vec![LostValue { key: "a key".into(), place: "a file".into(), reason: "why".into() }],
        lost_value_count: 12,
        lost_wals: vec![lost_wal],
        lost_wal_count: 13,
        doubtful_entries: 14,
        older_may_be_back: true,
        notes: vec!["a note".into()],
    };
    assert_json(
        &report,
        r#"{"value_log":true,"manifest":{"damaged":"why"},"tables":1,"table_bytes":2,"unlisted_tables":3,
        "unfinished_tables":4,"segments":5,"segment_bytes":6,"wals":7,"wal_bytes":8,"saved_entries":9,"saved_bytes":10,
        "lost_tables":[{"table":"a table","reason":"why","from":"a","to":null,"entries":1,"gaps":2}],
        "lost_table_count":11,"lost_values":[{"key":"a key","place":"a file","reason":"why"}],"lost_value_count":12,
        "lost_wals":[{"wal":"a log","offset":1,"bytes":2,"writes":3,"reason":"why"}],"lost_wal_count":13,
        "doubtful_entries":14,"older_may_be_back":true,"notes":["a note"]}"#,
    );
    assert_json(&ManifestState::Sound, r#""sound""#);
    assert_json(&ManifestState::Missing, r#""missing""#);
}
