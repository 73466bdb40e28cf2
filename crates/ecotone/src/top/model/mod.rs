//! What is shown, without network, clock or terminal: text of INFO in, figures out.

pub(super) mod board;
pub(super) mod info;
pub(super) mod rates;
pub(super) mod snapshot;
