//! A small reader of Rust: enough to tell code from comments and strings.

#[derive(Debug, PartialEq)]
pub enum Token<'a> {
    /// An identifier, a keyword or a number.
    Word(&'a str),
    /// A string literal of any kind; what it says does not matter here.
    Text,
    /// Any other character; `::` is [`Token::Path`].
    Sign(char),
    /// `::`
    Path,
}

/// The tokens of `source`, each with its line (from 1).
pub fn tokens(source: &str) -> Vec<(usize, Token<'_>)> {
    let mut found = Vec::new();
    let mut rest = source;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let (length, token) = next_token(rest, first);
        let (token_text, tail) = rest.split_at(length);
        if let Some(token) = token {
            found.push((line, token));
        }
        line += token_text.matches('\n').count();
        rest = tail;
    }
    found
}

/// The bytes that the token at the beginning of `rest` takes, and the token, if it is one that
/// matters.
fn next_token(rest: &str, first: char) -> (usize, Option<Token<'_>>) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), None);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), None);
    }
    if let Some(length) = string_literal(rest) {
        return (length, Some(Token::Text));
    }
    if first == '\'' {
        return (quoted_char(rest).unwrap_or(1), None);
    }
    if first == '_' || first.is_alphanumeric() {
        let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        return (length, Some(Token::Word(&rest[..length])));
    }
    if rest.starts_with("::") {
        return (2, Some(Token::Path));
    }
    (first.len_utf8(), (!first.is_whitespace()).then_some(Token::Sign(first)))
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a string literal (`"`, `r"`, `r#"`, with `b` or `c` before them) at the beginning
/// of `rest`.
fn string_literal(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inside = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let closed = inside.find(&end).map_or(inside.len(), |at| at + end.len());
        return Some(rest.len() - inside.len() + closed);
    }
    let inside = body.strip_prefix('"')?;
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(rest.len() - inside.len() + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The length of a character literal; `None` for a lifetime.
fn quoted_char(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        let (_, _escaped) = chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}
