//! Puts busy threads of this process on emulated cores.
//!
//! Lock: one for the pool, held while a thread is moved (some microseconds), so that books and
//! kernel agree. Failures of the kernel never reach the caller: they are counted, and logged once;
//! a lab refuses a run that counted any.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_types::Task;
use parking_lot::Mutex;

use super::CoreBinder;
use super::groups::CoreGroups;
use super::layout::ThreadGroup;
use super::pool::CorePool;
use crate::EnergyError;
use crate::placement::Placement;

/// The emulated cores of the server that this process is.
pub struct CgroupCores {
    groups: CoreGroups,
    rest: File,
    cores: Vec<File>,
    pool: Mutex<CorePool>,
    failures: AtomicU64,
}

impl CgroupCores {
    /// Opens the folder of an emulated server to move threads of this process there. Threads that
    /// were never busy stay where they are; see [`CgroupCores::for_this_process`].
    ///
    /// # Errors
    /// As [`CoreGroups::open`]; [`EnergyError::NotPermitted`] if threads may not be moved there.
    pub fn open(folder: &Path) -> Result<Self, EnergyError> {
        let groups = CoreGroups::open(folder)?;
        let open = |group| {
            let path = groups.threads_file(group);
            OpenOptions::new().write(true).open(&path).map_err(|e| EnergyError::cgroup("open", &path, e))
        };
        let rest = open(ThreadGroup::Rest)?;
        let cores = (0..groups.cores()).map(|core| open(ThreadGroup::Core(core))).collect::<Result<_, _>>()?;
        let pool = Mutex::new(CorePool::new(groups.cores()));
        Ok(Self { groups, rest, cores, pool, failures: AtomicU64::new(0) })
    }

    /// Opens the folder and moves this whole process into its `rest`. For the start of a server's
    /// `main`, before it makes threads; those it makes later begin where their maker is (see
    /// [`CgroupCores::gather_strays`]).
    ///
    /// # Errors
    /// As [`CgroupCores::open`].
    pub fn for_this_process(folder: &Path) -> Result<Self, EnergyError> {
        let cores = Self::open(folder)?;
        cores.groups.adopt(std::process::id())?;
        Ok(cores)
    }

    /// The groups, to change the speed and read counters.
    pub fn groups(&self) -> &CoreGroups {
        &self.groups
    }

    /// Cores with at least one busy thread.
    pub fn busy_cores(&self) -> usize {
        self.pool.lock().busy()
    }

    /// Moves threads that are on a core without being busy to `rest`, and returns how many: a
    /// thread that is made by a busy one begins life on its core. Call it after opening a store,
    /// and now and then (each second is plenty).
    ///
    /// # Errors
    /// [`EnergyError::Cgroup`] if the kernel's lists cannot be read.
    pub fn gather_strays(&self) -> Result<usize, EnergyError> {
        let pool = self.pool.lock();
        let mut moved = 0;
        for core in 0..self.groups.cores() {
            for thread in self.groups.threads(ThreadGroup::Core(core))? {
                if pool.core_of(thread).is_none() && self.put(thread, &self.rest) == Placed::Yes {
                    moved += 1;
                }
            }
        }
        Ok(moved)
    }

    fn put(&self, thread: u32, group: &File) -> Placed {
        // One write per thread, as the kernel demands; the text of a u32 fits.
        let mut text = [0u8; 10];
        let mut rest = &mut text[..];
        let written = write!(rest, "{thread}").map(|()| rest.len());
        let outcome = written.and_then(|left| {
            let length = text.len() - left;
            let mut file = group;
            file.write_all(&text[..length])
        });
        match outcome {
            Ok(()) => Placed::Yes,
            // ESRCH: the thread has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Placed::Ended,
            Err(error) => {
                self.count_failure(thread, &error);
                Placed::Failed
            }
        }
    }

    fn count_failure(&self, thread: u32, error: &io::Error) {
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            let folder = self.groups.folder().display();
            tracing::error!(%folder, thread, %error, "a thread could not be moved to or from its emulated core; \
                this run is not valid (logged once, counted)");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    Yes,
    Ended,
    Failed,
}

impl CoreBinder for CgroupCores {
    fn enter(&self, thread: u32, task: Task) {
        let mut pool = self.pool.lock();
        let core = pool.enter(thread, task, |t| Path::new(&format!("/proc/self/task/{t}")).exists());
        if self.put(thread, &self.cores[core]) != Placed::Yes {
            pool.forget(thread);
        }
    }

    fn leave(&self, thread: u32) {
        let mut pool = self.pool.lock();
        let known = pool.core_of(thread).is_some();
        let follower = pool.leave(thread);
        if known {
            self.put(thread, &self.rest);
        }
        if let Some(follower) = follower
            && self.put(follower.thread, &self.cores[follower.core]) == Placed::Ended
        {
            pool.forget(follower.thread);
        }
    }

    fn place(&self, placement: &Placement) {
        let mut pool = self.pool.lock();
        for moved in pool.place(placement) {
            if self.put(moved.thread, &self.cores[moved.core]) == Placed::Ended {
                pool.forget(moved.thread);
            }
        }
    }

    fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Plain files in the shape of a v2 server, one core for each item; `false` leaves that core's
    /// file to the test.
    fn fake_server(core_files: &[bool]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, with_file: bool| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cgroup.type"), "threaded\n").unwrap();
            if with_file {
                fs::write(folder.join("cgroup.threads"), "").unwrap();
            }
        };
        make("rest", true);
        for (number, with_file) in core_files.iter().enumerate() {
            make(&format!("core-{number}"), *with_file);
        }
        dir
    }

    #[test]
    fn in_v2_threads_move_through_cgroup_threads() {
        let dir = fake_server(&[true, true]);
        let written = |group: &str| fs::read_to_string(dir.path().join(group).join("cgroup.threads")).unwrap();
        let cores = CgroupCores::open(dir.path()).unwrap();
        let task = ecotone_types::Duty::Flush.into();
        cores.enter(u32::MAX, task);
        cores.enter(7, task);
        cores.leave(7);
        cores.leave(7); // a second time: the thread is where it belongs already
        assert_eq!([written("core-0"), written("core-1"), written("rest")], ["4294967295", "7", "7"]);
        assert_eq!((cores.failures(), cores.busy_cores()), (0, 1));
    }

    #[test]
    fn what_the_kernel_refuses_is_counted_and_blocks_no_core() {
        let dir = fake_server(&[false]);
        // A file that takes no byte.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("core-0/cgroup.threads")).unwrap();
        let cores = CgroupCores::open(dir.path()).unwrap();
        let task = ecotone_types::Duty::Flush.into();
        cores.enter(7, task);
        assert_eq!((cores.failures(), cores.busy_cores()), (1, 0));
        cores.leave(7);
        assert_eq!(cores.failures(), 1);
        cores.enter(8, task);
        assert_eq!(cores.failures(), 2);
    }

    #[test]
    fn a_server_without_its_files_is_refused_at_the_start() {
        let dir = fake_server(&[false]);
        assert!(matches!(CgroupCores::open(dir.path()), Err(EnergyError::Cgroup { action: "open", .. })));
    }
}
