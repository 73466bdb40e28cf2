//! What a store that clients use does otherwise, and how it shares out the memory it is given.

use ecotone_engine::{CompressionMode, MIN_LIMIT_BYTES, StoreSettings};

use ecotone_keyspace::ranks;

use crate::host_memory::HostMemory;

/// The share of the machine's memory that block cache, rows and memtables of a server with clients
/// take unless set otherwise: the kernel's cache, the clients and others on the machine need the
/// rest.
const MEMORY_SHARE: u64 = 8;

/// The same without rows where the memory is for the server alone. The allocator's holes and the
/// tables of the cache make of it nearly twice as much, and where a quarter and as many rows were
/// taken the kernel ended a server that was read in many ways at a time.
const OWN_MEMORY_SHARE: u64 = 8;

/// The share that rows take of such memory, from so much of it on. Values are read past the
/// kernel's cache where it can keep few of them, so what it had of them is theirs. Of less memory
/// the process itself takes so much that as many rows would be too many.
const OWN_ROW_SHARE: u64 = 4;
const MIN_FOR_ROWS: u64 = 512 << 20;

/// The share that rows take of less than that.
const LITTLE_OWN_ROW_SHARE: u64 = 8;

/// How many times its limit the store takes of such memory.
const REAL_SHARE: u64 = 2;

/// The kernel is expected to keep at least this part of all memory.
const MIN_KERNEL_SHARE: u64 = 8;

/// What they take at least, where that is no more than [`MAX_SHARE`] of all.
const MIN_MEMORY_BYTES: u64 = 64 << 20;
const MAX_SHARE: u64 = 4;

/// The share of what is given that rows take unless set otherwise.
const ROW_SHARE: u64 = 2;

/// The share of all that is given that [ranks] of large sorted sets may take, up to
/// [`ranks::MAX_BYTES`]: of that of rows, unless those were said. A set of a million members takes
/// half a mebibyte.
const RANKS_SHARE: u64 = 64;

/// The share of all that is given that compressing values may take (dictionaries, what threads keep to
/// pack and unpack, samples), within these bounds: of that of rows as well, unless those were said.
const PACKING_SHARE: u64 = 32;
const MIN_PACKING_BYTES: u64 = 1 << 20;
const MAX_PACKING_BYTES: u64 = 16 << 20;

/// The share of the rest that one memtable takes unless set otherwise, and the most it takes:
/// values of clients are often too short to be separated, and small memtables have such values
/// compacted again and again.
const MEMTABLE_SHARE: u64 = 16;
const MAX_MEMTABLE_BYTES: u64 = 32 << 20;

/// The first level holds at least twice as much as the memtables whose tables start its compaction:
/// written out and compressed they are a fraction of that, and as long as they are a twelfth of all
/// keys and more a second level would cost more writing than it saves.
const MEMTABLES_OF_LEVEL_BASE: u64 = 8;

/// What is different in a store that clients use: keys expire, the same keys are asked for again
/// and again, and lookups must not wait for the device more often than memory demands. Returns what
/// ranks of large sorted sets may take beside the store.
pub(crate) fn suit_clients(store: &mut StoreSettings, fits_memtables: bool, memory: Option<HostMemory>) -> usize {
    store.reclaim_expired = true;
    store.reclaim_idle = true;
    // Memtables must fit: RocksDB gives them half of what rows leave, and flushes when that is
    // nearly full.
    let least = MIN_MEMORY_BYTES.max(8 * store.memtable_bytes);
    let said = store.memory_limit_bytes;
    // Rows that were said are beside all this.
    let are_rows_said = store.row_cache_bytes.is_some();
    let by_itself = |memory: HostMemory| {
        let share = match memory.is_own {
            true if are_rows_said => memory.bytes / OWN_MEMORY_SHARE,
            true => memory.bytes / OWN_MEMORY_SHARE + own_rows(memory),
            false => memory.bytes / MEMORY_SHARE,
        };
        share.max(least.min(memory.bytes / MAX_SHARE)).max(2 * MIN_LIMIT_BYTES)
    };
    let Some(mut limit_bytes) = said.or_else(|| memory.map(by_itself)) else { return ranks::MAX_BYTES };
    let mut rank_bytes = (limit_bytes / RANKS_SHARE).min(ranks::MAX_BYTES as u64);
    let packs = store.separation.is_some() && store.value_compression != CompressionMode::None;
    // One that packs nothing may still have to read what is packed.
    store.compression_memory_bytes = match packs {
        true => (limit_bytes / PACKING_SHARE).clamp(MIN_PACKING_BYTES, MAX_PACKING_BYTES),
        false => MIN_PACKING_BYTES,
    };
    let packing_bytes = if packs { store.compression_memory_bytes } else { 0 };
    if store.row_cache_bytes.is_none() {
        let of_own = memory.filter(|memory| memory.is_own && said.is_none()).map(own_rows);
        let rows = of_own.unwrap_or(limit_bytes / ROW_SHARE).min(limit_bytes.saturating_sub(MIN_LIMIT_BYTES));
        limit_bytes -= rows;
        rank_bytes = rank_bytes.min(rows);
        store.row_cache_bytes = Some((rows - rank_bytes).saturating_sub(packing_bytes));
    } else {
        rank_bytes = rank_bytes.min(limit_bytes.saturating_sub(MIN_LIMIT_BYTES));
        limit_bytes -= rank_bytes;
        limit_bytes = limit_bytes.saturating_sub(packing_bytes).max(MIN_LIMIT_BYTES.min(limit_bytes));
    }
    if fits_memtables {
        let memtable_bytes = (limit_bytes / MEMTABLE_SHARE).min(MAX_MEMTABLE_BYTES);
        store.memtable_bytes = store.memtable_bytes.max(memtable_bytes);
        store.level_base_bytes = store.level_base_bytes.max(MEMTABLES_OF_LEVEL_BASE * store.memtable_bytes);
    }
    store.memory_limit_bytes = Some(limit_bytes);
    let all = limit_bytes + store.row_cache_bytes.unwrap_or(0) + rank_bytes + packing_bytes;
    store.page_cache_bytes = store.page_cache_bytes.or_else(|| memory.map(|memory| left_to_kernel(memory, all)));
    rank_bytes as usize
}

/// What rows take of memory that is for the server alone.
fn own_rows(memory: HostMemory) -> u64 {
    memory.bytes / if memory.bytes >= MIN_FOR_ROWS { OWN_ROW_SHARE } else { LITTLE_OWN_ROW_SHARE }
}

/// What the kernel can keep of the store's files where the store has so many `bytes`.
fn left_to_kernel(memory: HostMemory, bytes: u64) -> u64 {
    if memory.is_own {
        // However much the store may take, it need not have it.
        memory.bytes.saturating_sub(bytes.saturating_mul(REAL_SHARE)).max(memory.bytes / MIN_KERNEL_SHARE)
    } else {
        memory.bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_options::store_options;

    const MIB: u64 = 1 << 20;

    /// A store of a server with default settings.
    fn served() -> StoreSettings {
        store_options(&[] as &[&str]).unwrap()
    }

    /// What a store gets: its memory limit, its rows with the ranks and the compression beside it, and
    /// a memtable, in MiB.
    fn shares(mut store: StoreSettings, fits_memtables: bool, memory: Option<HostMemory>) -> [u64; 3] {
        let are_rows_said = store.row_cache_bytes.is_some();
        let ranks = suit_clients(&mut store, fits_memtables, memory) as u64;
        let packs = store.value_compression != CompressionMode::None && store.memory_limit_bytes.is_some();
        let besides = ranks + if packs { store.compression_memory_bytes } else { 0 };
        let memtables = if fits_memtables && store.memory_limit_bytes.is_some() { 8 } else { 4 };
        assert!(store.level_base_bytes >= memtables * store.memtable_bytes);
        let limit = store.memory_limit_bytes.unwrap_or(0);
        let rows = store.row_cache_bytes.unwrap_or(0);
        let [beside, within] = if are_rows_said { [besides, 0] } else { [0, besides] };
        let rows = if store.memory_limit_bytes.is_some() { rows + within } else { rows };
        [limit + beside, rows, store.memtable_bytes].map(|bytes| bytes / MIB)
    }

    fn shared(mib: u64) -> Option<HostMemory> {
        Some(HostMemory { bytes: mib * MIB, is_own: false })
    }

    fn own(mib: u64) -> Option<HostMemory> {
        Some(HostMemory { bytes: mib * MIB, is_own: true })
    }

    #[test]
    fn the_kernel_keeps_what_is_left() {
        let kept = |mut store: StoreSettings, memory| {
            suit_clients(&mut store, true, memory);
            store.page_cache_bytes.map(|bytes| bytes / MIB)
        };
        let store = served;
        assert_eq!(kept(store(), own(512)), Some(128));
        assert_eq!(kept(store(), shared(16 * 1024)), Some(8 * 1024));
        assert_eq!(kept(store(), None), None);
        let said = StoreSettings { memory_limit_bytes: Some(300 * MIB), ..store() };
        assert_eq!(kept(said, own(512)), Some(64));
        assert_eq!(kept(StoreSettings { page_cache_bytes: Some(7 * MIB), ..store() }, own(512)), Some(7));
    }

    #[test]
    fn ranks_get_a_small_share_of_what_is_given() {
        let ranks = |mut store: StoreSettings, memory| suit_clients(&mut store, true, memory) as u64;
        assert_eq!(ranks(served(), shared(64 * 1024)), 16 * MIB);
        assert_eq!(ranks(served(), shared(2048)), 4 * MIB);
        assert_eq!(ranks(served(), own(512)), 3 * MIB);
        assert_eq!(ranks(served(), None), 16 * MIB);
        let said = |bytes| StoreSettings { memory_limit_bytes: Some(bytes), ..served() };
        assert_eq!(ranks(said(64 * MIB), None), MIB);
        // No limit is cut below the least.
        let without_rows = StoreSettings { row_cache_bytes: Some(0), ..said(MIN_LIMIT_BYTES) };
        assert_eq!(ranks(without_rows, None), 0);
    }

    #[test]
    fn compression_gets_a_small_share_of_what_is_given_and_rows_the_rest() {
        let packing = |mut store: StoreSettings, memory| {
            suit_clients(&mut store, true, memory);
            (store.compression_memory_bytes / MIB, store.row_cache_bytes.map(|bytes| bytes / MIB))
        };
        assert_eq!(packing(served(), shared(64 * 1024)), (16, Some(4096 - 16 - 16)));
        assert_eq!(packing(served(), own(512)), (6, Some(128 - 3 - 6)));
        assert_eq!(packing(served(), shared(256)), (2, Some(32 - 1 - 2)));
        assert_eq!(packing(served(), own(64)), (1, Some(8 - 1 - 1)));
        // Who compresses nothing leaves it to rows, and reads what is compressed within the least.
        let none = StoreSettings { value_compression: CompressionMode::None, ..served() };
        assert_eq!(packing(none, own(512)), (1, Some(128 - 3)));
        // Where memory is not known, nothing is said.
        assert_eq!(packing(served(), None), (16, None));
        let said = StoreSettings { row_cache_bytes: Some(0), memory_limit_bytes: Some(MIN_LIMIT_BYTES), ..served() };
        assert_eq!(packing(said, None), (1, Some(0)));
    }

    #[test]
    fn a_store_gets_its_share_of_the_memory_and_what_was_said() {
        let store = served;
        assert_eq!(shares(store(), true, shared(16 * 1024)), [1024, 1024, 32]);
        assert_eq!(shares(store(), true, shared(2048)), [128, 128, 8]);
        assert_eq!(shares(store(), true, own(2048)), [256, 512, 16]);
        assert_eq!(shares(store(), true, own(512)), [64, 128, 8]);
        // At least 64 MiB, but for those with so little that it would be more than a quarter.
        assert_eq!(shares(store(), true, shared(512)), [32, 32, 8]);
        assert_eq!(shares(store(), true, shared(256)), [32, 32, 8]);
        assert_eq!(shares(store(), true, own(400)), [50, 50, 8]);
        let with_rows = StoreSettings { row_cache_bytes: Some(200 * MIB), ..store() };
        assert_eq!(shares(with_rows, true, own(512)), [64, 200, 8]);
        assert_eq!(shares(store(), true, own(128)), [16, 16, 8]);
        assert_eq!(shares(store(), true, shared(64)), [8, 8, 8]);
        assert_eq!(shares(store(), true, own(16)), [6, 2, 8]);
        let large = StoreSettings { memtable_bytes: 32 * MIB, ..store() };
        assert_eq!(shares(large, false, shared(1024)), [128, 128, 32]);
        assert_eq!(shares(store(), true, None), [0, 0, 8]);
        assert_eq!(shares(store(), false, shared(16 * 1024)), [1024, 1024, 8]);
        let said = |bytes| StoreSettings { memory_limit_bytes: Some(bytes), ..store() };
        assert_eq!(shares(said(100 * MIB), true, shared(16 * 1024)), [50, 50, 8]);
        // No limit is cut below the least.
        assert_eq!(shares(said(5 * MIB), false, None), [4, 1, 8]);
        let without_rows = StoreSettings { row_cache_bytes: Some(0), ..said(100 * MIB) };
        assert_eq!(shares(without_rows, true, None), [100, 0, 8]);
        let small = StoreSettings::small_device().with_separation(128);
        assert_eq!(shares(small.clone(), true, own(512)), [16, 16, 4]);
        // The profile for small devices, on one that may take more: its first level grows with its
        // memtables.
        let more = StoreSettings { memory_limit_bytes: Some(1024 * MIB), ..small };
        assert_eq!(shares(more, true, own(4096)), [512, 512, 32]);
    }
}
