//! What a request is answered.

use std::time::Instant;

use super::face::Face;
use super::head::{Refusal, Request};

/// The paths there are, for who asks for another one.
const HINT: &str = "there are /metrics (Prometheus), /healthz and /readyz (both also with ?json)\n";

const TEXT: &str = "text/plain; charset=utf-8";

/// The format of Prometheus' text, version 0.0.4.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bytes to send: status, headers and, unless it was a HEAD, the body. With a refusal comes whether it was one.
pub(super) fn answer(face: &Face, request: Result<&Request, (Refusal, bool)>) -> Vec<u8> {
    let request = match request {
        Ok(request) => request,
        Err((refusal, is_head)) => return refuse(refusal, is_head),
    };
    let now = Instant::now();
    let wants_json = request.accepts_json || request.query.split('&').any(|word| word == "json" || word == "json=1");
    let (status, kind, body) = match request.path.as_str() {
        "/metrics" => (200, METRICS, face.metrics(now)),
        "/healthz" => state(&face.hanging(now), "ok", "hangs", wants_json),
        "/readyz" => state(&face.unready(now), "ready", "not ready", wants_json),
        _ => (404, TEXT, format!("there is nothing here: {HINT}")),
    };
    response(status, kind, &body, request.is_head, "")
}

fn state(reasons: &[String], good: &str, bad: &str, wants_json: bool) -> (u16, &'static str, String) {
    let status = if reasons.is_empty() { 200 } else { 503 };
    let word = if reasons.is_empty() { good } else { bad };
    if wants_json {
        let reasons: Vec<String> = reasons.iter().map(|reason| json_text(reason)).collect();
        let body = format!("{{\"status\":{},\"reasons\":[{}]}}\n", json_text(word), reasons.join(","));
        return (status, "application/json", body);
    }
    match reasons {
        [] => (status, TEXT, format!("{word}\n")),
        // One line, whatever stands in a reason.
        _ => (status, TEXT, format!("{word}: {}\n", reasons.join("; ").replace(['\r', '\n'], " "))),
    }
}

fn json_text(text: &str) -> String {
    let mut json = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if control.is_control() => json.push_str(&format!("\\u{:04x}", control as u32)),
            other => json.push(other),
        }
    }
    json + "\""
}

fn refuse(refusal: Refusal, is_head: bool) -> Vec<u8> {
    let (status, body, header) = match refusal {
        Refusal::Malformed(why) => (400, format!("this is no request: {why}\n"), ""),
        Refusal::Version => (505, "HTTP/1.0 and HTTP/1.1 are spoken here\n".into(), ""),
        Refusal::Method => (405, format!("GET and HEAD only; {HINT}"), "Allow: GET, HEAD\r\n"),
        Refusal::TooSlow => (408, "the request has not come in time\n".into(), ""),
        Refusal::TooLong => (431, "the head of the request is too long\n".into(), ""),
    };
    response(status, TEXT, &body, is_head, header)
}

fn response(status: u16, kind: &str, body: &str, is_head: bool, header: &str) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n{header}\r\n",
        body.len()
    );
    let mut bytes = head.into_bytes();
    if !is_head {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, is_head: bool) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let request = Request { path: path.into(), query: query.into(), is_head, accepts_json: false };
        String::from_utf8(answer(&Face::default(), Ok(&request))).unwrap()
    }

    #[test]
    fn a_server_that_opens_lives_and_is_not_ready() {
        assert!(get("/healthz", false).starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(get("/healthz", false).ends_with("\r\n\r\nok\n"));
        let unready = get("/readyz", false);
        assert!(unready.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{unready}");
        assert!(unready.ends_with("\r\n\r\nnot ready: the store is being opened\n"), "{unready}");
        let json = get("/readyz?json", false);
        assert!(json.contains("Content-Type: application/json\r\n"), "{json}");
        assert!(json.ends_with("\r\n\r\n{\"status\":\"not ready\",\"reasons\":[\"the store is being opened\"]}\n"));
        assert!(get("/metrics", false).contains("\necotone_ready 0\n"));
    }

    #[test]
    fn a_head_is_answered_as_a_get_without_the_body() {
        for path in ["/metrics", "/healthz", "/readyz", "/other"] {
            let (head, get) = (get(path, true), get(path, false));
            assert!(head.ends_with("\r\n\r\n"), "{head}");
            let status = |answer: &str| answer.lines().next().unwrap().to_owned();
            assert_eq!(status(&head), status(&get));
        }
        assert!(get("/other", false).contains("404 Not Found") && get("/", false).contains("/metrics"));
    }

    #[test]
    fn a_text_of_json_holds_anything() {
        assert_eq!(json_text("a\"b\\c\nd\u{e9}"), "\"a\\\"b\\\\c\\u000ad\u{e9}\"");
    }
}
