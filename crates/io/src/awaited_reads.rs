//! Bytes of files that the kernel reads into its memory while nobody waits: io_uring.
//!
//! For a thread that must not wait and has been told that something
//! [is not in memory](crate::missed_reads): it hands the read over, does other things, and tries
//! again when the read is over. What was read is thrown away; it is in the page cache then, unless
//! memory is short. What is read [past that cache](crate::direct_reads) is handed over instead.
//!
//! Bounds: 256 reads are under way at a time, each of at most 64 KiB, and none waits in a queue of
//! ours. What is handed over takes no more than that together, from the begin of its read until it
//! is dropped. Where a file system cannot do them without waiting, at most 16 threads of the kernel
//! wait.
//!
//! Failure: whatever becomes of a read, it ends, and who tries again finds out. Where the kernel
//! forbids io_uring, as many containers do, or has none of this kind (before Linux 6.1),
//! [`AwaitedReads::new`] says so; what it would do is left to threads then.
//!
//! Threads: it belongs to the one that made it.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::direct_reads::{Arrived, Held, Memory};
use crate::missed_reads::MissedRead;

/// Reads that are under way at a time: more would only wait in the device's queue.
const MAX_UNDER_WAY: usize = 256;

/// Longer reads are refused: they are no short look into memory afterwards either.
const MAX_READ_BYTES: usize = 64 * 1024;

/// What is handed over takes no more memory at a time.
const MAX_HELD_BYTES: usize = MAX_UNDER_WAY * MAX_READ_BYTES;

/// Threads of the kernel that wait for file systems which cannot read otherwise: as many as of ours
/// would.
const MAX_WORKERS: u32 = 16;

/// So often one look at what is over asks the kernel to do what is left to do: it does 20 at a
/// time.
const MAX_TURNS: usize = MAX_UNDER_WAY.div_ceil(20);

/// How often it is asked again to take reads that it has no memory for.
const MAX_TRIES: usize = 16;

/// Where all reads go that bring something into the kernel's memory. The kernel may write to it at
/// any time; nobody reads it.
struct Nowhere(UnsafeCell<[u8; MAX_READ_BYTES]>);

// SAFETY: this process neither reads nor writes it.
unsafe impl Sync for Nowhere {}

static NOWHERE: Nowhere = Nowhere(UnsafeCell::new([0; MAX_READ_BYTES]));

/// Reads that are under way. A clone of a token stands for each, and is dropped when it is over.
pub struct AwaitedReads<T> {
    ring: IoUring,
    under_way: Vec<Option<UnderWay<T>>>,
    free: Vec<u16>,
    /// For what is handed over.
    memory: Rc<Memory>,
    /// The kernel knows the thread that made it.
    _of_one_thread: PhantomData<*const ()>,
}

struct UnderWay<T> {
    read: MissedRead,
    /// Where it goes, if it does not go nowhere.
    into: Option<Held>,
    token: T,
}

impl<T: Clone> AwaitedReads<T> {
    /// None yet, and what can be read, eight bytes at a time, when some are over: call
    /// [`end_some`](Self::end_some) then.
    ///
    /// # Errors
    ///
    /// The kernel has no io_uring, one that is too old, or forbids it.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        // Reads are ended in this thread, and only when it asks: nothing interrupts it.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(2 * MAX_UNDER_WAY as u32)
            .build(MAX_UNDER_WAY as u32)?;
        let over = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(over.as_raw_fd())?;
        ring.submitter().register_iowq_max_workers(&mut [MAX_WORKERS; 2])?;
        let under_way = (0..MAX_UNDER_WAY).map(|_| None).collect();
        let free = (0..MAX_UNDER_WAY as u16).rev().collect();
        Ok((Self { ring, under_way, free, memory: Rc::default(), _of_one_thread: PhantomData }, over))
    }

    /// Makes `reads` ready, which [`submit`](Self::submit) begins. `false`: not all of them, since
    /// one is too long or lies nowhere, or too many are under way; then none is.
    ///
    /// # Errors
    ///
    /// The kernel takes no more: drop this, and with it what is under way.
    pub fn add(&mut self, reads: Vec<MissedRead>, token: &T) -> io::Result<bool> {
        // The kernel has a meaning of its own for the last offset.
        let is_refused = |read: &MissedRead| read.bytes > MAX_READ_BYTES as u64 || read.offset > i64::MAX as u64;
        if reads.len() > self.free.len() || reads.iter().any(is_refused) {
            return Ok(false);
        }
        let direct = reads.iter().filter(|read| read.direct.is_some());
        let held: usize = direct.map(|read| Memory::held_by(read.bytes as usize)).sum();
        if self.memory.held_bytes() + held > MAX_HELD_BYTES {
            return Ok(false);
        }
        for read in reads {
            let Some(place) = self.free.pop() else { break };
            let into = read.direct.map(|_| self.memory.hold(read.bytes as usize));
            let UnderWay { read, into, .. } =
                self.under_way[usize::from(place)].insert(UnderWay { read, into, token: token.clone() });
            let to = into.as_mut().map_or(NOWHERE.0.get().cast(), |into| into.as_mut_slice().as_mut_ptr());
            let entry = opcode::Read::new(types::Fd(read.as_raw_fd()), to, read.bytes as u32)
                .offset(read.offset)
                .build()
                .user_data(place.into());
            // SAFETY: the descriptor is open until the read is over. What it reads into is for ever
            // and nobody's, or has room for all of it, and is neither looked at nor freed before
            // the read is over.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // There are as many places in it as reads can be under way.
            pushed.map_err(io::Error::other)?;
        }
        Ok(true)
    }

    /// Begins what was [added](Self::add), and lets the kernel do in this thread what it has to.
    /// What it can do at once, or refuses, is over then. The device is told of all of them
    /// together.
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add).
    pub fn submit(&mut self) -> io::Result<()> {
        for _ in 0..MAX_TRIES {
            match self.ring.submit() {
                Ok(_) if self.ring.submission().is_empty() => return Ok(()),
                Ok(_) => (),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => (),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the kernel takes no more reads"))
    }

    /// Drops the tokens of those that are over, after `arrived` was given what they brought, if it
    /// is not in the kernel's memory now.
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add).
    pub fn end_some(&mut self, mut arrived: impl FnMut(&T, Arrived)) -> io::Result<()> {
        for _ in 0..MAX_TURNS {
            // The kernel does some of them at a time, and need not tell of the rest once more.
            self.submit()?;
            for over in self.ring.completion() {
                let place = over.user_data() as u16;
                if let Some(UnderWay { read, into, token }) = self.under_way[usize::from(place)].take() {
                    if let (Some(number), Some(into), Ok(bytes @ 1..)) =
                        (read.direct, into, usize::try_from(over.result()))
                    {
                        arrived(&token, Arrived::new(number, read.offset, into, bytes));
                    }
                    self.free.push(place);
                }
            }
            // It may say so for longer than there are any: when one came while it did those before.
            if !self.ring.submission().taskrun() {
                break;
            }
        }
        Ok(())
    }
}

impl<T> Drop for AwaitedReads<T> {
    fn drop(&mut self) {
        // The kernel may still write where reads go that are under way.
        self.under_way.drain(..).flatten().filter_map(|of| of.into).for_each(Held::leak);
    }
}

impl<T> std::fmt::Debug for AwaitedReads<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwaitedReads").field("under_way", &(MAX_UNDER_WAY - self.free.len())).finish()
    }
}
