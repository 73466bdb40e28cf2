//! Joules, and the processor time they follow from.

use super::page::Page;
use crate::monitor::ServerSample;

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>) {
    let reading = sample.map(|sample| &sample.reading);
    page.gauges(
        "ecotone_energy_source_info",
        "Where joules come from: model, computed from processor time. Always 1.",
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
            let none = (ecotone_energy::UNATTRIBUTED, of.unattributed_cpu_seconds);
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
