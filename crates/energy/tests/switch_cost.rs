//! What a change of duty costs: time, and no memory after a thread's first.
#![allow(unsafe_code)] // a counting allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::time::Instant;

use ecotone_energy::{EnergyMeter, PowerModel};
use ecotone_types::Duty;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands every call on to the system's allocator unchanged; the count needs no allocation (a
// const thread-local without destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_switch_is_cheap_and_allocates_nothing_after_the_first() {
    const PAIRS: u32 = 200_000;
    let meter = EnergyMeter::start(PowerModel::hardware(1.0, 5.0).unwrap()).unwrap();
    meter.begin(Duty::Foreground);
    meter.end();
    let before = ALLOCATIONS.with(Cell::get);
    let start = Instant::now();
    for _ in 0..PAIRS {
        meter.begin(Duty::Foreground);
        meter.end();
    }
    let ns_per_pair = start.elapsed().as_nanos() as f64 / f64::from(PAIRS);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "a switch allocated memory");
    // Written past the test harness's capture, so that the figure is seen.
    let _ = writeln!(std::io::stderr(), "one begin and end: {ns_per_pair:.0} ns");
    // Generous, for busy and slow machines: a flush or compaction lasts a thousand times as long.
    assert!(ns_per_pair < 50_000.0, "{ns_per_pair} ns for one begin and end");
}
