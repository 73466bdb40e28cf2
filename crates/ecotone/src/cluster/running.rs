//! What a running server is asked, by `FEDERATION`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ecotone_bench::target::resp::Reply;
use ecotone_control::map::Map;
use serde_json::{Value, json};

use super::{Server, folder, print, text};
use crate::live_server::{self, Connected, StoreLocation};

/// The server that is asked, or none where the folder is of one that does not run.
fn connect(server: &Server, words: &str) -> Result<Option<Connected>> {
    let found = match live_server::locate(&server.server)? {
        StoreLocation::Store(_) => return Ok(None),
        StoreLocation::Server(found) => found,
    };
    let (password, tls) = (server.connection.password()?, server.connection.tls()?);
    let command = format!("ecotone cluster {}", words.split(' ').next().unwrap_or_default().to_ascii_lowercase());
    found.connect_by(tls.as_ref(), password.as_deref(), &command, &format!("FEDERATION {words}")).map(Some)
}

fn answer(connected: &mut Connected, words: &[&str]) -> Result<Vec<u8>> {
    let request: Vec<&[u8]> = ["FEDERATION"].iter().chain(words).map(|word| word.as_bytes()).collect();
    match connected.ask(&request)? {
        Reply::Bulk(Some(answer)) => Ok(answer),
        _ => bail!("the server at {} answers FEDERATION by what is no text", connected.address()),
    }
}

/// A server that must run.
fn connect_running(server: &Server, words: &str) -> Result<Connected> {
    connect(server, words)?.with_context(|| {
        let dir = server.server.display();
        format!("no server runs on {dir}: start it (`ecotone serve --dir {dir}`), or name one that runs by HOST:PORT")
    })
}

fn json_answer(connected: &mut Connected, words: &[&str]) -> Result<Value> {
    let answer = answer(connected, words)?;
    serde_json::from_slice(&answer).with_context(|| {
        format!(
            "the server at {} is of another version than this command: its answer cannot be read",
            connected.address()
        )
    })
}

/// Asks a running server, and shows what it answers.
pub(super) fn ask(server: &Server, words: &[&str], shown: impl Fn(&Value) -> String) -> Result<()> {
    let mut connected = connect_running(server, &words.join(" "))?;
    let answer = json_answer(&mut connected, words)?;
    print(server.json, &answer, &shown(&answer))
}

/// Makes a copy the primary by force, once whoever asks knows what that may lose.
pub(super) fn promote(server: &Server, shard: u32, to: &str, force: bool, yes: bool) -> Result<()> {
    let number = shard.to_string();
    let mut words = vec!["PROMOTE", &number, "TO", to];
    if !force {
        // It says why not, and what to do instead.
        return ask(server, &words, text::promoted);
    }
    if !yes {
        let mut connected = connect_running(server, "STATUS")?;
        let status = json_answer(&mut connected, &["STATUS"])?;
        eprint!("{}Go on? Type yes: ", text::risks(&status, shard, to));
        std::io::stderr().flush().context("cannot ask")?;
        let mut said = String::new();
        std::io::stdin().read_line(&mut said).context("cannot read the answer")?;
        if said.trim() != "yes" {
            bail!("nothing was changed");
        }
    }
    words.push("FORCE");
    ask(server, &words, text::promoted)
}

/// Between two looks at how far copies are compared.
const REPAIR_LOOK: Duration = Duration::from_millis(300);

/// Has the files of a shard's copies compared, waits for that, and says what has come of it.
pub(super) fn repair(server: &Server, shard: u32, only: Option<&str>) -> Result<()> {
    let number = shard.to_string();
    let mut words = vec!["REPAIR", &number];
    words.extend(only.into_iter().flat_map(|only| ["SERVER", only]));
    let mut connected = connect_running(server, &words.join(" "))?;
    let mut answer = json_answer(&mut connected, &words)?;
    words.push("PROGRESS");
    let mut shown = String::new();
    while answer["over"] != Value::Bool(true) {
        let progress = text::repairing(&answer);
        if !server.json && progress != shown {
            eprintln!("{progress}");
            shown = progress;
        }
        std::thread::sleep(REPAIR_LOOK);
        answer = json_answer(&mut connected, &words)?;
    }
    print(server.json, &answer, &text::repaired(&answer))?;
    if answer["whole"] != Value::Bool(true) {
        bail!("{}", text::not_whole(&answer));
    }
    Ok(())
}

/// A token, in the command that a new server is started with.
pub(super) fn add(server: &Server, name: Option<&str>, zone: Option<&str>) -> Result<()> {
    let mut connected = connect_running(server, "TOKEN")?;
    let status = json_answer(&mut connected, &["STATUS"])?;
    let token = json_answer(&mut connected, &["TOKEN"])?;
    // The one that leads, or else the one that is asked: any will do.
    let servers = || status["servers"].as_array().into_iter().flatten();
    let is = |what: &'static str| servers().find(move |server| server[what] == Value::Bool(true));
    let join = is("leads").or_else(|| is("self")).and_then(|server| server["peers"].as_str());
    let join =
        join.filter(|join| !join.is_empty()).context("the server that was asked does not know where it is reached")?;
    let token_text = token["token"].as_str().context("there is no token in the answer")?;
    let option = |name: &str, value: Option<&str>| value.map(|value| format!(" --{name} {value}")).unwrap_or_default();
    let command = format!(
        "ecotone serve --dir DIR --listen ADDRESS:7411{}{} --join {join} --token {token_text}",
        option("name", name),
        option("zone", zone)
    );
    let json = json!({ "command": command, "join": join, "token": token_text, "ends_unix": token["ends_unix"] });
    print(server.json, &json, &format!("{command}\n"))
}

/// A token, of a running server or of the folder of one that does not run.
pub(super) fn token(server: &Server) -> Result<()> {
    let Some(mut connected) = connect(server, "TOKEN")? else {
        let (token, ends_unix) = folder::token(&server.server)?;
        return print(server.json, &json!({ "token": token, "ends_unix": ends_unix }), &format!("{token}\n"));
    };
    let answer = json_answer(&mut connected, &["TOKEN"])?;
    print(server.json, &answer, &format!("{}\n", answer["token"].as_str().unwrap_or_default()))
}

/// The map, of a running server or of the folder of one that does not run.
pub(super) fn export(server: &Server, file: &Path) -> Result<()> {
    let map = match connect(server, "EXPORT")? {
        Some(mut connected) => {
            let bytes = answer(&mut connected, &["EXPORT"])?;
            Map::decode(&bytes).with_context(|| format!("the map of the server at {}", connected.address()))?
        }
        None => folder::known(&server.server)?.map,
    };
    ecotone_membership::folder::export(&map, file)?;
    let (servers, shards) = (map.members().count(), map.shards.len());
    let json = json!({
        "file": file, "federation": map.federation.to_string(), "generation": map.generation, "map_version": map.version,
        "servers": servers, "shards": shards,
    });
    let text = format!(
        "wrote the map of federation {} to {}: generation {}, version {}, {servers} servers, {shards} shards\n",
        map.federation,
        file.display(),
        map.generation,
        map.version
    );
    print(server.json, &json, &text)
}
