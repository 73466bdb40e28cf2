//! Appends to a segment of relocated values: collected in memory, and given to the kernel many at a
//! time.
//!
//! No table refers to a value that was relocated before its segment was synced (see the engine's
//! barrier), so unlike a user's it need not be in the kernel's hands at once. A call of the kernel
//! for many costs less than a page of a mapped file for every few of them.
//!
//! Invariants:
//!
//! - Space is reserved before anything is collected for it, so a full device is an error of an
//!   append, of which nothing is left. Where the file system does not reserve for certain, or
//!   cannot just now, nothing is collected: each append is a call.
//! - What is collected ends with a whole record, and so does the file, but for zeros that are
//!   reserved, up to the end of a page (see [`crate::tail`]), and for a write that a kill or an
//!   error has cut short.
//!
//! Bounds: [`MAX_COLLECTED_BYTES`] in memory and [`RESERVED_BYTES`] on the device, each for as long
//! as the segment is appended to.
//!
//! Failure: what the kernel does not take stays collected, and is offered again by the next
//! [`CollectedAppends::write`]. A sync begins with one, and one that fails is the end of all writes
//! (see [`crate::log`]), as it was when the device failed to take what the kernel had.
//!
//! Threads: one at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ecotone_io::mapped_file::reserves_for_certain;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// So many bytes are collected at most. More would save nothing.
const MAX_COLLECTED_BYTES: usize = 256 * 1024;

/// So many are reserved at a time: what the call costs is little beside writing them.
const RESERVED_BYTES: u64 = 1024 * 1024;

/// As [`crate::tail`] looks for them.
const PAGE_BYTES: u64 = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct CollectedAppends {
    file: Arc<File>,
    collects: bool,
    /// Reserves so many bytes from an offset on.
    reserve: fn(&File, u64, u64) -> rustix::io::Result<()>,
    /// Bytes that are in the file.
    written: u64,
    collected: Vec<u8>,
    /// Up to where there is space for certain.
    reserved: u64,
    /// Before it nothing is reserved, because that has failed.
    calls_until: u64,
    /// The file may be so long, which is longer than what was appended where space is reserved or a
    /// write has failed.
    longest: u64,
    /// Where the file is expected to end.
    limit: u64,
}

impl CollectedAppends {
    /// Appends to `file` behind its first `len` bytes. It is expected to end at `limit`, and may
    /// grow beyond.
    pub(super) fn new(file: Arc<File>, len: u64, limit: u64) -> Self {
        let collects = reserves_for_certain(&file);
        let reserve = |file: &File, from, bytes| fallocate(file, FallocateFlags::empty(), from, bytes);
        Self {
            file,
            collects,
            reserve,
            written: len,
            collected: Vec::new(),
            reserved: 0,
            calls_until: 0,
            longest: len,
            limit,
        }
    }

    /// Bytes of what was appended that are in the file.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that were appended.
    pub(super) fn len(&self) -> u64 {
        self.written + self.collected.len() as u64
    }

    /// Appends `parts`, one behind the other, and returns where they begin. `tell` is told of what
    /// was written, and where.
    ///
    /// # Errors
    ///
    /// Those of a write. Nothing was appended.
    pub(super) fn append(
        &mut self,
        parts: &[&[u8]],
        mut tell: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.collected.len() + bytes > MAX_COLLECTED_BYTES {
            self.write(&mut tell)?;
        }
        let begin = self.len();
        if self.collects && bytes <= MAX_COLLECTED_BYTES && self.has_space(begin + bytes as u64) {
            if self.collected.capacity() == 0 {
                self.collected.reserve_exact(MAX_COLLECTED_BYTES);
            }
            parts.iter().for_each(|part| self.collected.extend_from_slice(part));
            return Ok(begin);
        }
        // What was collected would lie behind it.
        self.write(&mut tell)?;
        self.longest = self.longest.max(begin + bytes as u64);
        let mut at = begin;
        for part in parts {
            self.file.write_all_at(part, at)?;
            tell(at, part)?;
            at += part.len() as u64;
        }
        self.written = at;
        Ok(begin)
    }

    /// Gives the kernel what is collected.
    ///
    /// # Errors
    ///
    /// Those of a write, and of `tell`. Nothing of it counts as written then.
    pub(super) fn write(&mut self, tell: impl FnOnce(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        if !self.collected.is_empty() {
            self.file.write_all_at(&self.collected, self.written)?;
            tell(self.written, &self.collected)?;
            self.written += self.collected.len() as u64;
            self.collected.clear();
        }
        Ok(())
    }

    /// Frees what was reserved and is not used. Nothing may be collected. Appending may go on.
    ///
    /// # Errors
    ///
    /// Those of a truncation.
    pub(super) fn trim(&mut self) -> io::Result<()> {
        debug_assert!(self.collected.is_empty(), "its space would be freed");
        if self.longest > self.len() {
            self.file.set_len(self.len())?;
            self.longest = self.len();
            self.reserved = 0;
        }
        Ok(())
    }

    /// Whether there is space for certain up to `end`.
    fn has_space(&mut self, end: u64) -> bool {
        let begin = self.len();
        if end <= self.reserved || begin < self.calls_until {
            return end <= self.reserved;
        }
        let to = (begin + RESERVED_BYTES).min(self.limit).max(end).next_multiple_of(PAGE_BYTES);
        let longest = self.longest;
        self.longest = longest.max(to);
        match (self.reserve)(&self.file, begin, to - begin) {
            Ok(()) => self.reserved = to,
            Err(error) => {
                // Not all kinds of a file system can, though their name is the same.
                self.collects = !matches!(error, Errno::OPNOTSUPP | Errno::NOSYS);
                self.calls_until = begin + MAX_COLLECTED_BYTES as u64;
                // A part of it may have been reserved: where there was not room for all, others
                // need it.
                if self.file.set_len(longest).is_ok() {
                    self.longest = longest;
                }
            }
        }
        end <= self.reserved
    }
}

impl Drop for CollectedAppends {
    fn drop(&mut self) {
        // What is collected still is named by nobody.
        self.collected.clear();
        if let Err(error) = self.trim() {
            tracing::warn!(%error, "what was reserved for a segment and not used could not be freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;

    const HEADER: u64 = 32;

    fn created(path: &Path) -> Arc<File> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all_at(&[7; HEADER as usize], 0).unwrap();
        Arc::new(file)
    }

    /// Whatever the file system is.
    fn appending(file: Arc<File>, limit: u64, collects: bool) -> CollectedAppends {
        let mut appends = CollectedAppends::new(file, HEADER, limit);
        appends.collects = collects;
        appends
    }

    #[test]
    fn what_is_appended_in_any_way_is_in_the_file_in_its_order_once_it_is_written() {
        for collects in [false, true] {
            for limit in [HEADER, 100_000, 1 << 30] {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("file");
                let mut appends = appending(created(&path), limit, collects);
                let mut expected = vec![7; HEADER as usize];
                let told = RefCell::new(expected.clone());
                let tell = |at: u64, bytes: &[u8]| {
                    assert_eq!(at, told.borrow().len() as u64);
                    told.borrow_mut().extend_from_slice(bytes);
                    Ok(())
                };
                // Many, some that fill what is collected, and some that are too long for it.
                let lengths = (0..400).map(|number| [1000, 3, 0, 5000, MAX_COLLECTED_BYTES / 2 + 1][number % 5]);
                let long = [MAX_COLLECTED_BYTES, MAX_COLLECTED_BYTES + 1, 10, 3 << 20, 20];
                for (number, bytes) in lengths.chain(long).enumerate() {
                    let (head, value) = (number.to_le_bytes(), vec![number as u8; bytes]);
                    assert_eq!(appends.append(&[&head, &value], tell).unwrap(), expected.len() as u64);
                    expected.extend([&head[..], &value].concat());
                    assert_eq!(appends.len(), expected.len() as u64);
                    assert!(appends.collected.len() <= MAX_COLLECTED_BYTES);
                }
                appends.write(tell).unwrap();
                appends.trim().unwrap();
                assert!(std::fs::read(&path).unwrap() == expected && *told.borrow() == expected);
                // It may go on, and what is not written by its end is not there, nor what was
                // reserved.
                appends.append(&[b"forgotten"], tell).unwrap();
                drop(appends);
                let left = std::fs::read(&path).unwrap();
                let behind = if collects { &[][..] } else { b"forgotten" };
                assert!(left == [&expected, behind].concat());
            }
        }
    }

    #[test]
    fn what_is_collected_has_its_space_up_to_the_end_of_a_page() {
        for limit in [HEADER, 100_000, 1 << 30] {
            let directory = tempfile::tempdir().unwrap();
            let mut appends = appending(created(&directory.path().join("file")), limit, true);
            for bytes in [100, MAX_COLLECTED_BYTES - 100, 7000, 1] {
                appends.append(&[&vec![1; bytes]], |_, _| Ok(())).unwrap();
                let reserved = appends.file.metadata().unwrap().len();
                assert!(
                    (appends.len()..=appends.len() + RESERVED_BYTES + PAGE_BYTES).contains(&reserved),
                    "{reserved}"
                );
                assert!(reserved.is_multiple_of(PAGE_BYTES), "else nobody cuts it off after a kill");
            }
        }
    }

    /// A device with room for half of what is asked for.
    fn half(file: &File, from: u64, bytes: u64) -> rustix::io::Result<()> {
        fallocate(file, FallocateFlags::empty(), from, bytes / 2)?;
        Err(Errno::NOSPC)
    }

    #[test]
    fn where_nothing_can_be_reserved_each_append_is_a_call_and_none_fails() {
        for (reserve, is_for_good) in
            [(half as fn(&File, u64, u64) -> _, false), (|_, _, _| Err(Errno::OPNOTSUPP), true)]
        {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let mut appends = appending(created(&path), 1 << 30, true);
            let mut expected = vec![7; HEADER as usize];
            let mut append = |appends: &mut CollectedAppends, number: usize| {
                let record = vec![number as u8; 3000];
                assert_eq!(appends.append(&[&record], |_, _| Ok(())).unwrap(), expected.len() as u64);
                expected.extend(record);
                expected.len() as u64
            };
            // What was reserved before the first failure is used up.
            append(&mut appends, 0);
            let works = std::mem::replace(&mut appends.reserve, reserve);
            let mut number = 1;
            while appends.len() + 3000 <= appends.reserved {
                append(&mut appends, number);
                number += 1;
            }
            let reserved = appends.reserved;
            for number in 0..200 {
                let end = append(&mut appends, number);
                assert!(appends.collected.is_empty());
                assert_eq!(appends.collects, !is_for_good);
                let found = appends.file.metadata().unwrap().len();
                assert_eq!(found, end.max(reserved), "what was reserved of it is given back");
            }
            appends.reserve = works;
            for number in 0..MAX_COLLECTED_BYTES / 3000 + 2 {
                append(&mut appends, number);
            }
            assert_eq!(appends.collected.is_empty(), is_for_good);
            appends.write(|_, _| Ok(())).unwrap();
            appends.trim().unwrap();
            assert!(std::fs::read(&path).unwrap() == expected);
        }
    }

    #[test]
    fn what_could_not_be_written_is_offered_again_and_written_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut appends = appending(created(&path), 1 << 20, true);
        let refuse = |_: u64, _: &[u8]| Err(io::Error::other("refused"));
        appends.append(&[b"one"], refuse).unwrap();
        appends.write(refuse).unwrap_err();
        appends.write(refuse).unwrap_err();
        assert_eq!(appends.append(&[b"two"], refuse).unwrap(), HEADER + 3);
        // A long one waits for them, and leaves no trace if it fails itself.
        let long = vec![3; MAX_COLLECTED_BYTES + 1];
        appends.append(&[&long], refuse).unwrap_err();
        let mut accepted = 0;
        let once = |_: u64, _: &[u8]| {
            accepted += 1;
            if accepted == 1 { Ok(()) } else { Err(io::Error::other("refused")) }
        };
        appends.append(&[&long], once).unwrap_err();
        appends.write(|_, _| Ok(())).unwrap();
        appends.trim().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[HEADER as usize..], *b"onetwo");
    }
}
