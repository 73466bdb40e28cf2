//! Servers and shards by the names that people have for them.

use ecotone_control::ids::MemberId;
use ecotone_control::map::{Map, Server};
use serde_json::{Value, json};

/// The server of this name or number.
pub(super) fn named<'m>(map: &'m Map, server: &str) -> Result<(MemberId, &'m Server), String> {
    let by_name = map.members().find(|(_, there)| there.name.as_str() == server);
    let number = server.parse().ok().map(MemberId);
    let by_number = || number.and_then(|member| Some((member, map.server(member)?)));
    by_name.or_else(by_number).ok_or_else(|| {
        if number.is_some_and(|member| map.is_removed(member)) {
            return format!("server {server} is removed from this federation already");
        }
        let names: Vec<&str> = map.members().map(|(_, server)| server.name.as_str()).collect();
        format!(
            "no server of this federation is called {server:?}, nor is that its number: there are {}",
            names.join(", ")
        )
    })
}

pub(super) fn name_of(map: &Map, member: MemberId) -> String {
    // A removed server may be forgotten.
    map.servers.get(&member).map_or_else(|| member.to_string(), |server| server.name.as_str().to_owned())
}

pub(super) fn server_json(map: &Map, member: MemberId) -> Value {
    json!({ "member": member.0, "name": name_of(map, member) })
}

/// So many shards, in words.
pub(super) fn counted(shards: usize) -> String {
    if shards == 1 { "1 shard".into() } else { format!("{shards} shards") }
}
