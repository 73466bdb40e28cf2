//! `ecotone bench`.
