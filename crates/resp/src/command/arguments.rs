//! The arguments of a command, as `COMMAND DOCS` states them: a tree, parsed from the usage text of
//! the command's entry in the table.
//!
//! A usage text reads like common usage lines. `key [LIMIT offset:integer
//! count:integer] (ASC | DESC)@2.0.0 value...`:
//!
//! ```text
//! usage    = { argument }
//! argument = ( value | "[" group "]" | "(" group ")" ) [ "..." ] [ since ]
//! value    = name [ "=" shown ] [ ":" type ]
//! group    = [ name ":" ] sequence { "|" sequence }
//! sequence = TOKEN [ since ] | [ TOKEN ] argument { argument }
//! since    = [ "@" version ] [ "!" version ]
//! ```
//!
//! - A **value** is of the type behind its last colon: `key`, `string`, `integer`, `double`,
//!   `unix-time`, `pattern`. Without one it is of the type that it is named after, or else a
//!   string. Keys are counted: the first belongs to key spec 0, and so on. After `=` comes what
//!   people are shown instead of a name that is only for programs.
//! - A **TOKEN**, in upper case or behind a `'`, is a word that the client sends as it is. It
//!   belongs to the whole sequence that it begins; alone it is an argument by itself, named as
//!   itself in lower case.
//! - `[...]` is **optional**, `...` behind an argument means **one or more**. Behind brackets that
//!   begin with a token the token is repeated with it (`[GET pattern]...`), within them it is not
//!   (`[GET pattern...]`).
//! - `a | b` is **one of** several. Several arguments of one sequence are a **block**, and so is
//!   the contents of `(...)` without a choice, even if it is one. Either is named by the name
//!   before it, or else by the names of its parts with `_` between them. So may a token be.
//! - `@` is the version of Redis that had it first, `!` the one from which on it was deprecated.
//!
//! What cannot be said, since no command here needs it: a token that is no word (`*`, `=`), a token
//! before an argument that must be given and is no choice, and two arguments of one key spec.
//!
//! Invariant: every usage text of the table can be parsed. A test does so with all of them, and
//! holds them against the arity and the keys that the table has beside them.

use std::borrow::Cow;

use super::Command;
use crate::protocol::reply::Reply;

/// Brackets within brackets: more is a slip, and must not be a matter of the stack.
const MAX_NESTED: usize = 8;

const TYPES: [&str; 6] = ["key", "string", "integer", "double", "unix-time", "pattern"];

/// What is wrong with a usage text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at} of the usage text: {what}")]
pub(super) struct UsageError {
    at: usize,
    what: &'static str,
}

type Parsed<T> = Result<T, UsageError>;

/// A usage text, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usage<'u> {
    arguments: Vec<Argument<'u>>,
    /// How many of them are keys; `key...` is one.
    pub(super) keys: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Argument<'u> {
    name: Cow<'u, str>,
    /// What people are shown instead.
    shown: Option<&'u str>,
    kind: Kind<'u>,
    token: Option<&'u str>,
    since: Option<&'u str>,
    deprecated_since: Option<&'u str>,
    is_optional: bool,
    is_multiple: bool,
    repeats_token: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind<'u> {
    Key {
        spec: usize,
    },
    /// Of a type that is not `key`.
    Value(&'u str),
    Token,
    OneOf(Vec<Argument<'u>>),
    Block(Vec<Argument<'u>>),
}

impl Usage<'static> {
    /// Of an entry of the table.
    pub(super) fn of(command: &Command) -> Self {
        Self::parse(command.usage).expect("a test parses every usage text of the table")
    }
}

impl<'u> Usage<'u> {
    /// # Errors
    ///
    /// The first byte that fits nowhere.
    pub(super) fn parse(text: &'u str) -> Parsed<Self> {
        let mut parser = Parser { text, at: 0, keys: 0, nested: 0 };
        let arguments = parser.arguments()?;
        match parser.peek() {
            "" => Ok(Self { arguments, keys: parser.keys }),
            "|" => Err(parser.error("a choice stands in brackets")),
            _ => Err(parser.error("this closes nothing")),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arguments.is_empty()
    }

    /// Writes the arguments as Redis does.
    pub(super) fn tell(&self, reply: &mut Reply) {
        tell_all(reply, &self.arguments);
    }
}

fn tell_all(reply: &mut Reply, arguments: &[Argument<'_>]) {
    reply.array(arguments.len());
    arguments.iter().for_each(|argument| argument.tell(reply));
}

impl<'u> Argument<'u> {
    fn new(name: impl Into<Cow<'u, str>>, kind: Kind<'u>) -> Self {
        Self {
            name: name.into(),
            shown: None,
            kind,
            token: None,
            since: None,
            deprecated_since: None,
            is_optional: false,
            is_multiple: false,
            repeats_token: false,
        }
    }

    /// A group of parts, by their names if it has none.
    fn group(name: Option<&'u str>, parts: Vec<Self>, kind: fn(Vec<Self>) -> Kind<'u>) -> Self {
        let joined = || parts.iter().map(|part| &*part.name).collect::<Vec<_>>().join("_").into();
        Self::new(name.map_or_else(joined, Cow::from), kind(parts))
    }

    fn tell(&self, reply: &mut Reply) {
        let (kind, spec, parts) = match &self.kind {
            Kind::Key { spec } => ("key", Some(*spec), None),
            Kind::Value(of) => (*of, None, None),
            Kind::Token => ("pure-token", None, None),
            Kind::OneOf(parts) => ("oneof", None, Some(parts)),
            Kind::Block(parts) => ("block", None, Some(parts)),
        };
        let begin = reply.begin();
        let mut told = 2;
        tell_text(reply, "name", &self.name);
        tell_text(reply, "type", kind);
        if parts.is_none() {
            tell_text(reply, "display_text", self.shown.unwrap_or(&self.name));
            told += 1;
        }
        if let Some(spec) = spec {
            reply.bulk_text("key_spec_index");
            reply.integer(spec as i64);
            told += 1;
        }
        let texts = [("token", self.token), ("since", self.since), ("deprecated_since", self.deprecated_since)];
        for (name, text) in texts {
            if let Some(text) = text {
                tell_text(reply, name, text);
                told += 1;
            }
        }
        let flags =
            [(self.is_optional, "optional"), (self.is_multiple, "multiple"), (self.repeats_token, "multiple_token")];
        let flags = flags.iter().filter(|(is_set, _)| *is_set);
        if flags.clone().next().is_some() {
            reply.bulk_text("flags");
            reply.set(flags.clone().count());
            flags.for_each(|(_, flag)| reply.simple(flag));
            told += 1;
        }
        if let Some(parts) = parts {
            reply.bulk_text("arguments");
            tell_all(reply, parts);
            told += 1;
        }
        reply.end_map(begin, told);
    }
}

fn tell_text(reply: &mut Reply, name: &str, text: &str) {
    reply.bulk_text(name);
    reply.bulk_text(text);
}

struct Parser<'u> {
    text: &'u str,
    /// Where the next lexeme is, or a space before it.
    at: usize,
    keys: usize,
    nested: usize,
}

impl<'u> Parser<'u> {
    fn error(&self, what: &'static str) -> UsageError {
        UsageError { at: self.at, what }
    }

    /// The next lexeme: a bracket, a bar, `...`, a version with its mark, or a word. Empty at the
    /// end.
    fn peek(&mut self) -> &'u str {
        let rest = self.text[self.at..].trim_start_matches(' ');
        self.at = self.text.len() - rest.len();
        let is_mark = |letter: char| "[]()|@! ".contains(letter);
        let until_mark = |text: &str| text.find(is_mark).unwrap_or(text.len());
        let end = match rest.chars().next() {
            Some('[' | ']' | '(' | ')' | '|') => 1,
            Some('@' | '!') => 1 + until_mark(&rest[1..]),
            _ if rest.starts_with("...") => 3,
            _ => until_mark(rest).min(rest.find("...").unwrap_or(rest.len())),
        };
        &rest[..end]
    }

    fn take(&mut self) -> &'u str {
        let lexeme = self.peek();
        self.at += lexeme.len();
        lexeme
    }

    fn take_if(&mut self, lexeme: &str) -> bool {
        let is_next = self.peek() == lexeme;
        if is_next {
            self.take();
        }
        is_next
    }

    /// Until something closes, another choice begins, or the end.
    fn arguments(&mut self) -> Parsed<Vec<Argument<'u>>> {
        let mut arguments = Vec::new();
        while !matches!(self.peek(), "" | "]" | ")" | "|") {
            arguments.push(self.argument()?);
        }
        Ok(arguments)
    }

    fn argument(&mut self) -> Parsed<Argument<'u>> {
        let mut argument = if self.take_if("[") {
            let mut inner = self.group("]")?;
            if inner.is_optional {
                return Err(self.error("this is optional already"));
            }
            inner.is_optional = true;
            inner
        } else if self.take_if("(") {
            self.group(")")?
        } else {
            self.value()?
        };
        if self.peek() == "..." {
            if argument.is_multiple {
                return Err(self.error("this is one or more already"));
            }
            self.take();
            argument.is_multiple = true;
            argument.repeats_token = argument.token.is_some();
        }
        self.since(&mut argument)?;
        Ok(argument)
    }

    fn since(&mut self, argument: &mut Argument<'u>) -> Parsed<()> {
        for (mark, version) in [('@', &mut argument.since), ('!', &mut argument.deprecated_since)] {
            let Some(text) = self.peek().strip_prefix(mark) else { continue };
            let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if text.split('.').count() != 3 || !text.split('.').all(is_number) {
                return Err(self.error("a version has three numbers"));
            }
            if version.replace(text).is_some() {
                return Err(self.error("this has a version already"));
            }
            self.take();
        }
        Ok(())
    }

    fn value(&mut self) -> Parsed<Argument<'u>> {
        let word = self.peek();
        let (name, of) = match word.rsplit_once(':') {
            Some((name, of)) if TYPES.contains(&of) => (name, of),
            Some(_) => return Err(self.error("there is no such type")),
            None if TYPES.contains(&word) => (word, word),
            None => (word, "string"),
        };
        let (name, shown) = name.split_once('=').map_or((name, None), |(name, shown)| (name, Some(shown)));
        if !is_name(name) || !shown.is_none_or(is_name) {
            return Err(self.error("here a name should stand; a token begins its brackets"));
        }
        self.take();
        let kind = if of == "key" {
            self.keys += 1;
            Kind::Key { spec: self.keys - 1 }
        } else {
            Kind::Value(of)
        };
        Ok(Argument { shown, ..Argument::new(name, kind) })
    }

    /// The contents after an opening bracket, and the one that closes it.
    fn group(&mut self, close: &str) -> Parsed<Argument<'u>> {
        if self.nested == MAX_NESTED {
            return Err(self.error("these are too many brackets within brackets"));
        }
        self.nested += 1;
        let name = match self.peek().strip_suffix(':') {
            Some(name) if !is_name(name) => return Err(self.error("this cannot be the name of a group")),
            name => name,
        };
        if name.is_some() {
            self.take();
        }
        let mut sequences = vec![self.sequence()?];
        while self.take_if("|") {
            sequences.push(self.sequence()?);
        }
        let group = match <[Sequence<'_>; 1]>::try_from(sequences) {
            Ok([only]) => self.single(name, only, close == ")")?,
            Err(several) => {
                let choices = several.into_iter().map(|sequence| self.single(None, sequence, false));
                Argument::group(name, choices.collect::<Parsed<_>>()?, Kind::OneOf)
            }
        };
        if !self.take_if(close) {
            return Err(self.error("here the brackets should close"));
        }
        self.nested -= 1;
        Ok(group)
    }

    fn sequence(&mut self) -> Parsed<Sequence<'u>> {
        let word = self.peek();
        if !is_token(word) {
            return Ok(Sequence { token: None, parts: self.arguments()? });
        }
        self.take();
        let word = word.trim_start_matches('\'');
        let mut alone = Argument::new(word.to_ascii_lowercase(), Kind::Token);
        alone.token = Some(word);
        self.since(&mut alone)?;
        let parts = self.arguments()?;
        if parts.is_empty() {
            return Ok(Sequence { token: None, parts: vec![alone] });
        }
        if alone.since.is_some() || alone.deprecated_since.is_some() {
            return Err(self.error("the version of a token stands behind what follows it"));
        }
        Ok(Sequence { token: Some(word), parts })
    }

    /// The one argument that a sequence is.
    fn single(&self, name: Option<&'u str>, sequence: Sequence<'u>, is_block: bool) -> Parsed<Argument<'u>> {
        let Sequence { token, mut parts } = sequence;
        let mut argument = match parts.pop() {
            None => return Err(self.error("there is nothing in here")),
            Some(only) if parts.is_empty() && !is_block => only,
            Some(last) => {
                parts.push(last);
                let mut block = Argument::group(name, parts, Kind::Block);
                block.token = token;
                return Ok(block);
            }
        };
        if let Some(name) = name {
            if argument.kind != Kind::Token {
                return Err(self.error("this has a name already"));
            }
            argument.name = name.into();
        }
        if token.is_some() {
            if argument.token.is_some() || argument.is_optional {
                return Err(self.error("a token stands before a value, a block or a choice"));
            }
            argument.token = token;
        }
        Ok(argument)
    }
}

/// The contents between two bars, or brackets.
struct Sequence<'u> {
    /// Where it is not the only part.
    token: Option<&'u str>,
    parts: Vec<Argument<'u>>,
}

/// Names may have `:` and `/` in them, as in `ip:port`.
fn is_name(word: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_:/".contains(&byte);
    let has_ends = word.starts_with(|first: char| first.is_ascii_lowercase()) && !word.ends_with(':');
    has_ends && word.bytes().all(is_letter)
}

fn is_token(word: &str) -> bool {
    if let Some(word) = word.strip_prefix('\'') {
        return is_name(word);
    }
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-';
    word.starts_with(|first: char| first.is_ascii_uppercase()) && word.bytes().all(is_letter)
}

#[cfg(test)]
mod tests;
