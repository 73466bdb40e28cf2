//! How separated values are compressed: the interpreter of
//! [`ecotone_policy::compression::CompressionMachine`].
//!
//! A writer compresses its value by itself, before it takes any lock, by the codec that is in force
//! for values of its origin. It counts what came of it, and while samples are collected it leaves
//! its value there unless another writer is at it. So does garbage collection with values that are
//! not compressed, so that those of a store that is seldom written are so as well.
//!
//! Invariants: nobody waits for a training; a dictionary is in force only from the moment on where
//! each further segment that needs one begins with it. A thread that must not wait packs values of at
//! most [`MAX_UNBLOCKED_PACK_BYTES`]: a write of longer ones it leaves to another.
//!
//! Memory: see [`StoreSettings::compression_memory_bytes`](crate::StoreSettings).
//!
//! Failure: a training that gives nothing, or a dictionary that cannot be used, leaves everything as
//! it is.
//!
//! Threads: any may append. The machine belongs to the thread `ecotone-training`, which sleeps
//! until [`MAX_ROUND_BYTES`] more were written, or as many as samples are collected.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use ecotone_policy::compression::{
    Codec, Command, CompressionMachine, CompressionMode, Event, Measured, MeasuredCodecs, Origin, Parameters,
};
use ecotone_types::Duty;
use ecotone_types::units::{Bytes, Seconds};
use ecotone_valuelog::compression::dictionary::{Dictionary, DictionaryId};
use ecotone_valuelog::compression::training::{self, MIN_SPLIT_SAMPLES, Samples};
use ecotone_valuelog::compression::{self, Level, Method};
use ecotone_valuelog::log::{ValueLog, ValueOrigin};
use ecotone_valuelog::pointer::RecordPointer;
use ecotone_valuelog::segment::InFlight;
use parking_lot::{Condvar, Mutex};

use crate::background::BackgroundThread;
use crate::duties::{ThreadDuties, thread_cpu};

/// Longer values are packed by threads that may wait: zstd takes 0.2 ms for so many bytes and 2.4 ms
/// for 1 MiB, and handing a write on a tenth of one.
const MAX_UNBLOCKED_PACK_BYTES: usize = 64 * 1024;

/// Samples take no more than this share of the memory for compression; a training takes twice as much
/// for a moment.
const SAMPLE_SHARE: u64 = 8;

/// From fewer bytes of samples no dictionary of a length that is of use is trained.
const MIN_SAMPLE_BYTES: u64 = 128 * 1024;

/// What dictionaries that are not in force may take of the memory for compression; beyond it those go
/// that were not asked for longest. One takes some 40 KiB once a value was read with it.
pub(crate) const fn dictionary_share(memory_bytes: u64) -> u64 {
    memory_bytes / 4
}

/// The same of what threads keep.
const fn thread_share(memory_bytes: u64) -> u64 {
    memory_bytes / 2
}

/// zstd's lowest: higher ones store some percent less and take a digest six times as large (see
/// docs/experiments/2026-11-28-value-compression.md).
const LEVEL: Level = Level::MIN;

/// After so many bytes of values the thread looks what has become of them, at the latest.
const MAX_ROUND_BYTES: u64 = 1024 * 1024;

/// What became of values since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompressionCounts {
    /// Bytes of the values.
    pub raw_bytes: u64,
    /// What was stored of them.
    pub stored_bytes: u64,
}

/// How values are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionProperties {
    /// By which codec those that users write.
    pub written_by: Codec,
    /// By which those that garbage collection moves.
    pub relocated_by: Codec,
    /// What became of those that users have written since the store was opened.
    pub written: CompressionCounts,
    /// The same of those that were moved.
    pub relocated: CompressionCounts,
    /// The dictionary in force.
    pub dictionary: Option<DictionaryId>,
    /// Bytes of memory that dictionaries take.
    pub dictionary_memory_bytes: u64,
    /// The same of what the threads of this process keep to pack and unpack values, whichever store's.
    pub thread_memory_bytes: u64,
    /// The same of samples, and while a training runs of what that takes.
    pub training_memory_bytes: u64,
    /// Trainings since the store was opened.
    pub trainings: u64,
    /// Dictionaries among them that were better than the one before.
    pub installed_dictionaries: u64,
}

impl CompressionProperties {
    /// What stays to be told once the store is closed: what became of its values.
    #[must_use]
    pub fn of_closed(self) -> Self {
        Self { dictionary: None, dictionary_memory_bytes: 0, training_memory_bytes: 0, ..self }
    }
}

impl AddAssign for CompressionProperties {
    /// Of several stores with the same settings: codecs and dictionary are those of the first.
    fn add_assign(&mut self, other: Self) {
        let Self { written, relocated, dictionary_memory_bytes, trainings, installed_dictionaries, .. } = other;
        for (sum, of) in [(&mut self.written, written), (&mut self.relocated, relocated)] {
            sum.raw_bytes += of.raw_bytes;
            sum.stored_bytes += of.stored_bytes;
        }
        self.dictionary_memory_bytes += dictionary_memory_bytes;
        self.trainings += trainings;
        self.installed_dictionaries += installed_dictionaries;
    }
}

/// See the module.
pub(crate) struct ValueCompression {
    log: Arc<ValueLog>,
    /// By origin.
    codecs: [AtomicU8; 2],
    counts: [Counts; 2],
    collects: AtomicBool,
    samples: Mutex<Samples>,
    sample_bytes: usize,
    round_bytes: u64,
    /// Whether a training runs.
    is_training: AtomicBool,
    trainings: AtomicU64,
    installed: AtomicU64,
    memory_bytes: u64,
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    raw: AtomicU64,
    stored: AtomicU64,
}

#[derive(Default)]
struct Wanted {
    round: bool,
    stop: bool,
}

impl ValueCompression {
    /// Compresses nothing before it is [started](Self::start).
    pub(crate) fn new(log: Arc<ValueLog>, parameters: &Parameters, memory_bytes: u64) -> Self {
        let samples = parameters.samples.0.min((memory_bytes / SAMPLE_SHARE).max(MIN_SAMPLE_BYTES));
        Self {
            log,
            codecs: [const { AtomicU8::new(Codec::None as u8) }; 2],
            counts: Default::default(),
            collects: AtomicBool::new(false),
            samples: Mutex::default(),
            sample_bytes: usize::try_from(samples).unwrap_or(usize::MAX).min(training::MAX_SAMPLES_BYTES),
            round_bytes: samples.clamp(1, MAX_ROUND_BYTES),
            is_training: AtomicBool::new(false),
            memory_bytes,
            trainings: AtomicU64::new(0),
            installed: AtomicU64::new(0),
            wanted: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Starts the thread that decides.
    pub(crate) fn start(
        self: &Arc<Self>,
        mode: CompressionMode,
        parameters: Parameters,
        duties: ThreadDuties,
    ) -> std::io::Result<BackgroundThread> {
        compression::keep_at_most(thread_share(self.memory_bytes));
        // What the last process packed with.
        let resumed = match self.log.take_over_dictionary().map(|_| self.log.newest_method()) {
            None | Some(Method::None) => Codec::None,
            Some(Method::Lz4) => Codec::Lz4,
            Some(Method::Zstd) => Codec::Zstd,
        };
        let (machine, commands) = CompressionMachine::new(mode, parameters, resumed);
        let (told, trainer) =
            (self.clone(), Trainer { shared: self.clone(), machine, trained: None, told: [(0, 0); 2] });
        BackgroundThread::start("ecotone-training", move || told.ask_to_stop(), move || trainer.run(commands, &duties))
    }

    /// Appends a value that a user wrote.
    pub(crate) fn append(&self, key: &[u8], value: &[u8]) -> ecotone_valuelog::Result<(RecordPointer, InFlight)> {
        self.offer(value);
        let appended = self.log.append_packed(ValueOrigin::Written, self.codec(Origin::Written), key, value)?;
        self.count(Origin::Written, appended.0);
        Ok(appended)
    }

    /// Whether a user's value of so many bytes is packed, and is too long for a thread that must not
    /// wait.
    #[inline]
    pub(crate) fn packs_slowly(&self, value_bytes: usize) -> bool {
        value_bytes > MAX_UNBLOCKED_PACK_BYTES && self.codec(Origin::Written) != compression::Codec::None
    }

    /// Appends a copy of the value whose record was read from where `pointer` leads.
    pub(crate) fn append_copy(
        &self,
        place: ValueOrigin,
        key: &[u8],
        pointer: RecordPointer,
        record: &[u8],
    ) -> ecotone_valuelog::Result<(RecordPointer, InFlight)> {
        if pointer.saved_bytes() == 0
            && let Some(begin) = record.len().checked_sub(pointer.value_bytes as usize)
        {
            // A record ends with what is stored.
            self.offer(&record[begin..]);
        }
        let appended = self.log.append_copy(place, self.codec(Origin::Relocated), key, pointer, record)?;
        self.count(Origin::Relocated, appended.0);
        Ok(appended)
    }

    /// Compresses what users write by zstd, with the dictionary of that `content`, whatever was
    /// measured: until the machine, which knows nothing of it, decides otherwise.
    pub(crate) fn compress_by_zstd(&self, content: Option<Vec<u8>>) {
        if let Some(content) = content
            && let Err(error) = self.log.set_dictionary(Some(content))
        {
            tracing::warn!(%error, "a dictionary cannot be used");
        }
        self.codecs[Origin::Written as usize].store(Codec::Zstd as u8, Ordering::Relaxed);
    }

    #[inline]
    fn offer(&self, value: &[u8]) {
        if self.collects.load(Ordering::Relaxed)
            && let Some(mut samples) = self.samples.try_lock()
        {
            samples.offer(value);
        }
    }

    /// Whether there are samples enough. A few values that are long do not suffice, and very short
    /// ones never come to as many bytes.
    fn has_samples(&self) -> bool {
        let samples = self.samples.lock();
        let are_many = samples.bytes() >= self.sample_bytes && samples.len() >= MIN_SPLIT_SAMPLES;
        self.collects.load(Ordering::Relaxed) && (are_many || samples.is_full())
    }

    /// By what garbage collection packs what it copies, where it is not packed so yet; `None` while
    /// values are looked at on the way, for a dictionary.
    pub(crate) fn relocating_by(&self) -> Option<compression::Codec> {
        (!self.collects.load(Ordering::Relaxed)).then(|| self.codec(Origin::Relocated))
    }

    /// Values of so many bytes, of which so much is stored, were moved as they are.
    pub(crate) fn moved(&self, raw: u64, stored: u64) {
        self.count_bytes(Origin::Relocated, raw, stored);
    }

    fn codec(&self, origin: Origin) -> compression::Codec {
        match self.codecs[origin as usize].load(Ordering::Relaxed) {
            by if by == Codec::Lz4 as u8 => compression::Codec::Lz4,
            by if by == Codec::Zstd as u8 => compression::Codec::Zstd(LEVEL),
            _ => compression::Codec::None,
        }
    }

    #[inline]
    fn count(&self, origin: Origin, pointer: RecordPointer) {
        let raw = u64::from(pointer.value_bytes);
        self.count_bytes(origin, raw, pointer.stored_bytes.map_or(raw, u64::from));
    }

    #[inline]
    fn count_bytes(&self, origin: Origin, raw: u64, stored: u64) {
        let counts = &self.counts[origin as usize];
        let before = counts.raw.fetch_add(raw, Ordering::Relaxed);
        counts.stored.fetch_add(stored, Ordering::Release);
        if before / self.round_bytes != (before + raw) / self.round_bytes {
            self.wanted.lock().round = true;
            self.changed.notify_one();
        }
    }

    fn counts(&self, origin: Origin) -> CompressionCounts {
        let Counts { raw, stored } = &self.counts[origin as usize];
        // In this order, so that nothing is stored of a value that is not counted.
        let stored_bytes = stored.load(Ordering::Acquire);
        CompressionCounts { raw_bytes: raw.load(Ordering::Relaxed), stored_bytes }
    }

    pub(crate) fn properties(&self) -> CompressionProperties {
        let used = |origin: Origin| match self.codec(origin) {
            compression::Codec::None => Codec::None,
            compression::Codec::Lz4 => Codec::Lz4,
            compression::Codec::Zstd(_) => Codec::Zstd,
        };
        CompressionProperties {
            written_by: used(Origin::Written),
            relocated_by: used(Origin::Relocated),
            written: self.counts(Origin::Written),
            relocated: self.counts(Origin::Relocated),
            dictionary: self.log.dictionary().map(|dictionary| dictionary.id()),
            dictionary_memory_bytes: self.log.dictionary_memory(),
            thread_memory_bytes: compression::thread_memory(),
            training_memory_bytes: self.training_memory(),
            trainings: self.trainings.load(Ordering::Relaxed),
            installed_dictionaries: self.installed.load(Ordering::Relaxed),
        }
    }

    fn training_memory(&self) -> u64 {
        // Who offers a sample has them for a moment, and what they take is not asked for by writers.
        let samples = self.samples.lock().memory();
        let training = if self.is_training.load(Ordering::Relaxed) { training::MAX_TRAINING_BYTES } else { 0 };
        (samples + training) as u64
    }

    fn ask_to_stop(&self) {
        self.wanted.lock().stop = true;
        self.changed.notify_all();
    }
}

/// The thread.
struct Trainer {
    shared: Arc<ValueCompression>,
    machine: CompressionMachine,
    trained: Option<Vec<u8>>,
    /// What the machine has been told of values of each origin: bytes before and after.
    told: [(u64, u64); 2],
}

impl Trainer {
    fn run(mut self, begin: Vec<Command>, duties: &ThreadDuties) {
        self.carry_out(begin);
        loop {
            let mut wanted = self.shared.wanted.lock();
            while !wanted.round && !wanted.stop {
                self.shared.changed.wait(&mut wanted);
            }
            if wanted.stop {
                return;
            }
            wanted.round = false;
            drop(wanted);
            duties.begin(Duty::Gc);
            self.round();
            duties.end();
        }
    }

    fn round(&mut self) {
        for origin in Origin::ALL {
            let CompressionCounts { raw_bytes, stored_bytes } = self.shared.counts(origin);
            let before = std::mem::replace(&mut self.told[origin as usize], (raw_bytes, stored_bytes));
            let (raw, stored) = (Bytes(raw_bytes - before.0), Bytes(stored_bytes - before.1));
            let codec = self.machine.used(origin);
            self.handle(Event::Stored { origin, codec, raw, stored });
        }
        self.handle(Event::Holds(Bytes(self.shared.log.weighed_bytes())));
        if self.shared.has_samples() {
            self.handle(Event::SamplesReady);
        }
    }

    fn handle(&mut self, event: Event) {
        let commands = self.machine.handle(event);
        self.carry_out(commands);
    }

    fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Collect => {
                    *self.shared.samples.lock() = Samples::default();
                    self.shared.collects.store(true, Ordering::Relaxed);
                }
                Command::Train => {
                    self.shared.is_training.store(true, Ordering::Relaxed);
                    let trained = self.train();
                    self.shared.is_training.store(false, Ordering::Relaxed);
                    self.handle(trained);
                }
                Command::Install => self.install(),
                Command::Use(origin, codec) => {
                    self.shared.codecs[origin as usize].store(codec as u8, Ordering::Relaxed);
                    // What was written until now came to its share by the former codec.
                    let CompressionCounts { raw_bytes, stored_bytes } = self.shared.counts(origin);
                    self.told[origin as usize] = (raw_bytes, stored_bytes);
                    tracing::info!(?origin, codec = codec.name(), "values are compressed by another codec from now on");
                }
            }
        }
    }

    fn train(&mut self) -> Event {
        self.shared.collects.store(false, Ordering::Relaxed);
        let (train, measure) = std::mem::take(&mut *self.shared.samples.lock()).split();
        let raw = Bytes(measure.bytes() as u64);
        let in_force = self.shared.log.dictionary();
        let before = measured(&measure, in_force.as_deref());
        let bytes = train.dictionary_bytes().min(self.shared.log.max_dictionary_bytes());
        let dictionary = training::train(&train, bytes);
        self.shared.trainings.fetch_add(1, Ordering::Relaxed);
        let after = dictionary.as_ref().map(|dictionary| measured(&measure, Some(dictionary)));
        self.trained = dictionary.map(|dictionary| dictionary.content().to_vec());
        Event::Trained { raw, before, after }
    }

    fn install(&mut self) {
        let Some(content) = self.trained.take() else { return };
        match self.shared.log.set_dictionary(Some(content)) {
            Ok(id) => {
                self.shared.installed.fetch_add(1, Ordering::Relaxed);
                let id = id.map(|id| id.to_string());
                tracing::info!(dictionary = id, "values are compressed with another dictionary from now on");
            }
            // No dictionary that was trained has such a length.
            Err(error) => tracing::warn!(%error, "a dictionary cannot be used"),
        }
    }
}

/// What samples come to by each codec with a dictionary. Their end is cut off, which is the same for
/// all that is compared.
fn measured(samples: &Samples, dictionary: Option<&Dictionary>) -> MeasuredCodecs {
    let by = |codec| {
        let mut packed = Vec::new();
        // Contexts and digests are made once in the life of a dictionary: by the first sample.
        let _ = samples.iter().next().map(|first| compression::pack(codec, dictionary, first, &mut packed));
        let began = thread_cpu();
        let mut stored = 0;
        for sample in samples.iter() {
            packed.clear();
            stored += match compression::pack(codec, dictionary, sample, &mut packed) {
                Some(_) => packed.len(),
                None => sample.len(),
            };
        }
        let took = thread_cpu().saturating_sub(began);
        Measured { stored: Bytes(stored as u64), took: Seconds(took.as_secs_f64()) }
    };
    MeasuredCodecs { lz4: by(compression::Codec::Lz4), zstd: by(compression::Codec::Zstd(LEVEL)) }
}
