//! Joules, the processor time they follow from, and the frequencies of cores.
//!
//! Where Kepler is scraped as well its names are here with the same meaning, for dashboards that
//! know them: `kepler_node_*` is of the machine as far as its meter sees it, or of this server by the
//! model; the label `zone` says which.

use std::collections::BTreeMap;

use ecotone_energy::{EnergyView, IDLE, Reading, UNATTRIBUTED};
use ecotone_types::CoreClass;
use ecotone_types::units::Hertz;

use super::page::Page;
use crate::monitor::ServerSample;

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>) {
    let (reading, view) = (sample.map(|sample| &sample.reading), sample.map(|sample| &*sample.energy));
    joules(page, reading, sample);
    meter(page, view);
    power(page, view);
    kepler(page, reading, view, sample);
}

fn joules(page: &mut Page, reading: Option<&Reading>, sample: Option<&ServerSample>) {
    page.gauges(
        "ecotone_energy_source_info",
        "Where joules come from: perf, rapl, hwmon or pmic, measured; model, computed from processor time. Always 1.",
        ["source"],
        reading.map(|of| ([of.source.name()], 1u64)),
    );
    page.counters(
        "ecotone_energy_joules_total",
        "Energy by duty; idle power and what belongs to no duty besides. The sum is the server's.",
        ["duty"],
        reading.into_iter().flat_map(|of| &of.energy_joules_by_duty).map(|(duty, joules)| ([duty], *joules)),
    );
    page.counters(
        "ecotone_energy_cpu_seconds_total",
        "Processor time by duty.",
        ["duty"],
        reading.into_iter().flat_map(|of| {
            let none = (UNATTRIBUTED, of.unattributed_cpu_seconds);
            let duties = of.cpu_seconds_by_duty.iter().map(|(duty, cpu_s)| (duty.as_str(), *cpu_s));
            duties.chain([none]).map(|(duty, cpu_s)| ([duty], cpu_s))
        }),
    );
    page.counter(
        "ecotone_energy_busy_core_seconds_total",
        "Time that cores were busy for this server.",
        reading.map(|of| of.busy_core_seconds),
    );
    page.gauge("ecotone_energy_watts", "Power over the last second.", sample.and_then(|sample| sample.watts));
    page.gauge("ecotone_energy_frequency_hertz", "Clock frequency of the cores.", reading.map(|of| of.frequency_hz));
    page.gauge(
        "ecotone_energy_free_cores",
        "Cores that this server could use and that are idle.",
        sample.map(|sample| sample.free_cores),
    );
}

fn meter(page: &mut Page, view: Option<&EnergyView>) {
    let meter = view.and_then(|view| view.meter.as_ref());
    page.gauges(
        "ecotone_energy_meter_info",
        "The meter of the machine and what it measures; none: there is none. Always 1.",
        ["source", "covers"],
        meter.map(|of| ([of.source.name().to_owned(), of.covers.clone()], 1u64)),
    );
    page.gauge(
        "ecotone_energy_measured_ratio",
        "Share of the meter's joules that was measured; the fitted model has filled in the rest.",
        meter.map(|of| of.measured_share),
    );
    page.gauge(
        "ecotone_energy_model_error_ratio",
        "Mean relative error of the power model that is fitted to the meter.",
        meter.and_then(|of| of.error),
    );
    page.gauges(
        "ecotone_energy_meter_in_doubt",
        "What is wrong with the meter now, 1 if it is: lost, frozen, jumped, reset or ignores-load.",
        ["doubt"],
        meter.and_then(|of| of.doubt).map(|doubt| ([doubt.name()], 1u64)),
    );
    page.counters(
        "ecotone_energy_meter_faults_total",
        "Looks at the meter that were not believed.",
        ["doubt"],
        meter.into_iter().flat_map(|of| {
            let faults = &of.faults;
            [("lost", faults.lost), ("frozen", faults.frozen), ("jumped", faults.jumped), ("reset", faults.reset)]
                .map(|(doubt, count)| ([doubt], count))
        }),
    );
    page.counter(
        "ecotone_energy_others_joules_total",
        "Energy of other processes of the machine, as far as its meter sees them.",
        view.filter(|view| view.meter.is_some()).map(|view| view.others.0),
    );
    page.counter(
        "ecotone_energy_memory_joules_total",
        "Energy of the machine's memory, which is in no other sum; none: nothing counts it.",
        meter.and_then(|of| of.memory).map(|memory| memory.0),
    );
    page.counter(
        "ecotone_energy_cost_seconds_total",
        "Processor time of the meter and the governor.",
        view.map(|view| view.cost.0),
    );
}

fn power(page: &mut Page, view: Option<&EnergyView>) {
    let power = view.map(|view| &view.power);
    page.gauges(
        "ecotone_power_mode_info",
        "How fast cores are to run, and what controls it. Always 1.",
        ["mode", "governor"],
        power.map(|of| ([of.mode.name(), of.governor], 1u64)),
    );
    page.gauge(
        "ecotone_power_cap_watts",
        "This server's share of the cap on all servers; none: there is no cap.",
        power.and_then(|of| of.cap).map(|watts| watts.0),
    );
    page.gauge(
        "ecotone_power_cap_kept",
        "Whether the cap is kept, by the frequencies that were read back; 0: the server may draw more, or cannot be governed.",
        power.and_then(|of| of.is_cap_kept),
    );
    page.gauge(
        "ecotone_power_deferred_cores",
        "Work that waits for the sake of the cap, in cores of the highest frequency.",
        power.map(|of| of.deferred.0),
    );
    let by_core = |of: fn(&ecotone_energy::DomainView) -> Option<Hertz>| -> Vec<([String; 2], f64)> {
        let domains = power.into_iter().flat_map(|power| &power.domains);
        let values = domains.filter_map(|domain| Some((domain, of(domain)?)));
        let labels = |core: &u32, class: CoreClass| [core.to_string(), class.name().to_owned()];
        let cores = values.flat_map(|(domain, hertz)| {
            domain.cores.iter().map(move |core| (labels(core, domain.class), hertz.0)).collect::<Vec<_>>()
        });
        cores.collect()
    };
    page.gauges(
        "ecotone_power_core_frequency_hertz",
        "What a core runs at, as the kernel says.",
        ["core", "class"],
        by_core(|domain| domain.reached),
    );
    page.gauges(
        "ecotone_power_core_cap_hertz",
        "The highest frequency that a core may run at; none: it is left alone.",
        ["core", "class"],
        by_core(|domain| domain.cap),
    );
}

fn kepler(page: &mut Page, reading: Option<&Reading>, view: Option<&EnergyView>, sample: Option<&ServerSample>) {
    let zone = reading.map(|of| of.source.name()).unwrap_or_default();
    let others = view.map_or(0.0, |view| view.others.0);
    let idle = reading.map(|of| of.energy_joules_by_duty.get(IDLE).copied().unwrap_or(0.0));
    let all = reading.map(|of| of.total_joules + others);
    let active = all.zip(idle).map(|(all, idle)| (all - idle).max(0.0));
    let of_zone = |joules: Option<f64>| joules.map(|joules| ([zone], joules));
    page.counters("kepler_node_cpu_joules_total", "As Kepler names it: energy of the machine.", ["zone"], of_zone(all));
    page.counters(
        "kepler_node_cpu_active_joules_total",
        "As Kepler names it: what of it was used to compute.",
        ["zone"],
        of_zone(active),
    );
    page.counters(
        "kepler_node_cpu_idle_joules_total",
        "As Kepler names it: what of it the machine takes for being there.",
        ["zone"],
        of_zone(idle),
    );
    let own: Option<f64> = reading.map(|of| {
        let by_duty: BTreeMap<&str, f64> = of.energy_joules_by_duty.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        by_duty.iter().filter(|(duty, _)| **duty != IDLE).map(|(_, joules)| joules).sum()
    });
    page.counters(
        "kepler_process_cpu_joules_total",
        "As Kepler names it: energy of this process, without idle power.",
        ["pid", "comm", "zone"],
        own.map(|joules| ([std::process::id().to_string(), "ecotone".to_owned(), zone.to_owned()], joules)),
    );
    let watts = view.and_then(|view| view.watts).map(|watts| watts.0.0).or(sample.and_then(|sample| sample.watts));
    page.gauges(
        "kepler_platform_watts",
        "As Kepler names it: power of the machine, as far as its source sees it.",
        ["source"],
        watts.map(|watts| ([zone], watts)),
    );
}
