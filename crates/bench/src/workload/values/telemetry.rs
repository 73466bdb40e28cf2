//! Telemetry of devices as JSON objects.
//!
//! A fleet of devices reports who and where it is, what twelve sensors read, and, where the length
//! allows, statistics of the windows of time before. What tells devices apart is fixed, readings
//! drift, only the last digits are noise: alone an object shrinks by what repeats within it, with a
//! dictionary by all names too.
//!
//! All fields have a fixed width, so an object is laid out once for a length, and for each value
//! only the digits in it are written. A shorter object ends after the last field that fits, filled
//! up with spaces; what holds no field is a number. All of them are valid JSON.

use crate::workload::random::mix64;

/// How many devices report. A key belongs to one of them.
const DEVICES: u64 = 4096;

/// The first moment, in milliseconds since 1970, and the period after which time begins anew: the
/// timestamp keeps its 13 digits.
const FIRST_MS: u64 = 1_772_366_400_000;
const PERIOD_MS: u64 = 100_000_000_000;

/// Between two versions, in milliseconds.
const STEP_MS: u64 = 20;

/// The statistics of a sensor are of windows of so many versions, as a power of two.
const WINDOW_BITS: u32 = 13;

/// States and versions of the firmware; those named several times are as many times as frequent.
const STATES: [&[u8; 6]; 8] = [b"active", b"active", b"active", b"active", b"active", b"active", b"paused", b"warmup"];
const VERSIONS: [&[u8; 5]; 4] = [b"2.4.1", b"2.4.1", b"2.3.7", b"2.5.0"];

/// Where devices are: name, latitude and longitude in ten-thousandths of a degree.
const SITES: [(&[u8; 6], u32, u32); 8] = [
    (b"athens", 379_800, 237_200),
    (b"berlin", 525_100, 133_900),
    (b"munich", 481_300, 115_700),
    (b"naples", 408_500, 142_600),
    (b"prague", 500_700, 144_200),
    (b"vienna", 482_000, 163_600),
    (b"warsaw", 522_200, 210_000),
    (b"zagreb", 458_100, 159_800),
];

/// What a sensor reads: four digits between `low` and `low + 2^span_bits`, of which the unit's last
/// two or the last one stand behind the point.
struct Sensor {
    name: &'static str,
    low: u32,
    span_bits: u32,
    /// It changes by one in `2^pace` versions.
    pace: u32,
    decimals: u32,
}

const fn sensor(name: &'static str, low: u32, span_bits: u32, pace: u32, decimals: u32) -> Sensor {
    Sensor { name, low, span_bits, pace, decimals }
}

const SENSORS: [Sensor; 12] = [
    sensor("temp", 1800, 10, 10, 2),
    sensor("humi", 3200, 11, 11, 2),
    sensor("pres", 9900, 6, 12, 1),
    sensor("volt", 1180, 8, 12, 2),
    sensor("amps", 1100, 9, 10, 2),
    sensor("load", 1500, 12, 9, 2),
    sensor("flow", 2400, 10, 11, 1),
    sensor("fuel", 4000, 12, 13, 2),
    sensor("vibr", 1050, 7, 10, 2),
    sensor("oxyg", 2050, 5, 12, 2),
    sensor("nois", 4000, 10, 9, 1),
    sensor("torq", 2900, 9, 11, 1),
];

/// The bytes of a reading: four digits and the point.
const READING_BYTES: usize = 5;

const WINDOWS: &[u8] = b",\"windows\":[";

/// Statistics of a sensor within a window; the name and three readings are written into it.
const WINDOW: &[u8] =
    b"{\"sensor\":\"    \",\"status\":\"ok\",\"seconds\":60,\"min\":00.00,\"max\":00.00,\"avg\":00.00},";
const WINDOW_NAME: usize = 11;
const WINDOW_READINGS: [usize; 3] = [50, 62, 74];

/// So many windows of a sensor follow on one another, then those of the next.
const WINDOWS_PER_SENSOR: usize = 4;

/// Makes the objects of one run.
#[derive(Debug)]
pub(super) struct Telemetry {
    /// Sets what all devices are.
    salt: u64,
    /// The object up to the windows, without its end.
    head: Vec<u8>,
    /// Where each field of it ends.
    ends: Vec<usize>,
    places: Places,
}

/// Where in the head a field's value begins.
#[derive(Debug, Default)]
struct Places {
    device: usize,
    sequence: usize,
    timestamp: usize,
    version: usize,
    state: usize,
    site: usize,
    latitude: usize,
    longitude: usize,
    battery: usize,
    /// Of the first sensor; the others follow at equal distances.
    readings: usize,
}

/// `,"temp":00.00`
const READING_FIELD_BYTES: usize = 13;

/// How an object of a length is composed.
#[derive(Debug, Default)]
pub(super) struct Layout {
    bytes: usize,
    /// None: it is too short for any field.
    fields: usize,
    readings: usize,
    windows: usize,
    /// Where fields and windows end, and the end of the object begins.
    end: usize,
}

impl Telemetry {
    pub(super) fn new(salt: u64) -> Self {
        let mut head = b"{".to_vec();
        let mut ends = Vec::new();
        // Where the value begins, behind a quotation mark if it has one.
        let mut field = |name: &str, blank: &str| {
            let separator = if head.len() > 1 { "," } else { "" };
            head.extend_from_slice(format!("{separator}\"{name}\":").as_bytes());
            let place = head.len() + usize::from(blank.starts_with('"'));
            head.extend_from_slice(blank.as_bytes());
            ends.push(head.len());
            place
        };
        let mut places = Places {
            device: field("device", "\"gw-0000\"") + 3,
            sequence: field("seq", "10000000"),
            timestamp: field("ts", "1772366400000"),
            version: field("fw", "\"0.0.0\""),
            state: field("state", "\"      \""),
            site: field("site", "\"      \""),
            latitude: field("lat", "00.0000"),
            longitude: field("lon", "00.0000"),
            battery: field("batt", "00"),
            readings: 0,
        };
        for (index, sensor) in SENSORS.iter().enumerate() {
            let place = field(sensor.name, "00.00");
            if index == 0 {
                places.readings = place;
            }
        }
        Self { salt, head, ends, places }
    }

    /// Composes what does not change in objects of `bytes` bytes.
    pub(super) fn lay_out(&self, bytes: usize, buffer: &mut Vec<u8>) -> Layout {
        let fields = self.ends.partition_point(|&end| end < bytes);
        let readings = (fields + SENSORS.len()).saturating_sub(self.ends.len());
        let head = self.head.len();
        // The end of the array and of the object takes two bytes, one of them instead of the last
        // comma.
        let windows = bytes.saturating_sub(head + WINDOWS.len() + 1) / WINDOW.len();
        let end = match windows {
            0 => fields.checked_sub(1).map_or(0, |last| self.ends[last]),
            _ => head + WINDOWS.len() + windows * WINDOW.len() - 1,
        };
        buffer.clear();
        buffer.extend_from_slice(&self.head);
        if windows > 0 {
            buffer.extend_from_slice(WINDOWS);
        }
        for number in 0..windows {
            let begin = buffer.len();
            buffer.extend_from_slice(WINDOW);
            let name = sensor_of(number).1.name.as_bytes();
            buffer[begin + WINDOW_NAME..][..name.len()].copy_from_slice(name);
        }
        // Digits are written into the whole head, however little of it is used.
        buffer.resize(bytes.max(head), b' ');
        Layout { bytes, fields, readings, windows, end }
    }

    /// Writes an object into a buffer of that layout, at the front of it.
    pub(super) fn write(&self, key: u64, version: u64, layout: &Layout, buffer: &mut [u8]) {
        let device_index = mix64(key ^ self.salt) % DEVICES;
        let device = mix64(device_index ^ self.salt.rotate_left(32));
        let mut noise = mix64(device ^ key.rotate_left(32) ^ version);
        if layout.fields == 0 {
            number(noise, &mut buffer[..layout.bytes]);
            return;
        }
        self.write_scalars(device_index, device, version, noise, buffer);
        // Devices are not in step.
        let time = version.wrapping_add(device >> 40);
        let mut place = self.places.readings;
        for (index, sensor) in SENSORS.iter().enumerate().take(layout.readings) {
            let reading = sensor.level(device, index, time) + next_noise(&mut noise, 8);
            buffer[place..place + READING_BYTES].copy_from_slice(&sensor.text(reading));
            place += READING_FIELD_BYTES;
        }
        let mut place = self.head.len() + WINDOWS.len();
        for number in 0..layout.windows {
            let (index, sensor) = sensor_of(number);
            let level = sensor.level(device, index, time.wrapping_sub((number as u64) << WINDOW_BITS));
            let window = &mut buffer[place..place + WINDOW.len()];
            let readings = [
                level - next_noise(&mut noise, 16),
                level + 8 + next_noise(&mut noise, 16),
                level + next_noise(&mut noise, 8),
            ];
            for (reading, place) in readings.into_iter().zip(WINDOW_READINGS) {
                window[place..place + READING_BYTES].copy_from_slice(&sensor.text(reading));
            }
            place += WINDOW.len();
        }
        let tail = &mut buffer[layout.end..layout.bytes];
        tail.fill(b' ');
        if let [first, .., last] = tail {
            *first = if layout.windows > 0 { b']' } else { b' ' };
            *last = b'}';
        } else if let [only] = tail {
            *only = b'}';
        }
    }

    fn write_scalars(&self, device_index: u64, device: u64, version: u64, noise: u64, buffer: &mut [u8]) {
        let places = &self.places;
        pairs::<2>(1000 + device_index, &mut buffer[places.device..]);
        let sequence = 10_000_000 + (device >> 32).wrapping_add(version) % 90_000_000;
        pairs::<4>(sequence, &mut buffer[places.sequence..]);
        let ms = FIRST_MS + version.wrapping_mul(STEP_MS).wrapping_add(noise & 15) % PERIOD_MS;
        // Thirteen digits, of which the first never changes.
        pairs::<6>(ms % 1_000_000_000_000, &mut buffer[places.timestamp + 1..]);
        let slowly = device.wrapping_add(version >> 20);
        buffer[places.version..][..5].copy_from_slice(VERSIONS[(slowly & 3) as usize]);
        buffer[places.state..][..6].copy_from_slice(STATES[(mix64(device ^ version >> 14) & 7) as usize]);
        let (name, latitude, longitude) = SITES[(device >> 8 & 7) as usize];
        buffer[places.site..][..6].copy_from_slice(name);
        degrees(latitude + (device >> 11 & 0x3ff) as u32, &mut buffer[places.latitude..]);
        degrees(longitude + (device >> 21 & 0x3ff) as u32, &mut buffer[places.longitude..]);
        pairs::<1>(20 + (device.wrapping_sub(version >> 16) & 63), &mut buffer[places.battery..]);
    }
}

/// Whose statistics the `number`-th window has.
fn sensor_of(number: usize) -> (usize, &'static Sensor) {
    let index = number / WINDOWS_PER_SENSOR % SENSORS.len();
    (index, &SENSORS[index])
}

impl Sensor {
    /// What a device's sensor reads at a time, without noise: up and down again.
    fn level(&self, device: u64, index: usize, time: u64) -> u32 {
        let phase = device.rotate_right(5 * index as u32);
        let steps = phase.wrapping_add(time >> self.pace) as u32;
        let up = steps & ((1 << self.span_bits) - 1);
        match steps >> self.span_bits & 1 {
            0 => self.low + up,
            _ => self.low + (1 << self.span_bits) - 1 - up,
        }
    }

    fn text(&self, reading: u32) -> [u8; READING_BYTES] {
        let [a, b] = PAIRS[(reading / 100) as usize % 100];
        let [c, d] = PAIRS[(reading % 100) as usize];
        if self.decimals == 2 { [a, b, b'.', c, d] } else { [a, b, c, b'.', d] }
    }
}

/// The next number below `bound`, a power of two: a step of a linear congruential generator, whose
/// high bits are good enough for digits.
fn next_noise(state: &mut u64, bound: u32) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 32) as u32 & (bound - 1)
}

/// A number that fills `buffer`, without a leading zero.
fn number(random: u64, buffer: &mut [u8]) {
    let mut rest = random;
    for digit in buffer.iter_mut() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if let Some(first) = buffer.first_mut() {
        *first = b'1' + (random >> 32 & 7) as u8;
    }
}

/// The last `2 N` digits of a number.
fn pairs<const N: usize>(number: u64, buffer: &mut [u8]) {
    let mut rest = number;
    for pair in buffer[..2 * N].rchunks_exact_mut(2) {
        pair.copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
}

/// Ten-thousandths of a degree, as `52.5134`.
fn degrees(number: u32, buffer: &mut [u8]) {
    pairs::<1>(u64::from(number / 10_000), buffer);
    pairs::<2>(u64::from(number % 10_000), &mut buffer[3..]);
}

/// The numbers below 100 as text.
pub(super) const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};
