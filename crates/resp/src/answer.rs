//! What is replied after a wait.

use crate::protocol::reply::Reply;

/// What is replied instead of what a command has replied, after a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A string.
    Bulk(Vec<u8>),
    /// A number.
    Integer(i64),
    /// Two of them.
    Integers([i64; 2]),
}

impl Answer {
    /// Writes it as a reply.
    pub(crate) fn write(&self, reply: &mut Reply) {
        match self {
            Self::Bulk(bytes) => reply.bulk(bytes),
            Self::Integer(number) => reply.integer(*number),
            Self::Integers(numbers) => {
                reply.array(numbers.len());
                numbers.iter().for_each(|number| reply.integer(*number));
            }
        }
    }
}
