//! A strict reader of Prometheus' text format, version 0.0.4: what is not exactly as the format
//! says fails the test.

use std::collections::{BTreeMap, BTreeSet};

/// A page.
#[derive(Debug, Default)]
pub struct Page {
    /// The type of each family.
    pub kinds: BTreeMap<String, String>,
    /// By the name of the family: name of the sample, labels, value.
    pub samples: BTreeMap<String, Vec<Sample>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Page {
    pub fn parse(text: &str) -> Page {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut page = Page::default();
        let (mut family, mut help, mut series) = (String::new(), None, BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
                assert!(!page.kinds.contains_key(name), "{name} is declared twice");
                unescape(text, false);
                help = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(help.take().as_deref(), Some(name), "HELP does not come before TYPE");
                assert!(is_name(name) && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                page.kinds.insert(name.into(), kind.into());
                page.samples.insert(name.into(), Vec::new());
                family = name.into();
            } else {
                let sample = sample(line);
                let suffix = sample.name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} is below {family}"));
                let suffixes: &[&str] =
                    if page.kinds[&family] == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(suffixes.contains(&suffix), "{line} is below {family}");
                assert_eq!(suffix == "_bucket", sample.labels.contains_key("le"), "{line}");
                assert!(series.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
                if page.kinds[&family] != "gauge" {
                    assert!(sample.value >= 0.0 && sample.value.is_finite(), "{line}");
                }
                page.samples.get_mut(&family).unwrap().push(sample);
            }
        }
        page.check_histograms();
        page
    }

    fn check_histograms(&self) {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut by_labels: BTreeMap<_, Vec<&Sample>> = BTreeMap::new();
            for sample in &self.samples[name] {
                let mut labels = sample.labels.clone();
                labels.remove("le");
                by_labels.entry(labels).or_default().push(sample);
            }
            for (labels, samples) in by_labels {
                let buckets: Vec<_> = samples.iter().filter(|sample| sample.name.ends_with("_bucket")).collect();
                let bound = |sample: &Sample| sample.labels["le"].parse::<f64>().unwrap();
                assert!(buckets.is_sorted_by(|a, b| bound(a) < bound(b)), "{name} {labels:?}");
                assert!(buckets.is_sorted_by(|a, b| a.value <= b.value), "{name} {labels:?}");
                assert_eq!(buckets.last().unwrap().labels["le"], "+Inf");
                let count = samples.iter().find(|sample| sample.name.ends_with("_count")).unwrap();
                assert_eq!(buckets.last().unwrap().value, count.value, "{name} {labels:?}");
            }
        }
    }

    /// The one value of a metric without labels.
    pub fn value(&self, name: &str) -> f64 {
        match &self.samples[name][..] {
            [sample] if sample.labels.is_empty() => sample.value,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// The value of the sample with this label, 0 where there is none.
    pub fn labelled(&self, name: &str, label: &str, value: &str) -> f64 {
        let of = |sample: &&Sample| sample.labels.get(label).is_some_and(|found| found == value);
        self.samples[name].iter().find(of).map_or(0.0, |sample| sample.value)
    }

    /// Every series that must never decrease.
    pub fn counters(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|(name, _)| self.kinds[*name] != "gauge").flat_map(|(_, samples)| samples)
    }
}

fn is_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_first) && text.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line:?}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line:?}");
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inside.split_once("=\"").unwrap_or_else(|| panic!("no label: {line:?}"));
            assert!(is_name(label), "{line:?}");
            let mut escaped = false;
            let close = behind.find(|character| {
                let ends = character == '"' && !escaped;
                escaped = character == '\\' && !escaped;
                ends
            });
            let close = close.unwrap_or_else(|| panic!("a label does not end: {line:?}"));
            assert!(labels.insert(label.to_owned(), unescape(&behind[..close], true)).is_none(), "{line:?}");
            inside = &behind[close + 1..];
            match inside.as_bytes()[0] {
                b',' => inside = &inside[1..],
                b'}' => break,
                _ => panic!("{line:?}"),
            }
        }
        rest = &inside[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line:?}"));
    assert!(!value.contains(' '), "{line:?}");
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line:?}"));
    Sample { name: name.into(), labels, value }
}

fn unescape(text: &str, is_label: bool) -> String {
    let (mut plain, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('\\') => '\\',
                Some('"') if is_label => '"',
                other => panic!("\\{other:?} in {text:?}"),
            },
            '"' if is_label => panic!("a bare quote in {text:?}"),
            other => other,
        });
    }
    plain
}
