//! How the separated values of a store are compressed: by which codec those that users write, by
//! which those that garbage collection moves, and when a dictionary is trained.
//!
//! [`CompressionMachine`] takes events and gives commands. All that it goes by is measured on values
//! of the store: a training measures each codec on samples that it was not trained with, and what
//! share of its bytes is stored of every value that is packed later.
//!
//! **Which codec.** A byte that is stored has a cost, in time of the device: that of its writing,
//! and, where it has come to rest, of all its later copies and reads
//! ([`Parameters::written_byte_ns`], [`Parameters::relocated_byte_ns`]). A codec costs processor
//! time for each byte before compression. The one for which both together are least is used, and
//! none is one of them. Another one takes its place only where it is a tenth better.
//!
//! **Whether at all.** A store begins uncompressed, or by the codec of its newest values, and
//! collects samples. Where neither codec makes of them what is worth it ([`Parameters::max_ratio`]),
//! with a dictionary or without, it rests: no value is tried until twice [`Parameters::rest`] was
//! written, twice as much each time in a row, up to [`Parameters::max_rest`].
//!
//! **Whether values bear it out.** A part of a value that is sampled may shrink better than values do.
//! So once [`Parameters::trial`] bytes were packed by a codec since the last training, what they came
//! to takes the place of what samples have promised, where it is worse by [`Parameters::aged`]; the
//! other codec is expected to be as much worse as long as it has not been tried itself, and it is
//! decided anew. A store that gives up so rests as one whose samples did not shrink, and twice as long
//! as before, so that what is packed in vain is a share of what is written that vanishes.
//!
//! **When a dictionary has aged.** When values pack worse by [`Parameters::aged`] than when it was
//! installed, samples are collected and another one is trained. It is installed where it is better
//! by [`Parameters::min_gain`] than the one in force, on the same samples. Where it is not, values
//! have changed and not the dictionary: the next one waits for twice as many bytes.
//!
//! **How many are in use.** A segment keeps its dictionary until it goes, and readers keep those in use
//! in memory. So an aged one is not replaced before a [`Parameters::dictionaries`]th of all segments'
//! bytes was written since: so many segments' worth have it. In a store of steady size about as many
//! are in use, and in one that grows a few more each time it has doubled.
//!
//! Bounds: at most one training at a time, and one for each [`Parameters::rest`] bytes that are
//! written, but for the first.

use ecotone_types::units::{Bytes, Seconds};

/// What the setting says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompressionMode {
    /// What is measured to be best.
    #[default]
    Auto,
    /// Nothing is compressed.
    None,
    /// By LZ4, where that is worth it.
    Lz4,
    /// By zstd, where that is worth it.
    Zstd,
}

/// By what values are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// By nothing.
    None,
    /// LZ4.
    Lz4,
    /// zstd.
    Zstd,
}

impl CompressionMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::None, Self::Lz4, Self::Zstd];

    /// `auto`, `none`, `lz4` or `zstd`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl Codec {
    /// Those that pack.
    pub const PACKING: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// `none`, `lz4` or `zstd`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A user wrote it.
    Written,
    /// Garbage collection moved it.
    Relocated,
}

impl Origin {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Written, Self::Relocated];
}

/// The constants of this module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// What the device, and all that comes later, takes for a byte that users write.
    pub written_byte_ns: f64,
    /// The same of one that comes to rest.
    pub relocated_byte_ns: f64,
    /// More than this share of their bytes may packed values not take. As the codec's own bound for
    /// each of them.
    pub max_ratio: f64,
    /// By so much another codec must cost less to take the place of the one in use.
    pub min_advantage: f64,
    /// So many times what it was when the dictionary was installed is a ratio that makes it aged, and
    /// so many times what samples came to one that they do not stand for.
    pub aged: f64,
    /// By this share a new dictionary must store less than the one in force.
    pub min_gain: f64,
    /// After so many bytes a store whose values do not compress tries again, and one whose
    /// dictionary has aged trains another.
    pub rest: Bytes,
    /// After so many at the latest.
    pub max_rest: Bytes,
    /// Into so many parts all segments are divided at most by when their dictionary was trained, in a
    /// store of steady size.
    pub dictionaries: u64,
    /// So many bytes of samples are collected for a training.
    pub samples: Bytes,
    /// Over about so many bytes ratios are averaged.
    pub window: Bytes,
    /// After so many bytes that were packed by a codec it is asked whether they bear out what samples
    /// have promised.
    pub trial: Bytes,
}

/// What is in force.
pub const PARAMETERS: Parameters = Parameters {
    // 33 MB/s: what a flash card sustains, or what of a faster device compactions and reads leave.
    written_byte_ns: 30.0,
    // It is copied a few times more, and every backup and every read has to do with it.
    relocated_byte_ns: 60.0,
    max_ratio: 0.875,
    min_advantage: 0.1,
    aged: 1.15,
    min_gain: 0.05,
    rest: Bytes::from_mib(64),
    max_rest: Bytes::from_mib(4096),
    // They take 1.4 MB.
    dictionaries: 32,
    samples: Bytes::from_mib(1),
    window: Bytes::from_mib(1),
    // Enough for a few kinds of values that come by turns.
    trial: Bytes::from_mib(16),
};

/// What values came to by one codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bytes that were stored.
    pub stored: Bytes,
    /// Processor time.
    pub took: Seconds,
}

/// What samples came to by each codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredCodecs {
    /// By LZ4.
    pub lz4: Measured,
    /// By zstd.
    pub zstd: Measured,
}

impl MeasuredCodecs {
    fn of(&self, codec: Codec) -> Option<Measured> {
        match codec {
            Codec::None => None,
            Codec::Lz4 => Some(self.lz4),
            Codec::Zstd => Some(self.zstd),
        }
    }
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// Values were stored.
    Stored {
        /// Where they came from.
        origin: Origin,
        /// By what they were packed, whether or not they shrank.
        codec: Codec,
        /// Their bytes.
        raw: Bytes,
        /// What of them was stored.
        stored: Bytes,
    },
    /// All segments have so many bytes.
    Holds(Bytes),
    /// The samples that were asked for are there.
    SamplesReady,
    /// The training that was asked for is over.
    Trained {
        /// Bytes of the samples that it was measured with.
        raw: Bytes,
        /// What they come to with the dictionary in force, or with none where there is none.
        before: MeasuredCodecs,
        /// And with the new one; none where none could be trained.
        after: Option<MeasuredCodecs>,
    },
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Collect samples of what is written from now on; what was collected before is forgotten.
    Collect,
    /// Train a dictionary from the samples, and measure.
    Train,
    /// Install the dictionary that was trained.
    Install,
    /// Pack values of that origin by that codec from now on.
    Use(Origin, Codec),
}

/// What is known of a codec.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    ratio: f64,
    ns_per_byte: f64,
}

impl Estimate {
    fn of(raw: Bytes, measured: Measured) -> Self {
        let raw = raw.as_f64().max(1.0);
        Self { ratio: measured.stored.as_f64() / raw, ns_per_byte: measured.took.0 * 1e9 / raw }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The setting says so: for good.
    Off,
    /// Values are used as they are decided, or none is tried: nothing to be done before so many
    /// bytes.
    Settled {
        bytes: u64,
    },
    Collecting,
    Training,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct CompressionMachine {
    mode: CompressionMode,
    parameters: Parameters,
    state: State,
    used: [Codec; 2],
    /// Of LZ4 and zstd, with the dictionary in force.
    estimates: [Option<Estimate>; 2],
    /// Those when it was installed, or last compared with another.
    at_install: [Option<Estimate>; 2],
    /// What values came to that were packed by each of them since the last training.
    trials: [Trial; 2],
    /// Bytes of all segments.
    holds: Bytes,
    /// Bytes after which it may try again; twice as many after each time that was in vain.
    rest: u64,
}

/// What values come to that are packed by a codec, until there are enough of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Trial {
    raw: u64,
    stored: u64,
    is_over: bool,
}

impl CompressionMachine {
    /// One of a store whose newest values are packed by `resumed`, which is used until there are
    /// samples, as far as the setting allows it. What to do first is in the second part.
    pub fn new(mode: CompressionMode, parameters: Parameters, resumed: Codec) -> (Self, Vec<Command>) {
        let used = if allowed(mode).contains(&resumed) { resumed } else { Codec::None };
        let (state, mut commands) = match mode {
            CompressionMode::None => (State::Off, vec![]),
            _ => (State::Collecting, vec![Command::Collect]),
        };
        if used != Codec::None {
            commands.extend(Origin::ALL.map(|origin| Command::Use(origin, used)));
        }
        let machine = Self {
            mode,
            parameters,
            state,
            used: [used; 2],
            estimates: [None; 2],
            at_install: [None; 2],
            trials: [Trial::default(); 2],
            holds: Bytes::default(),
            rest: parameters.rest.0,
        };
        (machine, commands)
    }

    /// By what values of that origin are packed.
    pub fn used(&self, origin: Origin) -> Codec {
        self.used[origin as usize]
    }

    /// Takes an event; what is to be done about it, in this order.
    pub fn handle(&mut self, event: Event) -> Vec<Command> {
        match event {
            _ if self.state == State::Off => vec![],
            Event::Stored { codec, raw, stored, .. } => self.stored(codec, raw, stored),
            Event::Holds(bytes) => {
                self.holds = bytes;
                vec![]
            }
            Event::SamplesReady if self.state == State::Collecting => {
                self.state = State::Training;
                vec![Command::Train]
            }
            Event::Trained { raw, before, after } if self.state == State::Training => self.trained(raw, before, after),
            // Of what it has not asked for.
            Event::SamplesReady | Event::Trained { .. } => vec![],
        }
    }

    fn stored(&mut self, codec: Codec, raw: Bytes, stored: Bytes) -> Vec<Command> {
        if let Some(Some(known)) = slot(codec).map(|slot| &mut self.estimates[slot])
            && raw.0 > 0
        {
            let weight = (raw.as_f64() / self.parameters.window.as_f64()).min(1.0);
            known.ratio += weight * (stored.as_f64() / raw.as_f64() - known.ratio);
        }
        let State::Settled { bytes } = self.state else { return vec![] };
        let bytes = bytes.saturating_add(raw.0);
        self.state = State::Settled { bytes };
        if let Some(slot) = slot(codec)
            && let Some(commands) = self.tried(slot, raw, stored)
        {
            return commands;
        }
        let is_unused = self.used == [Codec::None; 2];
        let is_aged = || {
            let begins_no_other = bytes.saturating_mul(self.parameters.dictionaries) < self.holds.0;
            !begins_no_other && self.has_aged()
        };
        if bytes < self.rest || !(is_unused || is_aged()) {
            return vec![];
        }
        self.state = State::Collecting;
        vec![Command::Collect]
    }

    /// Counts what values came to by the codec in `slot`; what is to be done where there are enough of
    /// them and they do not bear out what samples have promised.
    fn tried(&mut self, at: usize, raw: Bytes, stored: Bytes) -> Option<Vec<Command>> {
        let trial = &mut self.trials[at];
        if trial.is_over {
            return None;
        }
        trial.raw = trial.raw.saturating_add(raw.0);
        trial.stored = trial.stored.saturating_add(stored.0);
        if trial.raw < self.parameters.trial.0 {
            return None;
        }
        trial.is_over = true;
        let got = trial.stored as f64 / trial.raw.max(1) as f64;
        let worse = got / self.at_install[at]?.ratio.max(f64::MIN_POSITIVE);
        if worse <= self.parameters.aged {
            // From now on it is not in vain that it was tried.
            self.rest = self.parameters.rest.0;
            return None;
        }
        for (other, estimate) in self.estimates.iter_mut().enumerate() {
            let Some(estimate) = estimate else { continue };
            if other == at {
                estimate.ratio = got;
            } else if !self.trials[other].is_over {
                estimate.ratio = (estimate.ratio * worse).min(1.0);
            }
        }
        let commands = self.use_best();
        if commands.is_empty() {
            // It is worth it all the same.
            self.rest = self.parameters.rest.0;
            return None;
        }
        self.rest_longer();
        self.state = State::Settled { bytes: 0 };
        Some(commands)
    }

    /// Uses the best codec for values of each origin from now on; the commands for those that change.
    fn use_best(&mut self) -> Vec<Command> {
        let former = self.used;
        self.used = Origin::ALL.map(|origin| self.best(origin));
        let changed = Origin::ALL.into_iter().filter(|origin| self.used(*origin) != former[*origin as usize]);
        changed.map(|origin| Command::Use(origin, self.used(origin))).collect()
    }

    fn rest_longer(&mut self) {
        self.rest = self.rest.saturating_mul(2).min(self.parameters.max_rest.0);
    }

    /// Whether what is packed comes out worse than it did once.
    fn has_aged(&self) -> bool {
        let is_worse = |codec: Codec| {
            let then = slot(codec).and_then(|slot| self.at_install[slot]);
            let now = self.estimate(codec);
            now.zip(then).is_some_and(|(now, then)| now.ratio > then.ratio * self.parameters.aged)
        };
        self.used.into_iter().any(is_worse)
    }

    fn trained(&mut self, raw: Bytes, before: MeasuredCodecs, after: Option<MeasuredCodecs>) -> Vec<Command> {
        let stored =
            |measured: &MeasuredCodecs, codec| measured.of(codec).map_or(raw, |measured| measured.stored).as_f64();
        let installed = after.filter(|after| {
            self.estimate_by(raw, after);
            // By the codecs that it would be used with.
            Origin::ALL.into_iter().any(|origin| {
                let codec = self.best(origin);
                codec != Codec::None
                    && stored(after, codec) <= stored(&before, codec) * (1.0 - self.parameters.min_gain)
            })
        });
        self.estimate_by(raw, &installed.unwrap_or(before));
        self.at_install = self.estimates;
        self.trials = [Trial::default(); 2];
        let mut commands = self.use_best();
        let is_used = self.used != [Codec::None; 2];
        if installed.is_some() && is_used {
            commands.insert(0, Command::Install);
        } else {
            // In vain: it changed nothing, or nothing is worth it. Otherwise values have to show it.
            self.rest_longer();
        }
        self.state = State::Settled { bytes: 0 };
        commands
    }

    fn estimate_by(&mut self, raw: Bytes, measured: &MeasuredCodecs) {
        for (codec, slot) in Codec::PACKING.into_iter().zip(0..) {
            self.estimates[slot] = measured.of(codec).map(|measured| Estimate::of(raw, measured));
        }
    }

    /// The codec for values of that origin, by what is known of each.
    fn best(&self, origin: Origin) -> Codec {
        let byte_ns = match origin {
            Origin::Written => self.parameters.written_byte_ns,
            Origin::Relocated => self.parameters.relocated_byte_ns,
        };
        let cost = |codec: Codec| match self.estimate(codec) {
            None => byte_ns,
            Some(estimate) => estimate.ratio * byte_ns + estimate.ns_per_byte,
        };
        let is_worth_it = |codec: &Codec| {
            allowed(self.mode).contains(codec)
                && self.estimate(*codec).is_some_and(|estimate| estimate.ratio <= self.parameters.max_ratio)
        };
        let before = self.used(origin);
        let worth_it = || Codec::PACKING.into_iter().filter(is_worth_it);
        match self.mode {
            // What the setting asks for is done whatever it costs.
            CompressionMode::Lz4 | CompressionMode::Zstd => worth_it().next().unwrap_or(Codec::None),
            CompressionMode::Auto | CompressionMode::None => {
                let best =
                    worth_it().fold(Codec::None, |best, codec| if cost(codec) < cost(best) { codec } else { best });
                let keeps = before == Codec::None || is_worth_it(&before);
                let advantage = 1.0 - self.parameters.min_advantage;
                if keeps && cost(best) > cost(before) * advantage { before } else { best }
            }
        }
    }

    fn estimate(&self, codec: Codec) -> Option<Estimate> {
        slot(codec).and_then(|slot| self.estimates[slot])
    }
}

fn allowed(mode: CompressionMode) -> &'static [Codec] {
    match mode {
        CompressionMode::Auto => &Codec::PACKING,
        CompressionMode::None => &[],
        CompressionMode::Lz4 => &[Codec::Lz4],
        CompressionMode::Zstd => &[Codec::Zstd],
    }
}

fn slot(codec: Codec) -> Option<usize> {
    match codec {
        Codec::None => None,
        Codec::Lz4 => Some(0),
        Codec::Zstd => Some(1),
    }
}
