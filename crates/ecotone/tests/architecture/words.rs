//! Words that only this project had, and what the field calls the same. They must not come back.

use super::rust::{Token, tokens};
use super::{assert_none, crates_dir, files, read, shown};

/// What no identifier may have among its parts, and what to say instead.
const PARTS: &[(&str, &str)] = &[
    ("cohort", "GC candidates"),
    ("heard", "sample, report or stats"),
    ("lane", "event loop"),
    ("lanes", "event loops"),
    ("pledge", "reservation"),
    ("pledges", "reservations"),
    ("relocation", "gc"),
    ("seat", "connection slot"),
    ("setback", "failure"),
    ("slab", "merge candidate"),
    ("undecided", "uncommitted"),
];

/// What no identifier may be.
const WHOLE: &[(&str, &str)] = &[
    ("DataLayer", "ValueStore"),
    ("Face", "status endpoint"),
    ("Gate", "AdmissionControl"),
    ("Room", "FreeSpace"),
    ("Ticket", "commit future"),
    ("Told", "what it is: a sample, a report, stats"),
    ("Turn", "Permit"),
    ("Wake", "Notifier"),
    ("put_off", "deferred"),
    ("own_compactions", "internal compactions"),
];

#[test]
fn the_fields_words_are_used() {
    let mut wrong = Vec::new();
    for file in files(&crates_dir(), &["rs"]) {
        let path = shown(&file);
        if !path.contains("/src/") {
            continue;
        }
        let text = read(&file);
        for (line, token) in tokens(&text) {
            let Token::Word(word) = token else { continue };
            let whole = WHOLE.iter().find(|(private, _)| *private == word);
            let found = whole.or_else(|| {
                if is_constant(word) && parts(word).any(|part| part == "most" || part == "least") {
                    return Some(&("MOST_ or LEAST_", "MAX_ or MIN_"));
                }
                // Names of tests are sentences.
                let is_sentence = word.matches('_').count() > 3;
                PARTS.iter().filter(|_| !is_sentence).find(|(private, _)| parts(word).any(|part| part == *private))
            });
            if let Some((private, instead)) = found {
                wrong.push(format!("{path}:{line}: {word}: say `{instead}` instead of `{private}`"));
            }
        }
    }
    assert_none(&wrong);
}

fn is_constant(identifier: &str) -> bool {
    identifier.chars().all(|letter| letter == '_' || letter.is_ascii_digit() || letter.is_ascii_uppercase())
}

/// The words that an identifier consists of, in lower case.
fn parts(identifier: &str) -> impl Iterator<Item = String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            parts.push(String::new());
        }
        was_lower = letter.is_lowercase();
        if letter != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(letter.to_lowercase());
        }
    }
    parts.into_iter()
}

#[test]
fn identifiers_fall_into_their_words() {
    let of = |identifier| parts(identifier).collect::<Vec<_>>();
    assert_eq!(of("MAX_OPEN_FILES"), ["max", "open", "files"]);
    assert_eq!(of("EventLoops"), ["event", "loops"]);
    assert_eq!(of("_unused"), ["", "unused"]);
}
