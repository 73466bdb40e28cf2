//! The answer to each request.

use std::time::Instant;

use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode};

use super::status::ServerStatus;
use super::{health, metrics};

/// The paths there are, for who asks for another one.
const HINT: &str = "there are /metrics (Prometheus), /healthz and /readyz (both also with ?json)\n";

const TEXT: &str = "text/plain; charset=utf-8";

/// The format of Prometheus' text, version 0.0.4.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer to a request, whose body does not matter.
pub(super) fn answer<B>(status: &ServerStatus, request: &Request<B>) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, format!("GET and HEAD only; {HINT}"));
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let (now, target) = (Instant::now(), request.uri());
    let wants_json = accepts_json(request)
        || target.query().unwrap_or_default().split('&').any(|word| word == "json" || word == "json=1");
    match target.path() {
        "/metrics" => response(StatusCode::OK, METRICS, metrics::page(status, now)),
        "/healthz" => state(&health::hanging(&status.phase(), now), "ok", "hangs", wants_json),
        "/readyz" => state(&health::unready(&status.phase(), now), "ready", "not ready", wants_json),
        path if path.starts_with('/') => text(StatusCode::NOT_FOUND, format!("there is nothing here: {HINT}")),
        _ => malformed("the target is no path"),
    }
}

/// The answer to what is no request.
pub(super) fn malformed(why: &str) -> Response<String> {
    text(StatusCode::BAD_REQUEST, format!("this is no request: {why}\n"))
}

/// An answer in plain text.
pub(super) fn text(status: StatusCode, body: impl Into<String>) -> Response<String> {
    response(status, TEXT, body.into())
}

fn accepts_json<B>(request: &Request<B>) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.to_ascii_lowercase().contains("application/json"))
}

fn state(reasons: &[String], good: &str, bad: &str, wants_json: bool) -> Response<String> {
    let (status, word) = match reasons {
        [] => (StatusCode::OK, good),
        _ => (StatusCode::SERVICE_UNAVAILABLE, bad),
    };
    if wants_json {
        let body = serde_json::json!({ "status": word, "reasons": reasons });
        return response(status, "application/json", format!("{body}\n"));
    }
    match reasons {
        [] => text(status, format!("{word}\n")),
        // One line, whatever a reason holds.
        _ => text(status, format!("{word}: {}\n", reasons.join("; ").replace(['\r', '\n'], " "))),
    }
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers =
        [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (CONNECTION, "close")];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, target: &str) -> Response<String> {
        let request = Request::builder().method(method).uri(target).body(()).unwrap();
        answer(&ServerStatus::default(), &request)
    }

    fn get(target: &str) -> (u16, String) {
        let answer = ask(Method::GET, target);
        (answer.status().as_u16(), answer.into_body())
    }

    #[test]
    fn a_server_that_opens_lives_and_is_not_ready() {
        assert_eq!(get("/healthz"), (200, "ok\n".into()));
        assert_eq!(get("/readyz"), (503, "not ready: the store is being opened\n".into()));
        let json = ask(Method::GET, "/readyz?json");
        assert_eq!(json.headers()[CONTENT_TYPE], "application/json");
        let json: serde_json::Value = serde_json::from_str(json.body()).unwrap();
        assert_eq!(json, serde_json::json!({"status": "not ready", "reasons": ["the store is being opened"]}));
        assert!(get("/metrics").1.contains("\necotone_ready 0\n"));
    }

    #[test]
    fn what_is_not_there_and_what_may_not_be_asked_is_refused() {
        let (status, body) = get("http://host/other");
        assert!(status == 404 && body.contains("/metrics"), "{body}");
        assert_eq!(get("http://host").0, 404);
        assert_eq!(ask(Method::HEAD, "/healthz").status(), 200);
        for (status, method, target) in [(400, "HEAD", "nothing"), (400, "GET", "*"), (405, "POST", "/metrics")] {
            assert_eq!(ask(method.parse().unwrap(), target).status(), status, "{method} {target}");
        }
        assert_eq!(ask(Method::from_bytes(b"get").unwrap(), "/").headers()[ALLOW], "GET, HEAD");
    }

    #[test]
    fn json_is_given_to_who_accepts_it() {
        let accepts = |value: &str| accepts_json(&Request::builder().header(ACCEPT, value).body(()).unwrap());
        assert!(accepts("text/html, Application/JSON") && !accepts("*/*"));
    }
}
