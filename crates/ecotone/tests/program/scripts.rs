//! The scripts behind `make demo` and `make test`, with programs of the system put before the real
//! ones.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A script may hang where it should not.
const SECONDS: &str = "300";

fn script(name: &str, folder: &Path, programs: &[(&str, &str)], arguments: &[&str]) -> Command {
    for (program, text) in programs {
        let path = folder.join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}/../../scripts/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", SECONDS, &path]).args(arguments).env("TMPDIR", folder);
    command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    command
}

/// Whether it ended well, what it printed, and what it complained of.
fn output(mut command: Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_session_has_no_settings_of_the_callers() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = script("session.sh", folder.path(), &[], &[env!("CARGO_BIN_EXE_ecotone")]);
    session.env("ECOTONE_CONFIG", "/there/is/none").env("ECOTONE_CLIENTS_PASSWORD", "x");
    session.env("ECOTONE_SERVER_LOG_FORMAT", "neither").env("REDISCLI_AUTH", "y");
    let (is_well, printed, complaint) = output(session);
    assert!(is_well, "{printed}{complaint}");
    assert!(printed.ends_with("Nothing that was acknowledged is lost.\n"), "{printed}");
    assert_eq!(complaint, "");
}

#[test]
fn a_federation_of_the_demo_loses_nothing_with_the_server_that_leads() {
    let folder = tempfile::tempdir().unwrap();
    let mut federation = script("federation.sh", folder.path(), &[], &[env!("CARGO_BIN_EXE_ecotone")]);
    federation.env("ECOTONE_CONFIG", "/there/is/none").env("ECOTONE_FEDERATION_JOIN", "x").env("REDISCLI_AUTH", "y");
    let (is_well, printed, complaint) = output(federation);
    assert!(is_well, "{printed}{complaint}");
    assert!(printed.ends_with("The federation lost nothing that it had acknowledged.\n"), "{printed}");
    assert_eq!(complaint, "");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "it cleans up");
}

/// Clients that `make setup` installs: no others, so that tests download nothing.
fn clients_find_a_federation(names: &[&str], sessions: usize) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&[env!("CARGO_BIN_EXE_ecotone")], names].concat();
    let mut clients = script("cluster-clients.sh", folder.path(), &[], &arguments);
    clients.env("ECOTONE_CONFIG", "/there/is/none").env("REDISCLI_AUTH", "y");
    let (is_well, printed, complaint) = output(clients);
    assert!(is_well, "{printed}{complaint}(what is missing is installed by: make setup)");
    // A client that is not installed is skipped, which a test must not take for a success.
    assert!(printed.ends_with(&format!("\n{sessions} sessions passed, 0 clients skipped\n")), "{printed}{complaint}");
    assert_eq!(complaint, "");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it cleans up");
}

#[test]
fn redis_cli_finds_a_federation_of_three_servers() {
    clients_find_a_federation(&["redis-cli"], 1);
}

#[test]
fn redis_py_finds_a_federation_of_three_servers() {
    clients_find_a_federation(&["redis-py"], 2);
}

#[test]
fn node_redis_finds_a_federation_of_three_servers() {
    clients_find_a_federation(&["node-redis"], 1);
}

#[test]
fn a_cluster_client_that_fails_is_told() {
    let folder = tempfile::tempdir().unwrap();
    // It says to have made more checks than it has, and ends well.
    let client = "echo 'version 1'; echo 'ok one'; echo '2 checks'";
    let arguments = [env!("CARGO_BIN_EXE_ecotone"), "node-redis"];
    let clients = script("cluster-clients.sh", folder.path(), &[("node", client)], &arguments);
    let (is_well, printed, complaint) = output(clients);
    assert!(!is_well && complaint.contains("node-redis: exit status 0 after 1 checks of 2"), "{printed}{complaint}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["node"], "it cleans up");
}

#[test]
fn a_session_whose_client_ends_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let client = "case \" $* \" in *' incr '*) exit 1 ;; esac\nPATH=${PATH#*:} exec redis-cli \"$@\"";
    let session = script("session.sh", folder.path(), &[("redis-cli", client)], &[env!("CARGO_BIN_EXE_ecotone")]);
    let (is_well, printed, complaint) = output(session);
    assert!(!is_well && complaint.contains("redis-cli ended before"), "{printed}{complaint}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["redis-cli"], "it cleans up");
}

#[test]
fn a_password_is_asked_for_before_the_build_and_only_of_who_is_not_root() {
    // What was run, in its order.
    let log = "echo \"${0##*/} $*\" >>\"$TMPDIR/log\"";
    let refused = format!("{log}\nexit 1");
    for (user, sudo, is_done, order) in [
        ("1000", log, true, "sudo true\nbuild all\n"),
        ("1000", refused.as_str(), false, "sudo true\n"),
        ("0", refused.as_str(), true, "build all\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let id = format!("echo {user}");
        let programs = [("id", id.as_str()), ("sudo", sudo), ("build", log)];
        let (is_well, ..) = output(script("ask-root.sh", folder.path(), &programs, &["demo", "build", "all"]));
        assert_eq!(is_well, is_done, "user {user}");
        assert_eq!(std::fs::read_to_string(folder.path().join("log")).unwrap(), order, "user {user}");
    }
}

/// RocksDB in small: four sources, of which two cannot be in one file. Its compiler writes down
/// what it is asked for.
struct SmallRocksDb {
    folder: tempfile::TempDir,
}

impl SmallRocksDb {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sources = [
            ("cache/a.cc", "static int own() { return 1; }\nint a() { return own(); }"),
            ("db/b.cc", "#include <elsewhere.h>\nint b() { return ELSEWHERE; }"),
            ("util/crc32c.cc", "int crc() { return 3; }"),
            ("util/d.cc", "int d() { return 4; }"),
        ];
        for (name, text) in sources {
            let path = folder.path().join("rocksdb").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let list: String = sources.iter().map(|(name, _)| format!("{name}\n")).collect();
        std::fs::write(folder.path().join("rocksdb_lib_sources.txt"), list + "util/not_shipped.cc\n").unwrap();
        let small = Self { folder };
        small.header("elsewhere", 2);
        small
    }

    /// A folder of headers from elsewhere, as each target folder has one of its own.
    fn header(&self, name: &str, value: u8) {
        let elsewhere = self.folder.path().join(name);
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("elsewhere.h"), format!("#define ELSEWHERE {value}\n")).unwrap();
    }

    fn replace(&self, source: &str, text: &str) {
        std::fs::write(self.folder.path().join("rocksdb").join(source), text).unwrap();
    }

    /// Compiles all sources as a build script does. What the compiler was asked for is in `log`;
    /// the functions of each object.
    fn compile(&self, flag: &str, headers: &str) -> (String, Vec<String>) {
        let log = self.folder.path().join("log");
        let _ = std::fs::remove_file(&log);
        let noted = "case \" $* \" in *' -c '*) case \" $* \" in *' /dev/null '*) ;; *) echo \"$*\" >>\"$TMPDIR/log\" ;; esac ;; esac";
        let functions = ["cache/a", "db/b", "util/crc32c", "util/d"].map(|source| {
            let object = self.folder.path().join(source.replace('/', "-") + ".o");
            let folder = self.folder.path();
            let headers = folder.join(headers);
            let arguments = ["-O1", flag, "-I", headers.to_str().unwrap(), "-o", object.to_str().unwrap(), "-c"];
            let source = format!("rocksdb/{source}.cc");
            let arguments: Vec<&str> = arguments.into_iter().chain([source.as_str()]).collect();
            let compiler = format!("{noted}\nPATH=${{PATH#*:}} exec c++ \"$@\"");
            let mut command = script("rocksdb-c++.sh", folder, &[("noting-c++", &compiler)], &arguments);
            command.current_dir(folder).env("CXX", "noting-c++").env("ECOTONE_ROCKSDB_DIR", folder.join("kept"));
            let (is_well, printed, complaint) = output(command);
            assert!(is_well, "{printed}{complaint}");
            let symbols = Command::new("nm").args(["-C", "--defined-only"]).arg(&object).output().unwrap();
            let symbols = String::from_utf8(symbols.stdout).unwrap();
            let mut functions: Vec<&str> =
                symbols.lines().filter_map(|line| line.split_once(" T ")).map(|(_, name)| name).collect();
            functions.sort_unstable();
            functions.join(" ")
        });
        (std::fs::read_to_string(log).unwrap_or_default(), functions.into())
    }
}

#[test]
fn rocksdb_is_compiled_many_sources_to_a_file_and_once_for_all_target_folders() {
    let small = SmallRocksDb::new();
    let whole = ["a() b() d()", "", "crc()", ""];
    let (asked, functions) = small.compile("-DX", "elsewhere");
    assert_eq!(functions, whole);
    assert_eq!(asked.lines().count(), 2, "all that can be, and CRC32C by itself: {asked}");

    // The same headers in another folder are the same.
    small.header("of-another-target-folder", 2);
    assert_eq!(small.compile("-DX", "of-another-target-folder"), (String::new(), whole.map(str::to_owned).into()));

    // Other flags and other headers are not.
    assert_eq!(small.compile("-DY", "elsewhere").0.lines().count(), 2);
    small.header("elsewhere", 5);
    assert_eq!(small.compile("-DX", "elsewhere").0.lines().count(), 2);
}

#[test]
fn sources_that_cannot_be_in_one_file_are_compiled_one_by_one() {
    let small = SmallRocksDb::new();
    small.replace("util/d.cc", "static int own() { return 4; }\nint d() { return own(); }");
    let (asked, functions) = small.compile("-DX", "elsewhere");
    assert_eq!(functions, ["a() b() d()", "", "crc()", ""]);
    assert_eq!(asked.lines().count(), 5, "{asked}");
}

#[test]
fn an_error_in_a_source_of_rocksdb_is_told_and_nothing_of_it_is_kept() {
    let small = SmallRocksDb::new();
    small.replace("db/b.cc", "no C++");
    let folder = small.folder.path();
    let object = folder.join("a.o");
    let arguments = ["-I", "elsewhere", "-o", object.to_str().unwrap(), "-c", "rocksdb/cache/a.cc"];
    let mut command = script("rocksdb-c++.sh", folder, &[], &arguments);
    command.current_dir(folder).env_remove("CXX").env("ECOTONE_ROCKSDB_DIR", folder.join("kept"));
    let (is_well, _, complaint) = output(command);
    assert!(!is_well && complaint.contains("rocksdb/db/b.cc"), "{complaint}");
    small.replace("db/b.cc", "int b() { return 2; }");
    assert_eq!(small.compile("-DX", "elsewhere").1, ["a() b() d()", "", "crc()", ""]);
}

#[test]
fn what_is_not_rocksdbs_goes_to_the_compiler_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own.cc"), "int own() { return 1; }").unwrap();
    let mut command = script("rocksdb-c++.sh", folder.path(), &[], &["-c", "own.cc", "-o", "own.o"]);
    command.current_dir(folder.path()).env_remove("CXX").env("ECOTONE_ROCKSDB_DIR", folder.path().join("kept"));
    assert!(output(command).0 && folder.path().join("own.o").exists() && !folder.path().join("kept").exists());
}

/// The harness tells when tests end, of which two run at once here: `c` begins when `b` has ended.
#[test]
fn a_test_that_ends_late_is_slow_only_if_it_did_not_begin_late() {
    let folder = tempfile::tempdir().unwrap();
    let harness = "echo '     Running tests/x.rs (x)'; echo; echo 'running 4 tests'
        echo 'test b ... ok'; sleep 2.5; echo 'test a - should panic ... ok'; echo 'test d ... ok'
        echo 'test c ... FAILED'; echo; echo 'test result: FAILED. 3 passed; 1 failed'";
    let mut harness = Command::new("sh").args(["-c", harness]).stdout(Stdio::piped()).spawn().unwrap();
    let mut times = script("test-times.sh", folder.path(), &[], &[]);
    times.env("SLOW_SECONDS", "2").env("RUST_TEST_THREADS", "2").stdin(harness.stdout.take().unwrap());
    let (is_well, printed, complaint) = output(times);
    assert!(is_well && harness.wait().unwrap().success(), "{complaint}");
    let (passed_on, slow) = printed.split_once("== tests that took longer than 2 s, of 4 in ").unwrap();
    assert!(passed_on.contains("test c ... FAILED\n\ntest result: FAILED. 3 passed; 1 failed\n"), "{printed}");
    let mut slow: Vec<_> = slow.lines().skip(1).map(|line| line.split_once(" s  ").unwrap().1).collect();
    slow.sort_unstable();
    assert_eq!(slow, ["tests/x.rs: a", "tests/x.rs: c"], "{printed}");
}
