//! What the tests share: an independent look at CPU time, and work that uses it up.

use std::hint::black_box;

/// Nanoseconds of CPU time of the calling thread, from the scheduler's own file: another way than
/// the meter's clocks.
pub fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel has schedstat");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("its first field is CPU time in nanoseconds")
}

/// A few microseconds of arithmetic.
pub fn spin() {
    let mut x = 1u64;
    for i in 0..5_000u64 {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
}
