//! One setting: its name, its values, and what it is for.
//!
//! Every value has a text, the same in the file, the environment, the command line and `CONFIG
//! SET`; a [`Kind`] says which texts are values, and how they are written in the file.

use std::net::SocketAddr;

use toml::de::DeValue;

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// Section and name with a point between, such as `clients.max_clients`.
    pub path: String,
    /// The values it may have.
    pub kind: Kind,
    /// What holds where nothing is said; empty: nothing.
    pub default: String,
    /// What a number counts; empty for none.
    pub unit: &'static str,
    /// What it is for, in whole sentences.
    pub about: String,
    /// Whether `CONFIG SET` can change it while the server runs.
    pub is_live: bool,
}

/// The values of a key.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A whole number, both ends included, or one of some words instead.
    Whole {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// Such as `off`; none where there must be a number.
        words: &'static [&'static str],
    },
    /// A number, both ends included.
    Real {
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
    /// `true` or `false`.
    Flag,
    /// One of these words.
    OneOf(Vec<&'static str>),
    /// An address and a port.
    Address,
    /// Some of them, with commas between, or `off`.
    Addresses,
    /// A text, or none.
    Text {
        /// What kind of text, such as `a path`.
        what: &'static str,
        /// Whether this is one; it is not asked about the empty text.
        is_one: fn(&str) -> bool,
    },
}

/// The word for an [`Addresses`](Kind::Addresses) that are none.
pub(crate) const OFF: &str = "off";

/// The word for what is switched on.
pub(crate) const ON: &str = "on";

impl Key {
    /// The section of the file it belongs to.
    pub fn section(&self) -> &str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Its name within that section.
    pub fn name(&self) -> &str {
        self.path.split_once('.').map_or(&self.path, |(_, name)| name)
    }

    /// The variable of the environment that sets it.
    pub fn variable(&self) -> String {
        format!("ECOTONE_{}", self.path.replace('.', "_").to_uppercase())
    }
}

impl Kind {
    /// Refuses a text that is no value. The reason goes on after the text: "must be ...".
    ///
    /// # Errors
    ///
    /// What it must be.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let is_value = match self {
            Self::Whole { least, most, words } => {
                words.contains(&text) || parse_whole(text).is_some_and(|number| (*least..=*most).contains(&number))
            }
            Self::Real { least, most } => {
                text.parse::<f64>().is_ok_and(|number| number.is_finite() && (*least..=*most).contains(&number))
            }
            Self::Flag => text.parse::<bool>().is_ok(),
            Self::OneOf(words) => words.contains(&text),
            Self::Address => text.parse::<SocketAddr>().is_ok(),
            Self::Addresses => text == OFF || addresses(text).is_some(),
            Self::Text { is_one, .. } => text.is_empty() || is_one(text),
        };
        if is_value { Ok(()) } else { Err(format!("must be {}", self.range())) }
    }

    /// Its values, in words.
    pub fn range(&self) -> String {
        match self {
            Self::Whole { least, most, words } => {
                let number = format!("a whole number from {least} to {most}");
                match words.split_last() {
                    None => number,
                    Some((word, [])) => format!("{number}, or {word}"),
                    Some((last, others)) => format!("{number}, {} or {last}", others.join(", ")),
                }
            }
            Self::Real { least, most } => format!("a number from {least} to {most}"),
            Self::Flag => "true or false".into(),
            Self::OneOf(words) => match words.split_last() {
                Some((last, [])) => (*last).into(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            },
            Self::Address => "an address and a port, such as 127.0.0.1:7411".into(),
            Self::Addresses => "addresses with their ports, such as 127.0.0.1:6379, or off".into(),
            Self::Text { what, .. } => (*what).into(),
        }
    }

    /// The text of a value in the file.
    ///
    /// # Errors
    ///
    /// What it must be: it is of another type.
    pub(super) fn text_of(&self, value: &DeValue<'_>) -> Result<String, String> {
        let text = match (self, value) {
            (Self::Whole { words: [_, ..], .. }, DeValue::String(text)) if text.parse::<f64>().is_err() => {
                Some(text.to_string())
            }
            (Self::Whole { .. } | Self::Real { .. }, DeValue::Integer(number)) => {
                i128::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
            }
            (Self::Real { .. }, DeValue::Float(number)) => Some(number.as_str().into()),
            (Self::Flag, DeValue::Boolean(flag)) => Some(flag.to_string()),
            (Self::OneOf(_) | Self::Address | Self::Addresses | Self::Text { .. }, DeValue::String(text)) => {
                Some(text.to_string())
            }
            (Self::Addresses, DeValue::Array(items)) => {
                items.iter().map(|item| item.get_ref().as_str()).collect::<Option<Vec<_>>>().map(|all| all.join(","))
            }
            _ => None,
        };
        let text = text.ok_or_else(|| format!("must be {}{}", self.range(), self.quotes(value)))?;
        self.check(&text).map(|()| text)
    }

    /// What is wrong with the quotes of `value`, if that is what is wrong.
    fn quotes(&self, value: &DeValue<'_>) -> &'static str {
        match (self, value) {
            (Self::Whole { words: [_, ..], .. }, DeValue::String(_)) => " (the word in quotes, the number without)",
            (Self::Whole { .. } | Self::Real { .. } | Self::Flag, DeValue::String(_)) => ", without quotes",
            (Self::Whole { .. } | Self::Real { .. } | Self::Flag, _) => "",
            _ => ", in quotes",
        }
    }

    /// How `text`, which is a value, is written in the file.
    pub(super) fn literal(&self, text: &str) -> String {
        match self {
            Self::Whole { .. } if text.parse::<u64>().is_ok() => text.into(),
            Self::Real { .. } | Self::Flag => text.into(),
            Self::Addresses if text != OFF => {
                let all: Vec<String> = text.split(',').map(|one| quoted(one.trim())).collect();
                format!("[{}]", all.join(", "))
            }
            _ => quoted(text),
        }
    }
}

/// In one line, whatever it contains.
fn quoted(text: &str) -> String {
    if !text.contains(char::is_control) {
        return toml::Value::String(text.into()).to_string();
    }
    let escaped = text.chars().map(|char| match char {
        '"' | '\\' => format!("\\{char}"),
        _ if char.is_control() => format!("\\u{:04X}", u32::from(char)),
        _ => char.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// A number as people and TOML write it: digits alone, and no zero before others.
fn parse_whole(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The addresses of a list; `None` where one is none, or there is none.
pub(crate) fn addresses(text: &str) -> Option<Vec<SocketAddr>> {
    text.split(',').map(|one| one.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_within_their_range_only() {
        let kind = Kind::Whole { least: 1, most: 10, words: &["off"] };
        for good in ["1", "10", "off"] {
            assert_eq!(kind.check(good), Ok(()), "{good}");
        }
        for wrong in ["0", "11", "007", "-1", "+1", "1.0", "", " 1", "1k", "Off", "auto", "99999999999999999999999"] {
            assert_eq!(kind.check(wrong).unwrap_err(), "must be a whole number from 1 to 10, or off", "{wrong}");
        }
        let kind = Kind::Real { least: 0.0, most: 5.5 };
        for wrong in ["-0.1", "5.6", "nan", "inf", "", "much"] {
            assert!(kind.check(wrong).is_err(), "{wrong}");
        }
        assert_eq!(kind.check("5.5"), Ok(()));
        let kind = Kind::Whole { least: 2, most: 100, words: &["auto", "off"] };
        assert_eq!([kind.check("2"), kind.check("auto"), kind.check("off")], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(kind.check("on").unwrap_err(), "must be a whole number from 2 to 100, auto or off");
    }

    #[test]
    fn addresses_need_ports_and_names_are_none() {
        for good in ["off", "127.0.0.1:0", "[::1]:6379", "127.0.0.1:1,[::1]:2", "127.0.0.1:1, 127.0.0.1:2"] {
            assert_eq!(Kind::Addresses.check(good), Ok(()), "{good}");
        }
        for wrong in ["", "127.0.0.1", "localhost:6379", "127.0.0.1:65536", "127.0.0.1:1,", "127.0.0.1:1,off"] {
            assert!(Kind::Addresses.check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_stands_in_the_file_as_what_it_is() {
        assert_eq!(Kind::Flag.literal("true"), "true");
        assert_eq!(Kind::Whole { least: 0, most: 9, words: &["off"] }.literal("off"), "\"off\"");
        assert_eq!(Kind::Addresses.literal("127.0.0.1:1,[::1]:2"), "[\"127.0.0.1:1\", \"[::1]:2\"]");
        let any = Kind::Text { what: "a text", is_one: |_| true };
        assert_eq!(any.literal("a\"b\\c"), "'a\"b\\c'");
        assert_eq!(any.literal("a\tb\n\0\"\\\u{85}"), r#""a\u0009b\u000A\u0000\"\\\u0085""#);
    }
}
