//! What a server finds out about the store that it has open, for who asks it (`INSPECT`).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ecotone_bench::target::resp::Reply;
use ecotone_inspect::Checking;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::live_server::Connected;
use crate::progress::Spinner;

/// How often the server is asked how far it is: first after so long, then after twice that, and so
/// on.
const FIRST_WAIT: Duration = Duration::from_millis(10);

const MAX_WAIT: Duration = Duration::from_millis(250);

/// Has the server find out what `question` says (the words behind `INSPECT START`), and waits for
/// it. The inspection ends with this process.
pub(crate) fn ask<R: DeserializeOwned>(server: &mut Connected, question: &[&[u8]]) -> Result<R> {
    let words: Vec<&[u8]> = [&b"INSPECT"[..], b"START"].into_iter().chain(question.iter().copied()).collect();
    server.ask(&words)?;
    let spinner = Spinner::start();
    let mut wait = FIRST_WAIT;
    let report = loop {
        std::thread::sleep(wait);
        wait = (wait * 2).min(MAX_WAIT);
        let status = status(server)?;
        match status["state"].as_str() {
            Some("running") => spinner.say(describe_remote(&status["doing"])),
            Some("done") => break status["report"].clone(),
            Some("failed") => {
                bail!("the server at {} could not do it: {}", server.address(), status["error"].as_str().unwrap_or("?"))
            }
            _ => bail!("the server at {} has ended the inspection", server.address()),
        }
    };
    spinner.end();
    serde_json::from_value(report).with_context(|| {
        format!("the server at {} is of another version than this command: its report cannot be read", server.address())
    })
}

fn status(server: &mut Connected) -> Result<Value> {
    let Reply::Bulk(Some(text)) = server.ask(&[b"INSPECT", b"STATUS"])? else {
        bail!("the server at {} answers INSPECT STATUS by what is no text", server.address())
    };
    Ok(serde_json::from_slice(&text)?)
}

fn describe_remote(doing: &Value) -> String {
    let checking = serde_json::from_value::<Checking>(doing.clone());
    checking.map_or_else(|_| "the server begins".into(), |checking| format!("by the server: {}", describe(checking)))
}

/// How far a check of a store is.
pub(crate) fn describe(checking: Checking) -> String {
    match checking {
        Checking::Table { done, of } => format!("table {} of {of}", done + 1),
        Checking::Segment { done, of } => format!("segment {} of {of}", done + 1),
        Checking::Entries { done } => format!("{done} entries"),
    }
}
