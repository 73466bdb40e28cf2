//! A command that panics costs its own client an error, and nobody else anything.

use crate::common;

use common::Fixture;
use ecotone_keyspace::error::Outcome;
use ecotone_keyspace::{Blocking, Slot, Tag, WriteGroup};
use ecotone_resp::command::{Call, Command, KeyPositions, flag, table};
use ecotone_resp::execute::{Step, execute_command};
use ecotone_resp::protocol::reply::{Reply, Version};

fn panics(call: &mut Call<'_>) -> Outcome {
    call.keys.set(b"left", Tag::STRING, None, b"behind")?;
    call.reply.simple("half");
    panic!("as a test asks");
}

#[test]
fn what_a_panicking_command_has_done_is_undone_and_what_others_wrote_stays() {
    static PANICS: Command = Command {
        name: "panics",
        arity: -1,
        flags: flag::WRITE,
        keys: KeyPositions::FIRST,
        group: "generic",
        since: "1.0.0",
        deprecated: None,
        summary: "Panics.",
        complexity: "O(1)",
        usage: "",
        subcommands: &[],
        run: panics,
    };
    assert!(table::find(b"panics").is_none(), "only here");
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut group = WriteGroup::new(fixture.service.keyspace.clone());
    assert!(group.hold(&[Slot::of(b"kept")], Blocking::Never));
    group.keys(Blocking::Never).set(b"kept", Tag::STRING, None, b"value").unwrap();
    group.keep();
    let mut reply = Reply::new(Version::Resp2);
    let arguments: [&[u8]; 2] = [b"panics", b"left"];
    let step = execute_command(
        &fixture.service,
        &mut client.client,
        &mut group,
        &PANICS,
        &arguments,
        &mut reply,
        Blocking::Never,
    );
    assert!(matches!(step, Step::Done { .. }), "{step:?}");
    let told = String::from_utf8(reply.take()).unwrap();
    assert!(told.starts_with("-ERR the server failed") && told.lines().count() == 1, "{told}");
    group.commit(Blocking::Allowed).unwrap();
    assert_eq!(client.ask("GET kept"), "$5\r\nvalue\r\n");
    assert_eq!(client.ask("GET left"), "$-1\r\n");
    assert_eq!(client.ask("SET left again"), "+OK\r\n");
}
