//! What can go wrong in this crate: only a configuration can be wrong. Decisions themselves never
//! fail; in doubt they say "run it here".

/// A shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the policy crate. All kinds ask for a corrected input; none is worth a retry.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Fix the configuration: a parameter is outside its range.
    #[error("policy parameter `{name}` is {value}, but must be {expected}; correct it in the configuration")]
    Parameter {
        /// The parameter's name as it is written in the configuration.
        name: &'static str,
        /// The value that was refused.
        value: String,
        /// The range that is allowed.
        expected: &'static str,
    },
    /// Fix the configuration: there is no policy of this name.
    #[error("there is no policy `{name}`; choose one of: {valid}")]
    UnknownPolicy {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        valid: String,
    },
}
