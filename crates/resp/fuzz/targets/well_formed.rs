//! Whether bytes are one answer of the protocol, in the version that the client speaks.

use ecotone_resp::protocol::reply::Version;

/// The length of the answer that `bytes` begin with; none if that is no answer.
pub fn answer(bytes: &[u8], version: Version) -> Option<usize> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (kind, text) = bytes[..line].split_first()?;
    let after = line + 2;
    if text.contains(&b'\n') {
        return None;
    }
    let is_third = version == Version::Resp3;
    match kind {
        b'+' => Some(after),
        b'-' => (!text.is_empty() && text[0].is_ascii_uppercase()).then_some(after),
        b':' => number(text).map(|_| after),
        b'$' | b'*' if text == b"-1" => (!is_third).then_some(after),
        b'$' => blob(bytes, after, text),
        b'*' => elements(bytes, after, number(text)?, version),
        b'=' if is_third => blob(bytes, after, text),
        b'_' if is_third => text.is_empty().then_some(after),
        b'#' if is_third => matches!(text, b"t" | b"f").then_some(after),
        b',' if is_third => std::str::from_utf8(text).ok()?.parse::<f64>().ok().map(|_| after),
        b'(' if is_third => text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-').then_some(after),
        b'%' if is_third => elements(bytes, after, number(text)?.checked_mul(2)?, version),
        b'~' | b'>' if is_third => elements(bytes, after, number(text)?, version),
        _ => None,
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn blob(bytes: &[u8], begin: usize, length: &[u8]) -> Option<usize> {
    let end = begin.checked_add(usize::try_from(number(length)?).ok()?)?;
    (bytes.get(end..end + 2)? == b"\r\n").then_some(end + 2)
}

fn elements(bytes: &[u8], begin: usize, count: i64, version: Version) -> Option<usize> {
    let mut end = begin;
    for _ in 0..u64::try_from(count).ok()? {
        end += answer(&bytes[end..], version)?;
    }
    Some(end)
}
