//! Binds threads of this process to cores of a real machine, by their task.
//!
//! Nobody is bound before there are cores of both classes; afterwards each thread runs on those of
//! its task's class until its outermost duty ends, then on any again. A change of classes moves all
//! threads that are on one. A thread that is made by a bound one begins life where its maker is, and
//! goes where it belongs with its first duty.
//!
//! Invariant: with both classes placed, a thread in a duty runs on cores of its class, but where none
//! of them may be used by this process. Failures of the kernel never reach the caller: the thread
//! stays on any core, which is counted, and logged once.
//!
//! Lock: one for the books, held while a thread is bound, so that books and kernel agree.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_types::Task;
use parking_lot::Mutex;

use super::CoreBinder;
use crate::affinity::{allowed_cores, bind_thread};
use crate::placement::Placement;

/// The binder of a machine whose cores may get classes.
pub struct Affinity {
    /// Cores that this process may use; the rest belongs to others.
    allowed: Vec<u32>,
    books: Mutex<Books>,
    failures: AtomicU64,
}

#[derive(Default)]
struct Books {
    placement: Placement,
    is_divided: bool,
    /// Threads in duties.
    threads: BTreeMap<u32, Task>,
}

impl Affinity {
    /// A binder for this process, which may use the cores that the calling thread may.
    ///
    /// # Errors
    /// The kernel does not say which.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Self { allowed: allowed_cores()?, books: Mutex::default(), failures: AtomicU64::new(0) })
    }

    fn bind(&self, thread: u32, placement: &Placement, task: Option<Task>) -> bool {
        let mut cores = task.and_then(|task| placement.cores_of(task)).unwrap_or_default();
        cores.retain(|core| self.allowed.contains(core));
        let bound = bind_thread(thread, if cores.is_empty() { &self.allowed } else { &cores });
        match bound {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => false,
            Err(error) => {
                if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(thread, %error, "a thread could not be bound to its cores; it runs on any \
                        (logged once, counted)");
                }
                true
            }
        }
    }
}

impl CoreBinder for Affinity {
    fn enter(&self, thread: u32, task: Task) {
        let mut books = self.books.lock();
        books.threads.insert(thread, task);
        if books.is_divided {
            self.bind(thread, &books.placement, Some(task));
        }
    }

    fn leave(&self, thread: u32) {
        let mut books = self.books.lock();
        books.threads.remove(&thread);
        if books.is_divided {
            self.bind(thread, &books.placement, None);
        }
    }

    fn place(&self, placement: &Placement) {
        let mut books = self.books.lock();
        let usable = |of: &(u32, _)| self.allowed.contains(&of.0);
        let cores = placement.cores.iter().copied().filter(usable).collect();
        let placement = Placement { slow_work: placement.slow_work, cores };
        if placement == books.placement {
            return;
        }
        let was_divided = books.is_divided;
        books.is_divided = placement.is_divided();
        books.placement = placement;
        if !(was_divided || books.is_divided) {
            return;
        }
        let Books { placement, threads, .. } = &mut *books;
        threads.retain(|thread, task| self.bind(*thread, placement, Some(*task)));
    }

    fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
