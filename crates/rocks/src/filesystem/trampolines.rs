//! The C functions behind the file system hooks: what C++ hands over becomes Rust values and back.

use std::ffi::{OsStr, c_void};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use ecotone_io::remote_files::RangedRead;
use ecotone_io::tap::TapEvent;

use super::FileSystemHooks;
use crate::callback::{answer, release};
use crate::{Result, buffer, ffi};

type OpenFile = Arc<dyn RangedRead>;

/// Makes the environment; the hooks live until it and all its files are gone.
pub fn new_env(hooks: FileSystemHooks) -> Result<rust_rocksdb::Env> {
    let calls = ffi::FileHooks {
        has_tap: hooks.tap.is_some(),
        has_remap: hooks.remap.is_some(),
        has_remote: hooks.remote.is_some(),
        maps_wals: hooks.maps_wals,
        state: Box::into_raw(Box::new(hooks)).cast(),
        drop: release::<FileSystemHooks>,
        tap,
        remap,
        remote_open,
        remote_size,
        remote_list,
        file_read,
        file_will_need,
        file_drop: release::<OpenFile>,
    };
    let mut env = std::ptr::null_mut();
    // SAFETY: the shim takes the state, also when it fails; the functions match `calls`.
    buffer::call("make an environment", |out| unsafe { ffi::ecotone_env_new(&raw const calls, &raw mut env, out) })?;
    // SAFETY: the shim made a `rocksdb_env_t` that nobody else owns.
    Ok(unsafe { rust_rocksdb::Env::from_raw(env.cast()) })
}

/// # Safety
///
/// `state` must be what [`new_env`] gave to the shim.
unsafe fn hooks<'a>(state: *mut c_void) -> &'a FileSystemHooks {
    // SAFETY: boxed in `new_env`, and shared only: hooks are called from many threads.
    unsafe { &*state.cast::<FileSystemHooks>() }
}

/// # Safety
///
/// The bytes must stay for `'a`.
unsafe fn path<'a>(bytes: ffi::Bytes) -> &'a Path {
    // SAFETY: the caller vouches for the bytes.
    Path::new(OsStr::from_bytes(unsafe { bytes.as_slice() }))
}

const DONE: io::Result<Option<Vec<u8>>> = Ok(Some(Vec::new()));

unsafe extern "C" fn tap(state: *mut c_void, event: *const ffi::TapEvent, reply: *mut ffi::Reply) -> ffi::Code {
    // SAFETY: C++ calls with the state of `new_env`, an event and bytes that live through the call,
    // and a live reply.
    unsafe {
        let (hooks, event) = (hooks(state), &*event);
        let (path, to, offset) = (path(event.path), path(event.to), event.offset);
        let bytes = event.data.as_slice();
        let event = match event.kind {
            ffi::TAP_CREATED => TapEvent::Created { path },
            ffi::TAP_APPENDED => TapEvent::Appended { path, offset, bytes },
            ffi::TAP_TRUNCATED => TapEvent::Truncated { path, len: offset },
            ffi::TAP_SYNCED => TapEvent::Synced { path, len: offset },
            ffi::TAP_CLOSED => TapEvent::Closed { path, len: offset },
            ffi::TAP_RENAMED => TapEvent::Renamed { from: path, to },
            ffi::TAP_LINKED => TapEvent::Linked { from: path, to },
            ffi::TAP_DELETED => TapEvent::Deleted { path },
            ffi::TAP_DIRECTORY_CREATED => TapEvent::DirectoryCreated { path },
            ffi::TAP_DIRECTORY_DELETED => TapEvent::DirectoryDeleted { path },
            ffi::TAP_DIRECTORY_SYNCED => TapEvent::DirectorySynced { path },
            kind => return answer(reply, "tap", || Err(io::Error::other(format!("event of unknown kind {kind}")))),
        };
        answer(reply, "tap", || hooks.tap.as_ref().map_or(DONE, |tap| tap.record(event).and(DONE)))
    }
}

unsafe extern "C" fn remap(state: *mut c_void, from: ffi::Bytes, reply: *mut ffi::Reply) -> ffi::Code {
    // SAFETY: C++ calls with the state of `new_env`, bytes that live through the call, and a live
    // reply.
    unsafe {
        let (hooks, from) = (hooks(state), path(from));
        answer(reply, "path remap", || {
            let Some(to) = hooks.remap.as_ref().and_then(|remap| remap.map(from)) else { return Ok(None) };
            let to = to.into_os_string().into_vec();
            if to.is_empty() || to.contains(&0) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "remapped to an empty path or one with a NUL"));
            }
            Ok(Some(to))
        })
    }
}

unsafe extern "C" fn remote_open(
    state: *mut c_void,
    at: ffi::Bytes,
    file: *mut *mut c_void,
    len: *mut u64,
    reply: *mut ffi::Reply,
) -> ffi::Code {
    // SAFETY: C++ calls with the state of `new_env`, bytes that live through the call, places to
    // write to, and a live reply.
    unsafe {
        let (hooks, at) = (hooks(state), path(at));
        answer(reply, "opening of a remote file", || {
            let Some(opened) = hooks.remote.as_ref().map_or(Ok(None), |remote| remote.open(at))? else {
                return Ok(None);
            };
            *len = opened.len();
            *file = Box::into_raw(Box::<OpenFile>::new(opened)).cast();
            DONE
        })
    }
}

unsafe extern "C" fn remote_size(
    state: *mut c_void,
    at: ffi::Bytes,
    len: *mut u64,
    reply: *mut ffi::Reply,
) -> ffi::Code {
    // SAFETY: C++ calls with the state of `new_env`, bytes that live through the call, a place to
    // write to, and a live reply.
    unsafe {
        let (hooks, at) = (hooks(state), path(at));
        answer(reply, "size of a remote file", || {
            let Some(size) = hooks.remote.as_ref().map_or(Ok(None), |remote| remote.size(at))? else {
                return Ok(None);
            };
            *len = size;
            DONE
        })
    }
}

unsafe extern "C" fn remote_list(state: *mut c_void, at: ffi::Bytes, reply: *mut ffi::Reply) -> ffi::Code {
    // SAFETY: C++ calls with the state of `new_env`, bytes that live through the call, and a live
    // reply.
    unsafe {
        let (hooks, at) = (hooks(state), path(at));
        answer(reply, "list of a remote directory", || {
            let Some(names) = hooks.remote.as_ref().map_or(Ok(None), |remote| remote.list(at))? else {
                return Ok(None);
            };
            let mut joined = Vec::new();
            for name in names {
                if name.is_empty() || name.contains(['\0', '/']) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a file")));
                }
                joined.extend_from_slice(name.as_bytes());
                joined.push(0);
            }
            Ok(Some(joined))
        })
    }
}

unsafe extern "C" fn file_read(
    file: *mut c_void,
    offset: u64,
    into: *mut u8,
    len: usize,
    read: *mut usize,
    reply: *mut ffi::Reply,
) -> ffi::Code {
    // SAFETY: C++ calls with a file that `remote_open` gave it, `len` bytes to write to, a place
    // for the count, and a live reply. The bytes may be uninitialised, hence the zeroing: a safe
    // slice must not be.
    unsafe {
        let file = &*file.cast::<OpenFile>();
        into.write_bytes(0, len);
        let into = std::slice::from_raw_parts_mut(into, len);
        answer(reply, "read of a remote file", || {
            let count = file.read_at(offset, into)?;
            if count > len {
                return Err(io::Error::other(format!("read {count} bytes into a buffer of {len}")));
            }
            *read = count;
            DONE
        })
    }
}

unsafe extern "C" fn file_will_need(file: *mut c_void, offset: u64, len: u64) -> bool {
    // SAFETY: C++ calls with a file that `remote_open` gave it.
    let file = unsafe { &*file.cast::<OpenFile>() };
    crate::callback::hint(|| file.will_need(offset, len))
}
