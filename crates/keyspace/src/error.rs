//! Whether a thread may block, and why a command was not carried out.

use std::borrow::Cow;

use ecotone_engine::Error as StoreError;

/// An argument is repeated in a refusal up to here. Redis repeats all of it, where it repeats any;
/// but one that is as long as a request may be would be copied for nobody to read, on a thread that
/// others wait for.
const MAX_REPEATED_BYTES: usize = 1024;

/// Whether the thread may block on the device or on another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// It serves other clients as well: what cannot be had at once is [`Failure::WouldBlock`].
    Never,
    /// It serves one client only, and holds latches of what that has written: a look at the device
    /// is short enough, what takes longer is [`Failure::WouldBlock`].
    Briefly,
    /// It serves one client only.
    Allowed,
}

/// Why a command was not carried out. Nothing of it was written.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The client asked for what cannot be done: Redis' text, with its code word. Bytes, since it
    /// may repeat what the client sent.
    #[error("{}", String::from_utf8_lossy(.0))]
    Refused(Cow<'static, [u8]>),
    /// It takes more than a look into memory: carry it out again where waiting is allowed.
    #[error("this cannot be had without waiting")]
    WouldBlock,
    /// It reads what others may change meanwhile: carry it out again under the latches of its keys.
    #[error("this cannot be read while others change it")]
    NeedsLatch,
    /// The store could not do it.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::WouldBlock => Self::WouldBlock,
            error => Self::Store(error),
        }
    }
}

/// What a command comes to.
pub type Outcome<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// A refusal with Redis' text.
    pub const fn text(text: &'static str) -> Self {
        Self::Refused(Cow::Borrowed(text.as_bytes()))
    }

    /// A refusal with a text that names what is wrong.
    pub fn with(text: impl Into<Vec<u8>>) -> Self {
        Self::Refused(Cow::Owned(text.into()))
    }

    /// A refusal that repeats an argument between two texts, as [`repeated`] has it, up to
    /// [`MAX_REPEATED_BYTES`].
    pub fn repeating(before: &str, argument: &[u8], behind: &str) -> Self {
        let argument = &argument[..argument.len().min(MAX_REPEATED_BYTES)];
        Self::with([before.as_bytes(), repeated(argument), behind.as_bytes()].concat())
    }

    /// What the client is told, on one line, with a code word in front.
    pub fn reply(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Refused(text) => Cow::Borrowed(text),
            Self::WouldBlock | Self::NeedsLatch => Cow::Borrowed(b"TRYAGAIN the server is busy; try again"),
            Self::Store(error) => Cow::Owned(store_reply(error).into_bytes()),
        }
    }
}

/// An argument as Redis repeats it in an error: its bytes, whatever they mean, up to the first NUL.
pub fn repeated(argument: &[u8]) -> &[u8] {
    argument.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn store_reply(error: &StoreError) -> String {
    let word = match error {
        // Clients know this word: the writes are refused, the reads are not.
        StoreError::OutOfSpace { .. } | StoreError::DiskFull { .. } => "OOM",
        StoreError::Corrupt { .. } | StoreError::Io { .. } | StoreError::Background { .. } => "IOERR",
        StoreError::Busy { .. } => "TRYAGAIN",
        _ => "ERR",
    };
    format!("{word} {error}")
}

/// What Redis says where several commands may say it.
pub mod texts {
    use super::Failure;

    /// A key holds another type than the command is for.
    pub const WRONG_TYPE: Failure = Failure::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// No shard here has the slot of a key.
    pub const NOT_SERVED: Failure = Failure::text("CLUSTERDOWN Hash slot not served");
    /// Something is not a whole number of 64 bits.
    pub const NOT_AN_INTEGER: Failure = Failure::text("ERR value is not an integer or out of range");
    /// Something is not a number.
    pub const NOT_A_FLOAT: Failure = Failure::text("ERR value is not a valid float");
    /// An option that is not known, or not in this place.
    pub const SYNTAX: Failure = Failure::text("ERR syntax error");
    /// A key must be there.
    pub const NO_SUCH_KEY: Failure = Failure::text("ERR no such key");
    /// An index beyond the end.
    pub const INDEX_OUT_OF_RANGE: Failure = Failure::text("ERR index out of range");
    /// A number would leave its range.
    pub const OVERFLOW: Failure = Failure::text("ERR increment or decrement would overflow");
    /// A client, or one of its commands, wants more memory than there is for all of them.
    pub const SHORT_OF_MEMORY: Failure = Failure::text(
        "ERR all clients together keep as much memory as they may (clients.max_memory_bytes); try again later, or with less at a time",
    );
    /// The client was killed while its command was carried out.
    pub const KILLED: Failure = Failure::text("ERR the client was killed");
    /// Its client has gone while a command was carried out. Nobody is told.
    pub const GONE: Failure = Failure::text("ERR the client has gone");
    /// The server stops while a command is carried out that takes long.
    pub const STOPS: Failure = Failure::text("ERR the server stops before this is done; ask again once it is back");
    /// A number that is less than 0.
    pub const OUT_OF_RANGE_POSITIVE: Failure = Failure::text("ERR value is out of range, must be positive");
}
