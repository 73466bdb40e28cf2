//! The power manager's decision: which cores run fast and which slow, and at which frequency.
//!
//! Concerto (*Concerto: Dynamic Processor Scaling for Distributed Data Systems with Replication*,
//! section 4): what a client waits for runs on fast cores, what keeps a copy in step runs on slow
//! ones. Here threads have a [`Role`], roles have a [`CoreClass`], and [`plan`] gives every server's
//! frequency domains a class and a step for a [`PowerMode`] and, if there is one, a cap in watts on
//! the whole federation.
//!
//! Invariants: in `concerto` a read never runs on a slow core, as every server keeps at least one
//! fast domain; a lower cap never raises a step, so that it never raises predicted joules; a cap is
//! kept whenever the lowest steps keep it, and else it is said that it is not.
//!
//! Pure: the caller smooths demand and carries the plan out.

mod mode;
mod plan;
mod promotion;

pub use mode::{PowerMode, Role};
pub use plan::{CapState, Domain, MAX_UTILISATION, PowerPlan, PowerSettings, ServerPlan, ServerPower, Step, plan};
pub use promotion::{MAX_PROMOTION_WAIT, Promotion, promotion};
