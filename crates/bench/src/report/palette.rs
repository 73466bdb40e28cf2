//! Colours: each policy, each duty and each target of a bench keeps its own in every plot.

use crate::target::TargetKind;

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    /// As CSS wants it.
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// As CSS wants it, with an opacity of 0 to 1.
    pub fn css_with(self, opacity: f64) -> String {
        format!("rgba({}, {}, {}, {opacity:.2})", self.0, self.1, self.2)
    }
}

/// Words and numbers in plots.
pub const INK: Colour = Colour(0x47, 0x55, 0x69);
/// Lines one measures against.
pub const MARK: Colour = Colour(0xdc, 0x26, 0x26);
/// Lines of the grid.
pub const GRID: Colour = Colour(0xe6, 0xea, 0xf0);
/// The axis.
pub const AXIS: Colour = Colour(0x94, 0xa3, 0xb8);

/// Policies that have a colour of their own. Distinguished by brightness too, for readers who do
/// not see all hues.
const POLICIES: [(&str, Colour); 7] = [
    ("local", Colour(0x64, 0x74, 0x8b)),
    ("local-split", Colour(0x0e, 0x7c, 0x9c)),
    ("edgepilot", Colour(0xe8, 0x7d, 0x0d)),
    ("eco", Colour(0x16, 0x96, 0x5f)),
    ("eco-gate", Colour(0x7c, 0xb5, 0x18)),
    ("eco-target", Colour(0x8b, 0x5c, 0xf6)),
    ("joint", Colour(0xd6, 0x2e, 0x74)),
];

/// For policies this page does not know, by their index.
const OTHERS: [Colour; 4] =
    [Colour(0x25, 0x63, 0xeb), Colour(0xb4, 0x53, 0x09), Colour(0x9d, 0x17, 0x4d), Colour(0x4d, 0x7c, 0x0f)];

/// The colour of the policy that is run at this index.
pub fn policy(name: &str, index: usize) -> Colour {
    POLICIES.iter().find(|(known, _)| *known == name).map_or(OTHERS[index % OTHERS.len()], |(_, colour)| *colour)
}

/// The colour of a target.
pub fn target(kind: TargetKind) -> Colour {
    match kind {
        TargetKind::Engine => Colour(0x16, 0x96, 0x5f),
        TargetKind::Rocksdb => Colour(0x64, 0x74, 0x8b),
        TargetKind::RocksdbBlob => Colour(0xe8, 0x7d, 0x0d),
        TargetKind::Resp => Colour(0x25, 0x63, 0xeb),
    }
}

/// Duties in the order they are stacked, idle last.
const DUTIES: [(&str, Colour); 15] = [
    ("foreground", Colour(0x3b, 0x82, 0xf6)),
    ("flush", Colour(0x22, 0xb8, 0xcf)),
    ("compaction", Colour(0xf5, 0x9e, 0x0b)),
    ("worker", Colour(0x8b, 0x5c, 0xf6)),
    ("transport", Colour(0xec, 0x48, 0x99)),
    ("replica", Colour(0x10, 0xb9, 0x81)),
    ("gc", Colour(0x84, 0xcc, 0x16)),
    ("coding", Colour(0xb4, 0x53, 0x09)),
    ("tiering", Colour(0x63, 0x66, 0xf1)),
    ("dedup", Colour(0x0f, 0x76, 0x6e)),
    ("read", Colour(0x06, 0x9b, 0xb4)),
    ("seed", Colour(0xd9, 0x77, 0x57)),
    ("scrub", Colour(0xa1, 0x62, 0x9c)),
    ("unattributed", Colour(0x7a, 0x86, 0x99)),
    ("idle", Colour(0xd5, 0xdc, 0xe6)),
];

/// The colour of a duty.
pub fn duty(name: &str) -> Colour {
    DUTIES.iter().find(|(known, _)| *known == name).map_or(AXIS, |(_, colour)| *colour)
}

/// The position of a duty in a stack; an unknown one comes before idle.
pub fn duty_place(name: &str) -> usize {
    DUTIES.iter().position(|(known, _)| *known == name).unwrap_or(DUTIES.len() - 2)
}
