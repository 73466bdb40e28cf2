//! The real program with TLS, and what it says of clients that it lets go.

#[path = "../../../resp/tests/common/certificates.rs"]
mod certificates;
use crate::common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use certificates::{Authority, replace};
use common::{PATIENCE, Server, configuration, http, refused, serve};

/// Keys of `[clients]` for TLS with the files in `folder`.
fn keys(folder: &Path, more: &str) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    format!("tls_certificate = {:?}\ntls_key = {:?}\n{more}", path("server.pem"), path("server.key"))
}

/// Whoever reads the log learns who can reach it, and by which key that is changed.
#[test]
fn the_log_says_to_whom_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server().write(folder.path());
    let client_ca = folder.path().join("ca.pem");
    replace(&client_ca, &authority.certificate);
    let listen = "listen = \"127.0.0.1:0\"\n";
    let tls = keys(folder.path(), &format!("{listen}tls_listen = \"127.0.0.1:0\"\n"));
    let certificates = format!("{tls}tls_client_ca = {:?}\n", client_ca.display());
    let only = "set clients.password to listen beyond it";
    for (clients, password, says) in [
        (listen, None, format!("clients are served, of this machine only: {only}")),
        (&tls, None, format!("clients are served, of this machine only: {only}")),
        (
            &certificates,
            None,
            format!("clients are served, by TLS those that show a certificate, otherwise of this machine only: {only}"),
        ),
        (listen, Some("secret"), "clients are served; a password is asked for".into()),
        (&tls, Some("secret"), "clients are served; a password is asked for".into()),
        (
            &certificates,
            Some("secret"),
            "clients are served; a password is asked for, by TLS also a certificate".into(),
        ),
    ] {
        let file = configuration(folder.path(), clients);
        let mut command = serve(&["--config", file.to_str().unwrap()]);
        command.envs(password.map(|password| ("ECOTONE_CLIENTS_PASSWORD", password)));
        let server = Server::start(command);
        assert_eq!(server.serves, says, "{clients}, password: {password:?}");
        assert_eq!(server.tls.is_some(), clients.contains("tls_listen"), "{clients}");
        // And it is so.
        let reply = if password.is_some() { "-NOAUTH " } else { "+PONG\r\n" };
        server.connect().says("PING\r\n", reply);
        server.terminate();
    }
}

/// Whoever watches it learns that a certificate will be over, and that it is.
#[test]
fn the_end_of_a_certificate_is_told_in_the_log_and_as_a_metric() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    let tls = keys(folder.path(), "listen = \"127.0.0.1:0\"\ntls_listen = \"127.0.0.1:0\"\n");
    let file = configuration(folder.path(), &tls);
    for (days, says) in [(400, None), (20, Some("will soon be over")), (-2, Some("is over: clients refuse it"))] {
        authority.server_until(days).write(folder.path());
        let server = Server::with(&file);
        let warning = server.said.lines().find(|line| line.contains("the TLS certificate"));
        assert_eq!(warning.is_some(), says.is_some(), "{days} days: {warning:?}");
        if let (Some(warning), Some(says)) = (warning, says) {
            assert!(warning.contains("WARN") && warning.contains(says) && warning.contains("server.pem"), "{warning}");
        }
        // The page is empty until the first sample.
        let began = Instant::now();
        let end_s = loop {
            let page = http::metrics(&server.http);
            let end_s = page.labelled("ecotone_tls_certificate_expiry_seconds", "file", "certificate");
            if end_s > 0.0 {
                break end_s;
            }
            assert!(began.elapsed() < PATIENCE, "no metric tells the end of the certificate");
        };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert_eq!(((end_s - now_s) / 86_400.0).floor() as i64, days, "{end_s}");
        server.terminate();
    }
}

fn closes(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut piece = [0; 4096];
    while let Ok(bytes) = stream.read(&mut piece) {
        if bytes == 0 {
            return;
        }
    }
}

#[test]
fn clients_come_by_tls_alone_where_the_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    let (_, key) = authority.server().write(folder.path());
    replace(&folder.path().join("ca.pem"), &authority.certificate);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let file = configuration(folder.path(), &keys(folder.path(), "listen = \"off\"\ntls_listen = [\"127.0.0.1:0\"]\n"));
    let notify = folder.path().join("notify");
    let supervisor = UnixDatagram::bind(&notify).unwrap();
    supervisor.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &notify).env_remove("WATCHDOG_USEC");
    let mut server = Server::start(command);
    assert_eq!(server.listening, "");
    let mut said = String::new();
    while !said.starts_with("READY=1") {
        let mut bytes = [0; 1024];
        let length = supervisor.recv(&mut bytes).unwrap();
        said = String::from_utf8_lossy(&bytes[..length]).into_owned();
    }
    let status =
        format!("READY=1\nSTATUS=clients at {} (TLS); metrics at {}", server.tls.as_ref().unwrap(), server.http);
    assert_eq!(said, status, "the supervisor shows where clients are served");
    let warning = server.said.lines().find(|line| line.contains("private key")).expect("it warns of the key");
    assert!(
        warning.contains("WARN") && warning.contains(key.to_str().unwrap()) && warning.contains("640"),
        "{warning}"
    );
    let address = server.tls.clone().unwrap();
    let port = address.rsplit_once(':').unwrap().1;
    let mut client = Command::new("redis-cli");
    client.args(["--tls", "-p", port, "--cacert"]).arg(folder.path().join("ca.pem"));
    let output = client.args(["CONFIG", "GET", "tls-port"]).output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !error.contains("Unrecognized option") {
        assert_eq!(said, format!("tls-port\n{port}\n"), "{error}");
    }

    let mut plain = TcpStream::connect(&address).unwrap();
    let own = plain.local_addr().unwrap().to_string();
    plain.write_all(b"PING\r\n").unwrap();
    closes(plain);
    assert_eq!(server.until_it_says("not TLS")["client"].as_str(), Some(&*own));

    let mut top = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    let output = top.args(["top", &address, "--once"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("speaks TLS") && said.contains("clients.listen"), "{said}");

    // What replaces a certificate and is none.
    replace(&folder.path().join("server.pem"), "nothing");
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("ECOTONE_SERVER_DIR", folder.path().join("other"));
    let said = refused(command);
    assert!(said.contains("no certificate in it"), "{said}");
    server.terminate();
}

#[test]
fn what_tls_lacks_is_refused_with_its_key_and_before_the_store_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server().write(folder.path());
    let other = folder.path().join("other.key");
    replace(&other, &authority.server().key);
    let files = keys(folder.path(), "");
    let start = |clients: &str| {
        let file = configuration(folder.path(), clients);
        refused(serve(&["--config", file.to_str().unwrap()]))
    };
    let listen = "tls_listen = \"127.0.0.1:0\"\n";
    for (clients, says) in [
        (listen.to_owned(), vec!["clients.tls_listen", "clients.tls_certificate"]),
        (format!("{listen}tls_certificate = \"/no/such.pem\"\n"), vec!["clients.tls_listen", "clients.tls_key"]),
        (
            format!("{listen}tls_certificate = \"/no/such.pem\"\ntls_key = \"/no/such.key\"\n"),
            vec!["ecotone.toml:10: clients.tls_certificate = /no/such.pem: it cannot be read: No such file"],
        ),
        (
            format!("{files}{listen}tls_client_ca = \"/no/such/ca.pem\"\n"),
            vec!["clients.tls_client_ca = /no/such/ca.pem: it cannot be read"],
        ),
        (
            format!("{listen}{}", files.replace("server.key", "other.key")),
            vec!["clients.tls_key = ", "other.key: its key does not belong to the certificate in", "server.pem"],
        ),
        (
            format!("{files}tls_listen = \"0.0.0.0:0\"\n"),
            vec!["clients.tls_listen = 0.0.0.0:0", "clients.password", "clients.tls_client_ca", "127.0.0.1"],
        ),
    ] {
        let said = start(&clients);
        for says in says {
            assert!(said.contains(says), "{says:?} is not in {said:?}");
        }
    }
    assert!(!folder.path().join("data").exists(), "it made its folder before it looked");
}

#[test]
fn beyond_its_machine_it_listens_by_tls_for_those_with_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server().write(folder.path());
    let client_ca = folder.path().join("ca.pem");
    replace(&client_ca, &authority.certificate);
    let more = format!("listen = \"off\"\ntls_listen = \"0.0.0.0:0\"\ntls_client_ca = {:?}\n", client_ca.display());
    let server = Server::with(&configuration(folder.path(), &keys(folder.path(), &more)));
    let port = server.tls.as_deref().unwrap().rsplit_once(':').unwrap().1.to_owned();
    closes_unheard(&port);
    server.terminate();
}

/// Who shows nothing is not answered.
fn closes_unheard(port: &str) {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+") && !answer.starts_with(b"-"), "{answer:?}");
}

#[test]
fn who_is_let_go_is_named_in_the_log_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\nsend_timeout_s = 1\n");
    let mut server = Server::with(&file);
    let mut idle = server.connect();
    idle.says("PING\r\n", "+PONG\r\n");
    let idle_address = idle.0.local_addr().unwrap().to_string();
    let mut slow = server.connect();
    let slow_address = slow.0.local_addr().unwrap().to_string();
    let value = "x".repeat(1 << 20);
    slow.says(&format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$1048576\r\n{value}\r\n"), "+OK\r\n");
    slow.0.write_all("*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n".repeat(40).as_bytes()).unwrap();
    let line = server.until_it_says("took nothing");
    assert_eq!(
        (line["client"].as_str(), line["limit"].as_str()),
        (Some(&*slow_address), Some("send_timeout_s")),
        "{line}"
    );
    assert_eq!(line["limit_s"].as_f64(), Some(1.0), "{line}");

    // It waits already, under no limit.
    let mut other = server.connect();
    other.says("CONFIG SET timeout 1\r\n", "+OK\r\n");
    closes(idle.0);
    let line = server.until_it_says("sent nothing");
    assert_eq!(
        (line["client"].as_str(), line["limit"].as_str()),
        (Some(&*idle_address), Some("idle_timeout_s")),
        "{line}"
    );
    assert_eq!(line["limit_s"].as_f64(), Some(1.0), "{line}");
    closes(other.0);
    server.terminate();
}
