//! The forecast of a write stall: ECO-KVS section V, equations 1 to 3.
//!
//! Tables that a compaction reads stay in L0 until it is finished. So the L0 that counts is the one
//! just before its end: what is there now and what comes in until then.

use ecotone_types::units::{Seconds, Tables, TablesPerSecond};

/// What a store's L0 is heading for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StallForecast {
    /// S_curr: tables in L0 now, those of the compaction in question included.
    pub current: Tables,
    /// S_in for one second: tables that come in.
    pub input: TablesPerSecond,
    /// WST: the number at which writes are slowed.
    pub threshold: Tables,
}

impl StallForecast {
    /// S_L0(T) = S_curr + S_in(T): tables in L0 when a compaction that takes `time` is about to
    /// end. ECO-KVS equation 1.
    pub fn tables_after(&self, time: Seconds) -> Tables {
        self.current + self.input * time
    }

    /// Whether a compaction that takes `time` ends in a stall: S_curr + S_in(T) >= WST. ECO-KVS
    /// equation 2.
    pub fn stalls_after(&self, time: Seconds) -> bool {
        self.tables_after(time) >= self.threshold
    }

    /// T_max: when S_curr + S_in reaches WST. A worker that is to prevent the stall must take less:
    /// S_curr + S_in(T_j) < WST, ECO-KVS equation 3. Zero when the stall is here already; `None`
    /// when none will come.
    pub fn latest(&self) -> Option<Seconds> {
        let headroom = self.threshold - self.current;
        if headroom <= Tables::ZERO {
            Some(Seconds::ZERO)
        } else if self.input > TablesPerSecond::ZERO {
            Some(headroom / self.input).filter(|latest| latest.is_plausible())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forecast_follows_the_equations() {
        // 14 tables, 2.5 more each second, threshold 20: 3 s end at 21.5 tables; the threshold is
        // met after 2.4 s.
        let forecast = StallForecast { current: Tables(14.0), input: TablesPerSecond(2.5), threshold: Tables(20.0) };
        assert_eq!(forecast.tables_after(Seconds(3.0)), Tables(21.5));
        assert!(forecast.stalls_after(Seconds(3.0)));
        assert!(forecast.stalls_after(Seconds(2.4)), "reaching the threshold is a stall");
        assert!(!forecast.stalls_after(Seconds(2.3)));
        assert_eq!(forecast.latest(), Some(Seconds(2.4)));
    }

    #[test]
    fn a_stall_that_is_here_leaves_no_time_and_no_input_leaves_all() {
        let threshold = Tables(20.0);
        let here = StallForecast { current: Tables(20.0), input: TablesPerSecond::ZERO, threshold };
        assert_eq!(here.latest(), Some(Seconds::ZERO));
        assert!(here.stalls_after(Seconds::ZERO));
        let quiet = StallForecast { current: Tables(19.0), input: TablesPerSecond::ZERO, threshold };
        assert_eq!(quiet.latest(), None);
        assert!(!quiet.stalls_after(Seconds(1e9)));
        let nearly_quiet = StallForecast { input: TablesPerSecond(1e-300), ..quiet };
        assert_eq!(nearly_quiet.latest(), None, "a time beyond all bounds is no deadline");
    }
}
