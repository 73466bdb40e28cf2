//! A page of metrics in Prometheus' text format, version 0.0.4.
//!
//! A metric is declared where its value is given: its family is on the page whether it has a value
//! or not, so the page of a server that does nothing yet names all there are. Each name is declared
//! once; labels come from bounded sets.

use std::fmt::{Display, Formatter, Write};

use ecotone_resp::histogram::{BUCKETS, Histogram};

/// What kind of number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It grows until the process ends.
    Counter,
    /// It is what it is now.
    Gauge,
    /// Counts by upper bounds.
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric with all its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: Vec<&'static str>,
    pub(crate) help: &'static str,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Whole(u64),
    Signed(i64),
    Real(f64),
}

impl Display for Number {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(to),
            Self::Signed(number) => number.fmt(to),
            Self::Real(number) if number.is_nan() => to.write_str("NaN"),
            Self::Real(number) if number.is_infinite() => to.write_str(if *number > 0.0 { "+Inf" } else { "-Inf" }),
            Self::Real(number) => number.fmt(to),
        }
    }
}

macro_rules! numbers {
    ($($from:ty => $to:ident),*) => {
        $(impl From<$from> for Number {
            fn from(number: $from) -> Self {
                Self::$to(number.into())
            }
        })*
    };
}

numbers!(u64 => Whole, u32 => Whole, bool => Whole, i64 => Signed, f64 => Real);

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

/// The page, as far as it is written.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
    families: Vec<Family>,
}

impl Page {
    /// The text, and what is in it.
    pub(crate) fn finish(self) -> (String, Vec<Family>) {
        (self.text, self.families)
    }

    /// A counter without labels.
    pub(crate) fn counter<N: Into<Number>>(&mut self, name: &'static str, help: &'static str, value: Option<N>) {
        self.samples(Kind::Counter, name, help, [], value.map(|value| ([""; 0], value)));
    }

    /// A gauge without labels.
    pub(crate) fn gauge<N: Into<Number>>(&mut self, name: &'static str, help: &'static str, value: Option<N>) {
        self.samples(Kind::Gauge, name, help, [], value.map(|value| ([""; 0], value)));
    }

    /// Counters by labels.
    pub(crate) fn counters<const L: usize, S: AsRef<str>, N: Into<Number>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
        samples: impl IntoIterator<Item = ([S; L], N)>,
    ) {
        self.samples(Kind::Counter, name, help, labels, samples);
    }

    /// Gauges by labels.
    pub(crate) fn gauges<const L: usize, S: AsRef<str>, N: Into<Number>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
        samples: impl IntoIterator<Item = ([S; L], N)>,
    ) {
        self.samples(Kind::Gauge, name, help, labels, samples);
    }

    /// Histograms of times by labels: the counts of the buckets, and all seconds together.
    pub(crate) fn histograms<const L: usize, S: AsRef<str>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
        samples: impl IntoIterator<Item = ([S; L], [u64; BUCKETS], f64)>,
    ) {
        self.declare(Kind::Histogram, name, help, &labels);
        let bounds_s = Histogram::bounds_s().map(|bound_s| bound_s.to_string());
        let bounds = bounds_s.iter().map(String::as_str).chain(["+Inf"]);
        for (values, counts, sum_s) in samples {
            let pairs: Vec<(&str, &str)> = labels.iter().copied().zip(values.iter().map(AsRef::as_ref)).collect();
            let mut below = 0;
            for (bound, count) in bounds.clone().zip(counts) {
                below += count;
                let with_bound: Vec<_> = pairs.iter().copied().chain([("le", bound)]).collect();
                self.sample(name, "_bucket", &with_bound, below.into());
            }
            self.sample(name, "_sum", &pairs, sum_s.into());
            self.sample(name, "_count", &pairs, below.into());
        }
    }

    fn samples<const L: usize, S: AsRef<str>, N: Into<Number>>(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; L],
        samples: impl IntoIterator<Item = ([S; L], N)>,
    ) {
        self.declare(kind, name, help, &labels);
        for (values, number) in samples {
            let pairs: Vec<(&str, &str)> = labels.iter().copied().zip(values.iter().map(AsRef::as_ref)).collect();
            self.sample(name, "", &pairs, number.into());
        }
    }

    fn declare(&mut self, kind: Kind, name: &'static str, help: &'static str, labels: &[&'static str]) {
        self.families.push(Family { name, kind, labels: labels.to_vec(), help });
        // Writing to a text does not fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], number: Number) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {number}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_label_holds_cannot_end_it() {
        let mut page = Page::default();
        page.gauges("a", "Help \\ of\nlines.", ["x", "y"], [(["q\"b\\s\nn", ""], 0.5)]);
        page.counter("b", "None.", None::<u64>);
        page.gauge("c", "Odd.", Some(f64::NEG_INFINITY));
        let (text, families) = page.finish();
        assert_eq!(
            text,
            "# HELP a Help \\\\ of\\nlines.\n# TYPE a gauge\na{x=\"q\\\"b\\\\s\\nn\",y=\"\"} 0.5\n\
             # HELP b None.\n# TYPE b counter\n# HELP c Odd.\n# TYPE c gauge\nc -Inf\n"
        );
        assert_eq!(families.iter().map(|family| family.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::default();
        histogram.record(std::time::Duration::from_micros(1));
        histogram.record(std::time::Duration::from_secs(60));
        let mut page = Page::default();
        page.histograms("h", "Times.", ["of"], [(["x"], histogram.counts(), 60.000001)]);
        let (text, _) = page.finish();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "h_bucket{of=\"x\",le=\"0.000001024\"} 1");
        assert_eq!(
            lines[BUCKETS - 2..BUCKETS],
            ["h_bucket{of=\"x\",le=\"4.294967296\"} 1", "h_bucket{of=\"x\",le=\"+Inf\"} 2"]
        );
        assert_eq!(lines[BUCKETS..], ["h_sum{of=\"x\"} 60.000001", "h_count{of=\"x\"} 2"]);
    }
}
