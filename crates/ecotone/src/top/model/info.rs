//! The text of INFO as names and values. The server may be anybody: what it says is bounded, and
//! nothing of it that steers a terminal passes.

use std::collections::BTreeMap;

/// Lines that are read; the largest federation has a few hundred.
const MAX_LINES: usize = 8192;

/// Characters that are kept of a name or a value of one field.
const MAX_CHARACTERS: usize = 256;

/// The answer to INFO.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::top) struct Info(BTreeMap<String, String>);

impl Info {
    /// Reads `name:value` lines; headings and what is neither are passed over.
    pub(in crate::top) fn parse(text: &str) -> Self {
        let pairs = text.lines().take(MAX_LINES).filter_map(|line| line.split_once(':'));
        Self(
            pairs.filter(|(name, _)| !name.starts_with('#')).map(|(name, value)| (clean(name), value.into())).collect(),
        )
    }

    /// The value of a line, fit to be shown; `None` where it is missing or empty.
    pub(in crate::top) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| clean(value.trim())).filter(|value| !value.is_empty())
    }

    /// The count of a line.
    pub(in crate::top) fn count(&self, name: &str) -> Option<u64> {
        count(self.0.get(name)?)
    }

    /// The lines whose names begin with `prefix`: the rest of the name, and the value as it came.
    pub(in crate::top) fn beginning(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.range(prefix.to_owned()..).take_while(move |(name, _)| name.starts_with(prefix));
        all.map(move |(name, value)| (&name[prefix.len()..], value.as_str()))
    }
}

/// A number from zero on; nothing else is a figure of a server.
pub(in crate::top) fn number(value: &str) -> Option<f64> {
    value.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// A whole number from zero on.
pub(in crate::top) fn count(value: &str) -> Option<u64> {
    value.trim().parse().ok()
}

/// The fields of `name=value,name=value`. In values `%2C` is a comma, and so on.
pub(in crate::top) fn fields(value: &str) -> BTreeMap<&str, String> {
    value.split(',').filter_map(|field| field.split_once('=')).map(|(name, value)| (name, decoded(value))).collect()
}

/// Without control characters, marks that change the direction of writing, and characters without
/// width; and not too long.
pub(in crate::top) fn clean(text: &str) -> String {
    let is_harmless = |character: char| {
        !character.is_control()
            && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}')
            && !matches!(character, '\u{e0000}'..='\u{e007f}' | '\u{fff9}'..='\u{fffb}')
    };
    text.chars().take(MAX_CHARACTERS).map(|character| if is_harmless(character) { character } else { '?' }).collect()
}

fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    clean(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_is_none_is_passed_over() {
        let info = Info::parse(
            "# Server\r\nredis_version:7.0.15\r\n\r\nnonsense\r\nup:12\r\nlevel0:tables=3,bytes=9\r\nx:\r\n",
        );
        assert_eq!(info.text("redis_version").as_deref(), Some("7.0.15"));
        assert_eq!((info.count("up"), info.text("x")), (Some(12), None));
        assert_eq!(info.beginning("lev").collect::<Vec<_>>(), [("el0", "tables=3,bytes=9")]);
    }

    #[test]
    fn a_name_cannot_forge_a_field_or_steer_a_terminal() {
        let fields = fields("name=a%2Cl0_tables%3D9%1B[2J,address=x%,l0_tables=1,%zz=1");
        assert_eq!(fields["name"], "a,l0_tables=9?[2J");
        assert_eq!((fields["address"].as_str(), fields["l0_tables"].as_str()), ("x%", "1"));
        assert_eq!(clean("a\u{1b}]0;t\u{7}\u{202e}b\u{9b}1m"), "a?]0;t??b?1m");
        assert_eq!(clean(&"x".repeat(1 << 20)).len(), MAX_CHARACTERS);
    }

    #[test]
    fn what_is_no_figure_is_none() {
        for wrong in ["", "-1", "nan", "inf", "-inf", "1e999", "0x10", "١"] {
            assert_eq!(number(wrong), None, "{wrong}");
            assert_eq!(count(wrong), None, "{wrong}");
        }
        assert_eq!(count("18446744073709551616"), None);
    }
}
