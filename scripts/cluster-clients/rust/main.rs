//! A session of the crate redis against a cluster of several servers. Arguments: a server
//! (host:port) and the password. What it prints and reads is told in `cluster-clients.sh`.

use std::error::Error;
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConnection, cluster_pipe};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Commands, ErrorKind, ServerErrorKind, Value, cmd, from_redis_value};

const KEYS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Default)]
struct Checks(usize);

impl Checks {
    fn check(&mut self, name: &str, is_so: bool) -> Outcome {
        if !is_so {
            return Err(format!("not ok: {name}").into());
        }
        self.0 += 1;
        println!("ok {name}");
        Ok(())
    }

    /// Reads all keys. The library may first have to see that connections are gone.
    fn until_read(&mut self, connection: &mut ClusterConnection, keys: &[String], what: &str) -> Outcome {
        let began = Instant::now();
        for key in keys {
            let value: Option<String> = loop {
                match connection.get(key) {
                    Ok(value) => break value,
                    Err(error) if began.elapsed() > PATIENCE => {
                        return Err(format!("not ok: {what}: {key}: {error}").into());
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            };
            if value.as_ref() != Some(&value_of(key)) {
                return Err(format!("not ok: {what}: {key} is {value:?}").into());
            }
        }
        self.check(what, !keys.is_empty())
    }
}

fn value_of(key: &str) -> String {
    format!("value of {key}")
}

fn wait(what: &str) -> Outcome<Vec<String>> {
    println!("await {what}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

/// What all servers reply.
fn on_all(connection: &mut ClusterConnection, words: &[&str]) -> Outcome<Vec<Value>> {
    let mut asked = cmd(words[0]);
    words[1..].iter().for_each(|word| {
        asked.arg(*word);
    });
    let to_all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    match connection.route_command(&asked, to_all)? {
        Value::Map(of_servers) => Ok(of_servers.into_iter().map(|(_, reply)| reply).collect()),
        other => Err(format!("{other:?}").into()),
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    println!("version 1.8.1");
    let builder = || {
        ClusterClientBuilder::new([format!("redis://{}", arguments[1])])
            .password(arguments[2].clone())
            .connection_timeout(Duration::from_secs(3))
            .response_timeout(Duration::from_secs(10))
            .retries(3)
    };
    let client: ClusterClient = builder().build()?;
    let mut connection = client.get_connection()?;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
    let mut checks = Checks::default();

    let pongs = on_all(&mut connection, &["PING"])?;
    checks.check("three servers", pongs.len() == 3)?;
    on_all(&mut connection, &["FLUSHALL"])?;
    for key in &keys {
        connection.set::<_, _, ()>(key, value_of(key))?;
    }
    checks.until_read(&mut connection, &keys, "set and get")?;
    let sizes = on_all(&mut connection, &["DBSIZE"])?.into_iter().map(from_redis_value::<usize>);
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let is_spread = sizes.iter().sum::<usize>() == KEYS && sizes.iter().all(|size| *size > KEYS / 10);
    checks.check("over all servers", is_spread)?;
    let listed = on_all(&mut connection, &["SCAN", "0", "MATCH", "key:*", "COUNT", "100000"])?;
    let mut found = Vec::new();
    for reply in listed {
        let (cursor, some): (String, Vec<String>) = from_redis_value(reply)?;
        checks.check("a scan ends", cursor == "0")?;
        found.extend(some);
    }
    found.sort();
    let mut sorted = keys.clone();
    sorted.sort();
    checks.check("scan", found == sorted)?;
    let mut pipeline = cluster_pipe();
    for number in 0..200 {
        pipeline.incr(format!("counter:{number}"), 1);
    }
    let counts: Vec<usize> = pipeline.query(&mut connection)?;
    checks.check("a pipeline over all servers", counts == [1; 200])?;
    let all: Vec<String> = connection.mget(&keys)?;
    checks.check("many keys, slot by slot", keys.iter().zip(&all).all(|(key, value)| *value == value_of(key)))?;
    connection.mset::<_, _, ()>(&[("{tag}a", 1), ("{tag}b", 2)])?;
    let read: Vec<usize> = connection.mget(&["{tag}a", "{tag}b"])?;
    checks.check("several keys of a tag", read == [1, 2])?;
    let crossed: Result<Vec<String>, _> = connection.sinter(&["a", "b"]);
    let is_told = |kind| kind == ErrorKind::Server(ServerErrorKind::CrossSlot);
    checks.check("two slots", crossed.is_err_and(|error| is_told(error.kind())))?;
    let mut reader = builder().read_from_replicas().build()?.get_connection()?;
    checks.until_read(&mut reader, &keys, "reads from replicas, of which there are none")?;

    wait("restart")?;
    checks.until_read(&mut connection, &keys, "all keys after a restart")?;
    let left = wait("kill")?;
    checks.check("some are left", left.len() > KEYS / 10 && left.len() < KEYS)?;
    checks.until_read(&mut connection, &left, "keys of the others after the leader's death")?;
    for key in &left {
        connection.set::<_, _, ()>(key, value_of(key))?;
    }
    checks.check("and written", true)?;
    let away = keys.iter().find(|key| !left.contains(key)).ok_or("none is away")?;
    checks.check("a key that is away", connection.get::<_, String>(away).is_err())?;
    wait("start")?;
    checks.until_read(&mut connection, &keys, "all keys when it is back")?;
    checks.until_read(&mut client.get_connection()?, &keys, "and for who comes anew")?;
    println!("{} checks", checks.0);
    Ok(())
}
