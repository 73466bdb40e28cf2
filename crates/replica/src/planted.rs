//! Rules that tests leave out, to see that they find out. A server leaves out none.

/// The rule that is left out.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A primary acknowledges and reads without a lease (kvrocks#3380).
    NoLease,
    /// A server that seals does not wait for the end of what it promised.
    SealAtOnce,
    /// A sealed copy goes on acknowledging to the old primary (slatedb#352, #1622).
    AcknowledgeSealed,
    /// The leader names a primary by the first report, without sealing (kvrocks-controller#109).
    PromoteUnsealed,
    /// A promotion waits for every member of the set, the dead one too (kvrocks#3496).
    SealEveryone,
    /// A log is promoted without a look at its checksums (rocksdb#12190).
    PromoteUnverified,
    /// A copy of another epoch goes on where it is, whatever it has there (dragonfly#5730).
    AttachAnywhere,
    /// A copy takes what comes, without a look at numbers and checksums (garnet#2087).
    TakeAnything,
    /// What a seed is followed by is not kept for it (kvrocks#1319).
    SeedUnpinned,
    /// A copy that stopped taking stays in the set (kvrocks#3356).
    WaitForLaggards,
    /// The new set counts before it is applied.
    CountNewSetEarly,
    /// A set may lack what was acknowledged with members that left it.
    ShrinkBlindly,
    /// Who lost power is taken for who it was.
    TrustAnyBoot,
    /// A copy's WAL is synced before the segments that it names.
    WalFirst,
    /// A copy says synced what is in the kernel's memory (NATS 2.12.1).
    SyncedUnsynced,
    /// A promoted copy judges expiry by its own clock alone.
    OwnClock,
}
