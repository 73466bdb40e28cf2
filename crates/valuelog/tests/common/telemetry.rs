/// What a device reports, as JSON: fields that change slowly, of one of some hundred devices, about
/// `bytes` long and cut to that.
pub(crate) fn telemetry(number: u64, bytes: usize) -> Vec<u8> {
    use std::fmt::Write as _;
    let mix = |salt: u64| {
        let mut mixed = (number ^ salt << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 32
    };
    let device = mix(1) % 300;
    let tenths = |base: u64, spread: u64, salt: u64| {
        let tenth = base * 10 + mix(salt) % (spread * 10);
        format!("{}.{}", tenth / 10, tenth % 10)
    };
    let mut text = format!(
        "{{\"device\":\"edge-{device:04}\",\"site\":\"plant-{:02}/line-{}\",\"ts\":{},\"seq\":{number},\"fw\":\"2.{}.{}\",\
         \"temperature\":{},\"humidity\":{},\"voltage\":3.{:02},\"rssi\":-{},\"uptime\":{},\"status\":\"{}\",\"alarms\":[]",
        device % 17,
        device % 5,
        1_790_000_000_000_u64 + number * 137,
        device % 4,
        device % 9,
        tenths(18 + device % 7, 4, 2),
        tenths(40, 20, 3),
        20 + mix(4) % 15,
        50 + mix(5) % 30,
        mix(6) % 900_000,
        ["ok", "ok", "ok", "ok", "degraded", "maintenance"][(mix(7) % 6) as usize],
    );
    let mut channel = 0;
    while text.len() + 1 < bytes {
        let _ = write!(
            text,
            ",\"ch{channel}\":{{\"name\":\"{}\",\"value\":{},\"unit\":\"{}\",\"quality\":{}}}",
            ["pressure", "flow", "vibration", "current", "level"][channel % 5],
            tenths(100 * (channel as u64 % 5 + 1), 25, 8 + channel as u64),
            ["bar", "l/min", "mm/s", "A", "cm"][channel % 5],
            if mix(90 + channel as u64) % 8 == 0 { "\"uncertain\"" } else { "\"good\"" },
        );
        channel += 1;
    }
    text.push('}');
    let mut value = text.into_bytes();
    value.truncate(bytes);
    value
}
