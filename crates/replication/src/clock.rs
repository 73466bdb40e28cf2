//! The clock that leases count by, and the boot of the machine.

use std::time::{SystemTime, UNIX_EPOCH};

use ecotone_replica::position::BootId;

/// Microseconds of a clock that goes on while the machine sleeps and never jumps.
pub fn now_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000
}

/// Milliseconds since 1970, by the clock of the wall.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What the kernel calls this boot; a container has that of its host. Where it does not say, every
/// process counts as a boot of its own: a copy then trusts itself less than it could.
pub(crate) fn boot() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) if digits.len() == 32 => BootId(id.to_be_bytes()),
        _ => {
            let own = (u128::from(std::process::id()) << 64) | u128::from(now_us());
            BootId(own.to_be_bytes())
        }
    }
}
