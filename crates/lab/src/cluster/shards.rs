//! What several shards cost the server that holds them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::clients::{compare, of_shards};
use super::report::{ShardsCost, median};
use super::servers::{Scene, Server};
use crate::error::LabError;

/// What a start leaves to do is done after this.
const REST: Duration = Duration::from_secs(3);
/// A file that each store has once.
const STORE_FILE: &str = "CURRENT";

/// How many stores there are in a server's folder, and the bytes of all files.
fn stores(folder: &Path) -> (usize, u64) {
    let mut found = (0, 0);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(of) if of.is_dir() => {
                let (stores, bytes) = stores(&entry.path());
                found = (found.0 + stores, found.1 + bytes);
            }
            Ok(of) => found = (found.0 + usize::from(entry.file_name() == STORE_FILE), found.1 + of.len()),
            // Removed meanwhile.
            Err(_) => {}
        }
    }
    found
}

/// Bytes of a process in memory.
fn resident(server: &Server) -> Result<f64, LabError> {
    let path = format!("/proc/{}/status", server.id());
    let status = fs::read_to_string(&path).map_err(LabError::io("cannot read", &path))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map(|kib: f64| kib * 1024.0).ok_or_else(|| server.failure("is in no memory"))
}

/// One server with so many shards beside one with one. Why not, where a server holds only one store
/// or there is no redis-benchmark.
pub(super) fn measure(scene: &mut Scene<'_>) -> Result<Result<ShardsCost, String>, LabError> {
    let shards = scene.options.shards;
    (scene.say)(&format!("one shard and {shards}"));
    let one = of_shards(scene, "one-shard", 1)?;
    let many = of_shards(scene, "shards", shards)?;
    scene.rest(REST)?;
    let (of_one, of_many) = (stores(one.dir()).0, stores(many.dir()).0);
    if of_many < of_one + shards as usize - 1 {
        return Ok(Err(format!(
            "a server with {shards} shards has {of_many} store: this program keeps all shards in one"
        )));
    }
    let resident_bytes_per_shard = (resident(&many)? - resident(&one)?) / f64::from(shards - 1);
    let Some((set, get)) = compare(scene, "shards", &one, &many)? else {
        return Ok(Err("there is no redis-benchmark (of Redis)".into()));
    };
    let (_, bytes) = stores(many.dir());
    let [opening_ms_one, opening_ms] = openings(scene, [one, many])?;
    Ok(Ok(ShardsCost { shards, set, get, resident_bytes_per_shard, opening_ms_one, opening_ms, bytes }))
}

/// Stops servers and starts them again, in turn: the median of how long each took to be ready.
fn openings(scene: &mut Scene<'_>, servers: [Server; 2]) -> Result<[f64; 2], LabError> {
    let mut gone = Vec::new();
    for server in servers {
        gone.push(server.stop(scene)?);
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..scene.options.rounds {
        (scene.say)(&format!("opening: round {} of {}", round + 1, scene.options.rounds));
        let mut next = Vec::new();
        for (server, times) in gone.into_iter().zip(&mut times) {
            let server = scene.start_again(server)?;
            times.push(server.opening.as_secs_f64() * 1e3);
            next.push(server.stop(scene)?);
        }
        gone = next;
    }
    Ok(times.map(median))
}
