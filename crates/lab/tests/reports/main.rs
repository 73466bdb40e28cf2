//! What the lab reads and reports.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod profile;
mod report;
