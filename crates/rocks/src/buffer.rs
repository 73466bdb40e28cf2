//! What the shim gives back: bytes that it allocated, holding a record (`cpp/record.h` writes them)
//! or a message.

use crate::ffi;
use crate::{Error, Result};

/// Bytes that the shim allocated. Freed when dropped.
pub struct Buffer(ffi::Buffer);

impl Buffer {
    fn empty() -> Self {
        Self(ffi::Buffer { data: std::ptr::null_mut(), len: 0 })
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the shim allocated `len` bytes at `data`, and they are ours until dropped.
        unsafe { ffi::Bytes { data: self.0.data, len: self.0.len }.as_slice() }
    }

    /// The bytes as a message for people.
    pub fn message(&self) -> String {
        String::from_utf8_lossy(self.as_slice()).into_owned()
    }

    /// The bytes as a record; `what` names it in errors.
    pub fn fields(&self, what: &'static str) -> Fields<'_> {
        Fields { rest: self.as_slice(), what }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = ffi::Buffer { data: self.0.data, len: self.0.len };
        // SAFETY: from the shim's malloc (or null), and not used again.
        unsafe { ffi::ecotone_buffer_free(buffer) }
    }
}

/// Calls a function of the shim; its code, and what it gave back.
pub fn call_raw(function: impl FnOnce(*mut ffi::Buffer) -> ffi::Code) -> (ffi::Code, Buffer) {
    let mut buffer = Buffer::empty();
    let code = function(&raw mut buffer.0);
    (code, buffer)
}

/// Calls a function of the shim whose errors are RocksDB's; `action` completes "RocksDB refused
/// to".
pub fn call(action: &'static str, function: impl FnOnce(*mut ffi::Buffer) -> ffi::Code) -> Result<Buffer> {
    match call_raw(function) {
        (ffi::OK, buffer) => Ok(buffer),
        (_, buffer) => Err(Error::RocksDb { action, message: buffer.message() }),
    }
}

/// Reads the fields of a record, one after another.
pub struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        let mut number = [0; 8];
        number.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(number))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.number()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    pub fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.malformed("a name is not UTF-8"))
    }

    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let len = self.number()?;
        (0..len).map(|_| item(self)).collect()
    }

    pub fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed("something follows it")) }
    }

    pub fn malformed(&self, message: &str) -> Error {
        Error::Malformed { what: self.what, message: message.to_owned() }
    }
}
