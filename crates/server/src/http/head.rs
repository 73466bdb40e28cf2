//! The head of a request: what is asked for, and how the answer is wanted.

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Without the query.
    pub(super) path: String,
    /// Behind the `?`.
    pub(super) query: String,
    /// The answer is to have no body.
    pub(super) is_head: bool,
    /// The answer is wanted in JSON, by the header `Accept`.
    pub(super) accepts_json: bool,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This is not HTTP.
    Malformed(&'static str),
    /// It is another HTTP than 1.0 or 1.1.
    Version,
    /// It is neither GET nor HEAD.
    Method,
    /// The head has not come in time.
    TooSlow,
    /// The head is longer than it may be.
    TooLong,
}

/// Where the head in `bytes` ends, its empty line included; `None` where it has not come as a whole. What stands behind is no concern of ours.
pub(super) fn end(bytes: &[u8]) -> Option<usize> {
    let ends = |line: &[u8]| bytes.windows(line.len()).position(|end| end == line).map(|at| at + line.len());
    ends(b"\r\n\r\n").into_iter().chain(ends(b"\n\n")).min()
}

/// Whether the answer to `head` is to have no body, however much of the rest is wrong.
pub(super) fn is_head(head: &[u8]) -> bool {
    head.starts_with(b"HEAD ")
}

/// Reads a whole head, and nothing behind it.
pub(super) fn parse(head: &[u8]) -> Result<Request, Refusal> {
    let text = std::str::from_utf8(head).map_err(|_| Refusal::Malformed("the head is no text"))?;
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed("the first line is not METHOD TARGET VERSION"));
    };
    match version {
        "HTTP/1.1" | "HTTP/1.0" => {}
        other if other.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::Malformed("the first line is not METHOD TARGET VERSION")),
    }
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Err(Refusal::Method),
    };
    // Proxies are asked with the whole address.
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    if !target.starts_with('/') {
        return Err(Refusal::Malformed("the target is no path"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut accepts_json = false;
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed("a header is not NAME: VALUE"))?;
        accepts_json |= name.eq_ignore_ascii_case("accept") && value.to_ascii_lowercase().contains("application/json");
    }
    Ok(Request { path: path.into(), query: query.into(), is_head, accepts_json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood() {
        let of = |head: &str| parse(head.as_bytes());
        let request =
            of("GET /readyz?json HTTP/1.1\r\nHost: a\r\nACCEPT: text/html, Application/JSON\r\n\r\n").unwrap();
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/readyz", "json"));
        assert!(request.accepts_json && !request.is_head);
        let request = of("HEAD http://host:1/metrics HTTP/1.0\n\n").unwrap();
        assert_eq!((request.path.as_str(), request.is_head, request.accepts_json), ("/metrics", true, false));
        assert_eq!(of("GET http://host HTTP/1.1\r\n\r\n").unwrap().path, "/");
    }

    #[test]
    fn what_is_no_request_for_this_server_is_refused() {
        let malformed = |head: &[u8]| matches!(parse(head), Err(Refusal::Malformed(_)));
        for head in
            ["", "\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET / FTP\r\n\r\n", "GET * HTTP/1.1\r\n\r\n"]
        {
            assert!(malformed(head.as_bytes()), "{head:?}");
        }
        assert!(malformed(b"GET /\xff HTTP/1.1\r\n\r\n"));
        assert!(malformed(b"GET / HTTP/1.1\r\nno header\r\n\r\n"));
        assert!(malformed(b"*1\r\n$4\r\nPING\r\n\r\n"));
        assert_eq!(parse(b"GET / HTTP/2.0\r\n\r\n"), Err(Refusal::Version));
        for method in ["POST", "get", "DELETE", "OPTIONS"] {
            assert_eq!(parse(format!("{method} / HTTP/1.1\r\n\r\n").as_bytes()), Err(Refusal::Method));
        }
    }

    #[test]
    fn a_head_ends_at_its_first_empty_line() {
        for (head, rest) in [
            ("GET / HTTP/1.1\r\n\r\n", ""),
            ("GET / HTTP/1.0\n\n", ""),
            ("GET / HTTP/1.1\r\nA: b\r\n\r\n", "rest"),
            ("GET / HTTP/1.1\n\n", "a\r\n\r\nb"),
            ("GET / HTTP/1.1\r\n\r\n", "a\n\nb"),
        ] {
            assert_eq!(end(format!("{head}{rest}").as_bytes()), Some(head.len()), "{head:?} {rest:?}");
            assert!(parse(head.as_bytes()).is_ok(), "{head:?}");
        }
        for part in ["", "GET / HTTP/1.1", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nA: b\r\n\r"] {
            assert_eq!(end(part.as_bytes()), None, "{part:?}");
        }
    }
}
