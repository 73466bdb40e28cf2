//! P-states: the pairs of frequency and voltage a core can run at, and what they do to speed and
//! power.
//!
//! Source: Concerto (papers/concerto.txt). Section 2.1: the power of a core "varies linearly with
//! V^2 f". Section 2.1.1, Table 2: the states of the Intel Xeon Silver 4114, whose voltages that
//! paper estimated by regression.
//!
//! Pure data; a table cannot exist with impossible values.

use ecotone_types::units::Hertz;
use serde::{Deserialize, Serialize};

use crate::EnergyError;

/// The most P-states a table may have: above any processor (x86 has at most 256 ratios, governors
/// expose under 64).
pub const MAX_P_STATES: usize = 64;

/// No core takes more: megahertz and volts in the wrong order are found by it.
const MAX_VOLTS: f64 = 10.0;

/// The position of a P-state in its table; 0 is the highest frequency.
pub type PStateIndex = usize;

/// One operating point of a core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PState {
    /// Clock frequency in hertz, above 0.
    pub frequency_hz: f64,
    /// Core voltage in volts, above 0.
    pub volts: f64,
}

impl PState {
    /// V^2 f, to which the power of a busy core is proportional (Concerto, section 2.1).
    fn volts_squared_hertz(self) -> f64 {
        self.volts * self.volts * self.frequency_hz
    }
}

/// A core's P-states from the highest frequency down; voltages never rise as the frequency falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PState>", into = "Vec<PState>")]
pub struct PStateTable(Vec<PState>);

impl PStateTable {
    /// A table of 1 to [`MAX_P_STATES`] states.
    ///
    /// # Errors
    /// [`EnergyError::Model`] if the table is empty or too long, a value is not positive and
    /// finite, frequencies do not fall strictly, or a voltage rises while the frequency falls.
    pub fn new(states: Vec<PState>) -> Result<Self, EnergyError> {
        if states.is_empty() || states.len() > MAX_P_STATES {
            let count = states.len();
            return Err(EnergyError::model(format!("p_states has {count} entries; give 1 to {MAX_P_STATES}")));
        }
        for (i, state) in states.iter().enumerate() {
            for (key, value) in [("frequency_hz", state.frequency_hz), ("volts", state.volts)] {
                if !(value.is_finite() && value > 0.0) {
                    return Err(EnergyError::model(format!("p_states[{i}].{key} is {value}; give a value above 0")));
                }
            }
        }
        for (i, pair) in states.windows(2).enumerate() {
            let next = i + 1;
            if pair[1].frequency_hz >= pair[0].frequency_hz {
                return Err(EnergyError::model(format!(
                    "p_states[{next}].frequency_hz is {}, not below the {} before it; list the highest frequency first",
                    pair[1].frequency_hz, pair[0].frequency_hz
                )));
            }
            if pair[1].volts > pair[0].volts {
                return Err(EnergyError::model(format!(
                    "p_states[{next}].volts is {}, above the {} of the higher frequency before it",
                    pair[1].volts, pair[0].volts
                )));
            }
        }
        Ok(Self(states))
    }

    /// The P-states of the Intel Xeon Silver 4114 (Concerto, Table 2): 2.2 GHz at 1.10 V down to
    /// 1.0 GHz at 0.86 V.
    pub fn xeon_silver_4114() -> Self {
        let states = [(2.2, 1.10), (2.0, 1.06), (1.8, 1.02), (1.6, 0.98), (1.4, 0.94), (1.2, 0.90), (1.0, 0.86)];
        Self(states.iter().map(|&(ghz, volts)| PState { frequency_hz: ghz * 1e9, volts }).collect())
    }

    /// A table from text: a state in each line, the highest frequency first, as megahertz and volts
    /// with white space between. What stands behind a `#` is for people.
    ///
    /// ```
    /// let table = ecotone_energy::PStateTable::parse("# made up\n2000 1.05\n1200 0.85  # the lowest\n")?;
    /// assert_eq!((table.states().len(), table.frequency(0).0), (2, 2e9));
    /// # Ok::<(), ecotone_energy::EnergyError>(())
    /// ```
    ///
    /// # Errors
    /// [`EnergyError::Model`] that names the line, and as [`PStateTable::new`].
    pub fn parse(text: &str) -> Result<Self, EnergyError> {
        let mut states = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let said = line.split('#').next().unwrap_or_default().trim();
            if said.is_empty() {
                continue;
            }
            let wrong = |what: String| EnergyError::model(format!("line {}: {what}", number + 1));
            let words: Vec<&str> = said.split_whitespace().collect();
            let [mhz, volts] = words[..] else {
                return Err(wrong(format!("{said:?} is not two numbers: megahertz, then volts, such as `2200 1.10`")));
            };
            let value = |word: &str, of: &str| {
                let value = word.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
                value.ok_or_else(|| wrong(format!("{word:?} is no number of {of} above 0")))
            };
            let (mhz, volts) = (value(mhz, "megahertz")?, value(volts, "volts")?);
            if volts > MAX_VOLTS {
                return Err(wrong(format!("{volts} volts: a core has at most {MAX_VOLTS}; megahertz come first")));
            }
            if states.len() == MAX_P_STATES {
                return Err(wrong(format!("more than {MAX_P_STATES} states")));
            }
            states.push(PState { frequency_hz: mhz * 1e6, volts });
        }
        Self::new(states)
    }

    /// A core with a single frequency in hertz; its voltage drops out of every formula.
    ///
    /// # Errors
    /// [`EnergyError::Model`] if the frequency is not positive and finite.
    pub fn single(frequency_hz: f64) -> Result<Self, EnergyError> {
        Self::new(vec![PState { frequency_hz, volts: 1.0 }])
    }

    /// The same ladder of voltages and frequency ratios, with another highest frequency in hertz.
    /// It stands in for a processor whose own table is not known.
    ///
    /// # Errors
    /// [`EnergyError::Model`] if the frequency is not positive and finite.
    pub fn scaled_to(&self, highest_hz: f64) -> Result<Self, EnergyError> {
        let ratio = highest_hz / self.0[0].frequency_hz;
        Self::new(self.0.iter().map(|s| PState { frequency_hz: s.frequency_hz * ratio, volts: s.volts }).collect())
    }

    /// The states, highest frequency first; never empty.
    pub fn states(&self) -> &[PState] {
        &self.0
    }

    /// The lowest state's index.
    pub fn lowest(&self) -> PStateIndex {
        self.0.len() - 1
    }

    /// An index beyond the table means its lowest state.
    fn at(&self, index: PStateIndex) -> PState {
        self.0[index.min(self.lowest())]
    }

    /// The frequency of a state; an index beyond the table means the lowest state.
    pub fn frequency(&self, index: PStateIndex) -> Hertz {
        Hertz(self.at(index).frequency_hz)
    }

    /// f / fmax: a core's speed relative to its highest state, above 0 and at most 1.
    pub fn relative_speed(&self, index: PStateIndex) -> f64 {
        self.at(index).frequency_hz / self.0[0].frequency_hz
    }

    /// V^2 f / (Vmax^2 fmax): a busy core's power relative to its highest state, above 0 and at
    /// most 1 (Concerto, section 2.1).
    pub fn relative_power(&self, index: PStateIndex) -> f64 {
        self.at(index).volts_squared_hertz() / self.0[0].volts_squared_hertz()
    }

    /// V^2 f / (Vmax^2 fmax) at any frequency, for cores that run between states or above the table:
    /// the voltage is read off the line through the two states around it, below the lowest state it
    /// is that state's.
    pub fn relative_power_at(&self, frequency: Hertz) -> f64 {
        let hz = frequency.0.max(0.0);
        let lowest = self.at(self.lowest());
        let volts = if hz <= lowest.frequency_hz || self.0.len() == 1 {
            lowest.volts
        } else {
            // The first pair whose lower end is not above it; the top pair for what is above all.
            let pair = self.0.windows(2).find(|pair| pair[1].frequency_hz <= hz).unwrap_or(&self.0[..2]);
            let slope = (pair[0].volts - pair[1].volts) / (pair[0].frequency_hz - pair[1].frequency_hz);
            pair[1].volts + slope * (hz - pair[1].frequency_hz)
        };
        PState { frequency_hz: hz, volts }.volts_squared_hertz() / self.0[0].volts_squared_hertz()
    }

    /// The highest state that stays within `frequency`; the lowest if none does.
    pub fn highest_within(&self, frequency: Hertz) -> PStateIndex {
        self.0.iter().position(|state| state.frequency_hz <= frequency.0).unwrap_or(self.lowest())
    }

    /// The state whose frequency is nearest.
    pub fn nearest(&self, frequency: Hertz) -> PStateIndex {
        let off = |index: &PStateIndex| (self.frequency(*index).0 - frequency.0).abs();
        (0..self.0.len()).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0)
    }

    /// The slowest state that still reaches `speed` (relative to the highest, 0 to 1); the highest
    /// if none does.
    pub fn slowest_reaching(&self, speed: f64) -> PStateIndex {
        (0..self.0.len()).rev().find(|&i| self.relative_speed(i) >= speed).unwrap_or(0)
    }
}

impl TryFrom<Vec<PState>> for PStateTable {
    type Error = EnergyError;

    fn try_from(states: Vec<PState>) -> Result<Self, EnergyError> {
        Self::new(states)
    }
}

impl From<PStateTable> for Vec<PState> {
    fn from(table: PStateTable) -> Self {
        table.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_papers_table_gives_the_papers_ratios() {
        let table = PStateTable::xeon_silver_4114();
        assert_eq!(table.states().len(), 7);
        // By hand: 0.86^2 x 1.0 / (1.10^2 x 2.2) = 0.7396 / 2.662.
        assert!(close(table.relative_power(6), 0.7396 / 2.662));
        // 0.98^2 x 1.6 / 2.662 = 1.53664 / 2.662.
        assert!(close(table.relative_power(3), 1.53664 / 2.662));
        assert!(close(table.relative_speed(6), 1.0 / 2.2));
        assert!(close(table.relative_power(0), 1.0) && close(table.relative_speed(0), 1.0));
    }

    #[test]
    fn work_costs_less_at_every_lower_state() {
        let table = PStateTable::xeon_silver_4114();
        let joules_per_work: Vec<f64> = (0..7).map(|i| table.relative_power(i) / table.relative_speed(i)).collect();
        assert!(joules_per_work.windows(2).all(|w| w[1] < w[0]), "{joules_per_work:?}");
        // What remains is V^2: 0.86^2 / 1.10^2.
        assert!(close(joules_per_work[6], 0.7396 / 1.21));
    }

    #[test]
    fn impossible_tables_are_refused_with_the_key() {
        let s = |ghz: f64, volts: f64| PState { frequency_hz: ghz * 1e9, volts };
        for (states, part) in [
            (vec![], "0 entries"),
            (vec![s(1.0, 1.0); MAX_P_STATES + 1], "65 entries"),
            (vec![s(f64::NAN, 1.0)], "p_states[0].frequency_hz"),
            (vec![s(2.0, 1.0), s(1.0, 0.0)], "p_states[1].volts is 0"),
            (vec![s(2.0, f64::INFINITY)], "p_states[0].volts"),
            (vec![s(1.0, 1.0), s(2.0, 1.0)], "p_states[1].frequency_hz"),
            (vec![s(1.0, 1.0), s(1.0, 1.0)], "highest frequency first"),
            (vec![s(2.0, 1.0), s(1.0, 1.1)], "p_states[1].volts is 1.1, above the 1"),
        ] {
            let message = PStateTable::new(states).expect_err(part).to_string();
            assert!(message.contains(part), "{message:?} should name {part:?}");
        }
    }

    #[test]
    fn the_slowest_state_that_is_fast_enough() {
        let table = PStateTable::xeon_silver_4114();
        assert_eq!(table.slowest_reaching(1.0), 0);
        assert_eq!(table.slowest_reaching(0.9), 1); // 2.0 / 2.2 = 0.909
        assert_eq!(table.slowest_reaching(0.0), 6);
        assert_eq!(table.slowest_reaching(1.5), 0);
    }

    #[test]
    fn power_between_below_and_above_the_states() {
        let table = PStateTable::xeon_silver_4114();
        for (index, state) in table.states().iter().enumerate() {
            assert!(close(table.relative_power_at(Hertz(state.frequency_hz)), table.relative_power(index)));
        }
        // 1.9 GHz lies half way between 1.02 and 1.06 V; 0.5 GHz keeps the lowest voltage; 2.4 GHz
        // goes on along the line, 0.04 V for 0.2 GHz.
        assert!(close(table.relative_power_at(Hertz(1.9e9)), 1.04 * 1.04 * 1.9 / 2.662));
        assert!(close(table.relative_power_at(Hertz(0.5e9)), 0.7396 * 0.5 / 2.662));
        assert!(close(table.relative_power_at(Hertz(2.4e9)), 1.14 * 1.14 * 2.4 / 2.662));
        assert!(close(PStateTable::single(1e9).unwrap().relative_power_at(Hertz(0.5e9)), 0.5));
    }

    #[test]
    fn a_table_is_read_from_text_and_what_is_wrong_is_named_by_its_line() {
        let text = "# MHz V\n\n2200\t1.10\n 1600 0.98 # middle\n1000   0.86\n";
        let table = PStateTable::parse(text).unwrap();
        let states: Vec<(f64, f64)> = table.states().iter().map(|of| (of.frequency_hz, of.volts)).collect();
        assert_eq!(states, [(2.2e9, 1.10), (1.6e9, 0.98), (1.0e9, 0.86)]);
        for (text, named) in [
            ("", "0 entries"),
            ("# only words\n", "0 entries"),
            ("2200 1.1\n2000", "line 2: \"2000\" is not two numbers"),
            ("2200 1.1 1.2", "line 1"),
            ("2200,1.1", "line 1"),
            ("\n\n2200 fast", "line 3: \"fast\" is no number of volts"),
            ("inf 1.1", "megahertz"),
            ("-2200 1.1", "megahertz"),
            ("1.1 2200", "megahertz come first"),
            ("1000 0.8\n2200 1.1", "list the highest frequency first"),
            ("2200 0.8\n1000 1.1", "above the 0.8"),
        ] {
            let error = PStateTable::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text:?}: {error}");
        }
        let long: String = (0..=MAX_P_STATES).map(|at| format!("{} 1.0\n", 5000 - at)).collect();
        assert!(PStateTable::parse(&long).unwrap_err().to_string().contains("line 65"));
    }

    #[test]
    fn a_scaled_table_keeps_ratios() {
        let table = PStateTable::xeon_silver_4114();
        let scaled = table.scaled_to(4.4e9).unwrap();
        assert!(close(scaled.frequency(6).0, 2.0e9));
        assert!(close(scaled.relative_power(6), table.relative_power(6)));
        assert!(table.scaled_to(0.0).is_err());
    }
}
