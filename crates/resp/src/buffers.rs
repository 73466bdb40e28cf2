//! What one client has in memory, for others to see: `CLIENT LIST` and `INFO`.
//!
//! Threads: the one that serves the client writes, any reads. Each figure is right by itself;
//! several are of about one moment.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Redis forgets the longest reply after so long (`reply_buffer_peak_reset_time`).
pub const REPLY_PEAK_MS: u64 = 5_000;

/// And looks back so long for the largest buffers of all clients.
pub const BUFFER_PEAK_MS: u64 = 8_000;

/// Bytes that a client has in memory.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Received and not carried out.
    pub query_bytes: AtomicUsize,
    /// What that lies in.
    pub query_capacity: AtomicUsize,
    /// Arguments of the request that is carried out, or has not come whole.
    pub argument_bytes: AtomicUsize,
    /// Commands queued since `MULTI`.
    pub queued_bytes: AtomicUsize,
    /// Replied, while it is not sent yet.
    pub reply_bytes: AtomicUsize,
    /// What replies are made in.
    pub reply_capacity: AtomicUsize,
    /// Being sent: until the client has taken all of it.
    pub sending_bytes: AtomicUsize,
    /// What that lies in.
    pub sending_capacity: AtomicUsize,
    /// Whatever else it keeps: places of arguments, queued commands, watched keys.
    pub other_bytes: AtomicUsize,
    reply_peak: Peak,
    query_peak: Peak,
    output_peak: Peak,
}

impl Buffers {
    /// Notes the largest of what there is now, `at_ms` after the client came.
    pub fn note_peaks(&self, at_ms: u64) {
        let of = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed);
        self.reply_peak.note(at_ms / REPLY_PEAK_MS, of(&self.reply_bytes));
        self.query_peak.note(at_ms / BUFFER_PEAK_MS, self.query_memory());
        self.output_peak.note(at_ms / BUFFER_PEAK_MS, self.output_memory());
    }

    /// The longest reply lately, `now_ms` after the client came.
    pub fn reply_peak(&self, now_ms: u64) -> usize {
        self.reply_peak.lately(now_ms / REPLY_PEAK_MS).max(self.reply_bytes.load(Ordering::Relaxed))
    }

    /// The most memory for requests lately.
    pub fn query_peak(&self, now_ms: u64) -> usize {
        self.query_peak.lately(now_ms / BUFFER_PEAK_MS).max(self.query_memory())
    }

    /// The most memory for replies lately.
    pub fn output_peak(&self, now_ms: u64) -> usize {
        self.output_peak.lately(now_ms / BUFFER_PEAK_MS).max(self.output_memory())
    }

    fn query_memory(&self) -> usize {
        self.query_capacity.load(Ordering::Relaxed)
    }

    fn output_memory(&self) -> usize {
        self.reply_capacity.load(Ordering::Relaxed) + self.sending_capacity.load(Ordering::Relaxed)
    }

    /// All that it takes beside what every client does.
    pub fn memory(&self) -> usize {
        self.query_memory() + self.output_memory() + self.other_bytes.load(Ordering::Relaxed)
    }
}

/// Bits of the most bytes in a [`Peak`]: a tebibyte.
const PEAK_BITS: u32 = 40;

/// The most bytes within a span of time and in the one before: the number of the span above, the
/// bytes below. One thread notes.
#[derive(Debug, Default)]
struct Peak(AtomicU64);

impl Peak {
    fn note(&self, span: u64, bytes: usize) {
        let most = (bytes as u64).min((1 << PEAK_BITS) - 1);
        let known = self.0.load(Ordering::Relaxed);
        let noted = (span << PEAK_BITS) | most;
        // Within the span the larger one has the larger number.
        if known >> PEAK_BITS != span || noted > known {
            self.0.store(noted, Ordering::Relaxed);
        }
    }

    fn lately(&self, span: u64) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        let is_recent = span.saturating_sub(known >> PEAK_BITS) <= 1;
        if is_recent { (known & ((1 << PEAK_BITS) - 1)) as usize } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_lately_is_told_until_it_is_long_ago() {
        let buffers = Buffers::default();
        let replied = |bytes, at_ms| {
            buffers.reply_bytes.store(bytes, Ordering::Relaxed);
            buffers.note_peaks(at_ms);
            buffers.reply_bytes.store(0, Ordering::Relaxed);
        };
        replied(100, 0);
        replied(3000, 10);
        replied(20, 20);
        assert_eq!([0, 4999, 9999, 10_000].map(|now_ms| buffers.reply_peak(now_ms)), [3000, 3000, 3000, 0]);
        replied(20, 5000);
        assert_eq!(buffers.reply_peak(5001), 20, "the span before is forgotten where there is a newer one");
        // What is there now is as recent as anything.
        buffers.reply_bytes.store(7, Ordering::Relaxed);
        assert_eq!(buffers.reply_peak(60_000), 7);
        replied(usize::MAX, 60_000);
        assert_eq!(buffers.reply_peak(60_000), (1 << PEAK_BITS) - 1);
        assert_eq!((buffers.query_peak(60_000), buffers.output_peak(60_000), buffers.memory()), (0, 0, 0));
    }
}
