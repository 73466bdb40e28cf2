//! The steps of a job, named so that tests can break it at each of them.

/// A point that a job passes, in the order in which a job passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Owner: RocksDB has asked where a compaction shall run.
    Asked,
    /// Owner: the coordinator is about to be asked for a worker.
    Seeking,
    /// Coordinator: a request to place a job was taken from the queue.
    Placing,
    /// Coordinator: the answer is about to be sent.
    Placed,
    /// Owner: the input files are open and the offer is about to be sent.
    Offering,
    /// Worker: an offer has arrived.
    Offered,
    /// Worker: the job was admitted and is about to run.
    Admitted,
    /// Owner: a range of an input table is about to be sent.
    ReadingInput,
    /// Worker: an output table is complete.
    OutputReady,
    /// Worker: the compaction has ended and its result is about to be sent.
    Compacted,
    /// Worker: a range of an output table is about to be sent.
    ReadingOutput,
    /// Owner: an output table is here and about to be verified.
    Fetched,
    /// Owner: all outputs are here; they are about to be verified against the result and made
    /// durable.
    Verifying,
    /// Owner: RocksDB is about to be given the result.
    Installing,
    /// Owner: RocksDB has taken the tables over.
    Installed,
    /// Worker: the owner has said that the job may be forgotten.
    Released,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Step; 16] = [
        Step::Asked,
        Step::Seeking,
        Step::Placing,
        Step::Placed,
        Step::Offering,
        Step::Offered,
        Step::Admitted,
        Step::ReadingInput,
        Step::OutputReady,
        Step::Compacted,
        Step::ReadingOutput,
        Step::Fetched,
        Step::Verifying,
        Step::Installing,
        Step::Installed,
        Step::Released,
    ];

    /// The step's name in kebab-case.
    pub fn name(self) -> &'static str {
        match self {
            Step::Asked => "asked",
            Step::Seeking => "seeking",
            Step::Placing => "placing",
            Step::Placed => "placed",
            Step::Offering => "offering",
            Step::Offered => "offered",
            Step::Admitted => "admitted",
            Step::ReadingInput => "reading-input",
            Step::OutputReady => "output-ready",
            Step::Compacted => "compacted",
            Step::ReadingOutput => "reading-output",
            Step::Fetched => "fetched",
            Step::Verifying => "verifying",
            Step::Installing => "installing",
            Step::Installed => "installed",
            Step::Released => "released",
        }
    }
}

/// Called at every step on the thread that takes it. A production server has none.
pub type StepObserver = std::sync::Arc<dyn Fn(Step) + Send + Sync>;
