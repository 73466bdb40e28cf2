//! `ecotone energy`: what a server spent its joules on within the last hour.
//!
//! The server is asked for INFO; it keeps a record for each minute of an hour. What it does not say
//! is left out, never guessed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ecotone_bench::target::resp::Reply;
use ecotone_server::restore_frequencies;
use serde_json::{Value, json};

use crate::live_server::{self, PasswordArgument, StoreLocation};
use crate::output::{self, line};

/// What belongs to nobody; shown last.
const LAST: [&str; 2] = ["unattributed", "idle"];

#[derive(clap::Args)]
#[command(
    after_help = "Joules are measured where the machine has a meter (RAPL, INA3221 and others under hwmon, the PMIC of a Raspberry Pi 5), and \
                  computed from processor time where it has none; the source is always said. `all-high` is what the same work would have taken \
                  with all cores at their highest frequency, by the model.\n\nExamples:\n  ecotone energy 127.0.0.1:6379\n  ecotone energy \
                  127.0.0.1:6379 --json\n  ecotone energy --restore /var/lib/ecotone"
)]
pub(crate) struct Arguments {
    /// Where the server serves clients, or its folder
    #[arg(value_name = "DIR|HOST:PORT", required_unless_present = "restore")]
    server: Option<PathBuf>,
    #[command(flatten)]
    password: PasswordArgument,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Bring back limits of frequencies that a server which was killed has left lowered, and end; DIR
    /// is its folder. For `ExecStopPost`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "json"])]
    restore: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(folder) = &arguments.restore {
        let restored = restore_frequencies(folder).context("limits of frequencies could not be restored")?;
        return output::print(&format!("{restored} limits of frequencies restored\n"));
    }
    let hour = ask(arguments.server.as_deref().unwrap_or(Path::new("")), &arguments.password)?;
    output::print(&if arguments.json { hour.json().to_string() } else { hour.text() })
}

fn ask(server: &Path, password: &PasswordArgument) -> Result<Hour> {
    let StoreLocation::Server(server) = live_server::locate(server)? else {
        bail!("no server has {} open: give the address where one serves clients", server.display());
    };
    let password = password.password()?;
    let mut connected = server.connect(password.as_deref(), "ecotone energy", "INFO energy energy_history")?;
    let Reply::Bulk(Some(said)) = connected.ask(&[b"INFO", b"energy", b"energy_history"])? else {
        bail!("{} answers INFO by what is no text", connected.address());
    };
    Hour::of(&String::from_utf8_lossy(&said))
        .with_context(|| format!("{} does not say what it spent", connected.address()))
}

/// What a server said, and its minutes taken together.
#[derive(Debug, Default)]
struct Hour {
    said: BTreeMap<String, String>,
    source: String,
    minutes: Vec<Value>,
    seconds: f64,
    joules: BTreeMap<String, f64>,
    cpu_s: BTreeMap<String, f64>,
    cycles: BTreeMap<String, f64>,
    others: f64,
    measured: f64,
    all_high: f64,
}

fn add(sums: &mut BTreeMap<String, f64>, of: &Value) {
    for (name, value) in of.as_object().into_iter().flatten() {
        *sums.entry(name.clone()).or_default() += value.as_f64().unwrap_or(0.0);
    }
}

impl Hour {
    fn of(info: &str) -> Option<Hour> {
        let lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        let said: BTreeMap<String, String> = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut hour = Hour { source: said.get("energy_source")?.clone(), ..Hour::default() };
        let minutes = (0..).map_while(|number| said.get(&format!("minute{number}")));
        for minute in minutes.filter_map(|minute| serde_json::from_str::<Value>(minute).ok()) {
            let number = |name: &str| minute[name].as_f64().unwrap_or(0.0);
            hour.seconds += number("seconds");
            hour.others += number("other_joules");
            hour.measured += number("measured_joules");
            hour.all_high += number("all_high_joules");
            add(&mut hour.joules, &minute["joules"]);
            add(&mut hour.cpu_s, &minute["cpu_s"]);
            add(&mut hour.cycles, &minute["cycles"]);
            hour.minutes.push(minute);
        }
        hour.said = said;
        Some(hour)
    }

    fn total(&self) -> f64 {
        self.joules.values().sum()
    }

    /// The mean frequency at which a duty ran.
    fn frequency(&self, duty: &str) -> Option<f64> {
        let cpu_s = *self.cpu_s.get(duty).filter(|cpu_s| **cpu_s > 0.0)?;
        self.cycles.get(duty).map(|cycles| cycles / cpu_s)
    }

    /// Duties, the dearest first, and then what is nobody's.
    fn by_duty(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<(&str, f64)> = self.joules.iter().map(|(duty, joules)| (duty.as_str(), *joules)).collect();
        let last = |duty: &str| LAST.iter().position(|name| *name == duty).map_or(0, |at| at + 1);
        all.sort_by(|one, other| last(one.0).cmp(&last(other.0)).then(other.1.total_cmp(&one.1)));
        all
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.said.get(name)?.parse().ok()
    }

    fn json(&self) -> Value {
        let duties: BTreeMap<&str, Value> = self
            .by_duty()
            .into_iter()
            .map(|(duty, joules)| {
                let of = json!({
                    "joules": joules,
                    "cpu_s": self.cpu_s.get(duty),
                    "frequency_hz": self.frequency(duty),
                });
                (duty, of)
            })
            .collect();
        json!({
            "source": self.source,
            "meter": self.said.get("energy_meter"),
            "meter_covers": self.said.get("energy_meter_covers"),
            "meter_doubt": self.said.get("energy_meter_doubt"),
            "memory_joules_since_start": self.number("energy_memory_joules_total"),
            "model_error": self.number("energy_model_error"),
            "seconds": self.seconds,
            "joules": self.total(),
            "measured_joules": self.measured,
            "other_joules": self.others,
            "all_high_joules": self.all_high,
            "by_duty": duties,
            "mode": self.said.get("power_mode"),
            "governor": self.said.get("power_governor"),
            "cap_watts": self.number("power_cap_watts"),
            "cap_kept": self.number("power_cap_kept").map(|kept| kept > 0.0),
            "cost_share": self.number("energy_cost_share"),
            "minutes": self.minutes,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let total = self.total();
        if self.seconds <= 0.0 || total <= 0.0 {
            line!(text, "the server has not counted for a second yet; ask again");
            return text;
        }
        let minutes = self.seconds / 60.0;
        line!(text, "the last {minutes:.0} minutes: {total:.0} J, {:.2} W ({})", total / self.seconds, self.source);
        line!(text, "");
        line!(text, "{:<14}{:>12}{:>9}{:>10}{:>10}", "", "joules", "share", "CPU s", "GHz");
        for (duty, joules) in self.by_duty() {
            let cpu = self.cpu_s.get(duty).map_or_else(String::new, |cpu_s| format!("{cpu_s:.1}"));
            let ghz = self.frequency(duty).map_or_else(String::new, |hertz| format!("{:.2}", hertz / 1e9));
            line!(text, "{duty:<14}{joules:>12.1}{:>8.1}%{cpu:>10}{ghz:>10}", 100.0 * joules / total);
        }
        line!(text, "");
        let saved = 100.0 * (1.0 - total / self.all_high.max(f64::MIN_POSITIVE));
        let than = if saved >= 0.0 { "less" } else { "more" };
        line!(
            text,
            "with all cores at their highest frequency the same work would have taken {:.0} J by the model: this was {:.1} % {than}",
            self.all_high,
            saved.abs()
        );
        self.say_power(&mut text);
        self.say_meter(&mut text, total);
        text
    }

    fn say_power(&self, text: &mut String) {
        let of = |name: &str| self.said.get(name).map_or("", String::as_str);
        let (mode, governor) = (of("power_mode"), of("power_governor"));
        match governor {
            "none" if mode == "all-high" => line!(text, "mode all-high: frequencies are left alone"),
            "none" => line!(text, "mode {mode}, but the frequencies of this machine cannot be controlled"),
            _ => line!(text, "mode {mode}, by {governor}"),
        }
        if let Some(cap) = self.number("power_cap_watts") {
            let kept = self.number("power_cap_kept").unwrap_or(0.0) > 0.0;
            line!(text, "cap of {cap:.1} W for this server: {}", if kept { "kept" } else { "NOT KEPT" });
        }
    }

    fn say_meter(&self, text: &mut String, total: f64) {
        let Some(meter) = self.said.get("energy_meter") else {
            line!(
                text,
                "there is no meter: joules follow from processor time, energy.active_watts and energy.idle_watts"
            );
            return;
        };
        let covers = self.said.get("energy_meter_covers").map_or("", String::as_str);
        let leaves_out = self.said.get("energy_meter_leaves_out").map_or("", String::as_str);
        line!(text, "meter {meter}: {covers}; without {leaves_out}");
        if self.others > 0.0 {
            line!(text, "other processes of the machine took {:.0} J besides", self.others);
        }
        if let Some(memory) = self.number("energy_memory_joules_total") {
            line!(text, "memory took {memory:.0} J since the server's start, which are in none of these sums");
        }
        let share = 100.0 * self.measured / (total + self.others).max(f64::MIN_POSITIVE);
        if share < 99.0 {
            line!(text, "measured {:.1} %, the rest is of the model", share.min(100.0));
        }
        if let Some(doubt) = self.said.get("energy_meter_doubt").filter(|doubt| *doubt != "none") {
            line!(text, "the meter is not believed now ({doubt}): the model stands in");
        }
        if let Some(error) = self.number("energy_model_error") {
            line!(text, "the model that is fitted to it is off by {:.1} %", error * 100.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "# Energy\r\nenergy_source:rapl\r\nenergy_meter:rapl\r\nenergy_meter_covers:package-0\r\n\
        energy_meter_leaves_out:memory\r\nenergy_memory_joules_total:71.500\r\n\
        energy_meter_doubt:frozen\r\nenergy_model_error:0.0312\r\npower_mode:concerto\r\n\
        power_governor:cpufreq\r\npower_cap_watts:40.000\r\npower_cap_kept:0\r\n# Energy_history\r\n\
        minute0:{\"unix_s\":60,\"seconds\":60.0,\"joules\":{\"idle\":300.0,\"foreground\":100.0},\"other_joules\":50.0,\
        \"measured_joules\":225.0,\"all_high_joules\":500.0,\"cpu_s\":{\"foreground\":10.0},\"cycles\":{\"foreground\":1e10}}\r\n\
        minute1:{\"unix_s\":120,\"seconds\":60.0,\"joules\":{\"idle\":300.0,\"gc\":300.0},\"other_joules\":0.0,\
        \"measured_joules\":300.0,\"all_high_joules\":1500.0,\"cpu_s\":{\"foreground\":30.0},\"cycles\":{\"foreground\":6e10}}\r\n";

    #[test]
    fn minutes_are_taken_together() {
        let hour = Hour::of(SAID).unwrap();
        assert_eq!((hour.total(), hour.seconds, hour.all_high), (1000.0, 120.0, 2000.0));
        assert_eq!(hour.frequency("foreground"), Some(1.75e9));
        assert_eq!(hour.frequency("gc"), None);
        let order: Vec<&str> = hour.by_duty().iter().map(|of| of.0).collect();
        assert_eq!(order, ["gc", "foreground", "idle"]);
        let json = hour.json();
        assert_eq!((&json["joules"], &json["cap_kept"]), (&json!(1000.0), &json!(false)));
        assert_eq!(json["minutes"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn the_page_says_what_is_not_sure() {
        let text = Hour::of(SAID).unwrap().text();
        for part in [
            "the last 2 minutes: 1000 J, 8.33 W (rapl)",
            "would have taken 2000 J by the model: this was 50.0 % less",
            "cap of 40.0 W for this server: NOT KEPT",
            "measured 50.0 %",
            "not believed now (frozen)",
            "off by 3.1 %",
            "memory took 72 J since the server's start, which are in none of these sums",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_server_that_has_no_minute_yet_is_no_error_and_another_program_is() {
        assert!(Hour::of("energy_source:model\r\n").unwrap().text().contains("ask again"));
        assert!(Hour::of("redis_version:7.2\r\n").is_none());
    }
}
