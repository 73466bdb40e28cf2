//! What the standard library does not offer about processes: children that die with the lab, whole
//! process groups, and the user's wish to stop.
//!
//! All unsafe code of the lab is here.

#![allow(unsafe_code)] // prctl, kill, setns and sigaction have no safe wrapper among our dependencies.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Signals by which a user, a terminal or a supervisor ends a program.
const ENDING_SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Makes the child leader of a process group of its own, so that a Ctrl-C of the terminal reaches
/// only the lab, which then ends its servers in order; and makes the kernel kill it should the lab
/// be killed.
///
/// The kernel ties this to the thread that starts the child: it must live as long as the child
/// should.
pub(crate) fn bind_to_this_thread(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: the closure runs in the child between fork and exec; prctl, getppid and _exit are
    // async-signal-safe, and it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the request was made.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            Ok(())
        });
    }
}

/// Kills the child and whatever it started in its process group. Only for a child made with
/// [`bind_to_this_thread`] that was not waited for yet, so that its process id cannot belong to
/// another process.
pub(crate) fn kill_group(child: &Child) {
    // SAFETY: kill takes no pointers. The group's leader was not reaped, so the id is still ours.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

/// Moves the calling thread, and no other, into a network namespace: for threads that end in it.
///
/// # Errors
/// Without the right, or where there is no such namespace.
pub(crate) fn enter_network(namespace: &std::path::Path) -> io::Result<()> {
    let file = std::fs::File::open(namespace)?;
    // SAFETY: setns takes no pointers; the descriptor is open until it returns.
    if unsafe { libc::setns(std::os::fd::AsRawFd::as_raw_fd(&file), libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What a child is told by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// To end in order.
    Terminate,
    /// Nothing: it is ended.
    Kill,
    /// Nothing: it stands still.
    Stop,
    /// To go on.
    Continue,
}

/// Signals the child. Only for one that was not waited for yet, so that its process id cannot
/// belong to another process.
pub(crate) fn signal(child: &Child, signal: Signal) {
    let number = match signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    // SAFETY: kill takes no pointers. The child was not reaped, so the id is still ours.
    unsafe { libc::kill(child.id() as libc::pid_t, number) };
}

/// Set by the handler when the user wants the lab to end.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Signal handlers belong to the process: one lab at a time may have them.
static IN_USE: Mutex<()> = Mutex::new(());

extern "C" fn note(_signal: libc::c_int) {
    WANTED.store(true, Ordering::Relaxed);
}

/// While it lives, the first Ctrl-C (or SIGTERM, SIGHUP) is noted instead of ending the process; a
/// second one ends it.
pub(crate) struct Interruption {
    previous: Vec<(libc::c_int, libc::sigaction)>,
    _in_use: MutexGuard<'static, ()>,
}

impl Interruption {
    /// Begins to listen. Waits until another lab of this process has ended.
    pub(crate) fn listen() -> Interruption {
        let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        WANTED.store(false, Ordering::Relaxed);
        let mut previous = Vec::with_capacity(ENDING_SIGNALS.len());
        for signal in ENDING_SIGNALS {
            // SAFETY: sigaction is plain data for which zero is valid; both pointers outlive the
            // calls; the handler only stores to an atomic. A signal that was ignored (nohup) stays
            // ignored.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &mut old) != 0 || old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
                libc::sigemptyset(&mut action.sa_mask);
                if libc::sigaction(signal, &action, std::ptr::null_mut()) == 0 {
                    previous.push((signal, old));
                }
            }
        }
        Interruption { previous, _in_use: in_use }
    }

    /// Whether the user wants the lab to end.
    pub(crate) fn wanted(&self) -> bool {
        WANTED.load(Ordering::Relaxed)
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        for (signal, old) in &self.previous {
            // SAFETY: `old` was filled in by the kernel and is still the handler that belongs here.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}
