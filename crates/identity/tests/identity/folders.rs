//! Identities on disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ecotone_identity::join::Joining;
use ecotone_identity::token::{Hash, fingerprint};
use ecotone_identity::{Authority, Error, Identity, JoinToken, Peer, SystemClock};

use crate::{HOUR, NOW, Set, identity, join, name};

#[test]
fn a_token_has_this_form_and_no_other_text_is_one() {
    let text = format!("eco1-{}-{}", "0123456789abcdef".repeat(2), "fedcba9876543210".repeat(4));
    let token: JoinToken = text.parse().unwrap();
    assert_eq!(token.to_string(), text);
    assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), token);
    assert_eq!(format!("{token:?}"), "JoinToken(..)");
    for wrong in [
        "",
        "eco1",
        "eco1-",
        &text[1..],
        &text[..text.len() - 1],
        &text.to_uppercase(),
        &text.replace("eco1", "eco2"),
        &format!("{text}0"),
        &format!("{text}-00"),
        &text.replace('-', "_"),
    ] {
        let error = wrong.parse::<JoinToken>().unwrap_err();
        assert!(error.to_string().contains("cluster token"), "{error}");
        assert!(!error.to_string().contains("0123"), "a refusal must not repeat a secret: {error}");
    }
}

#[test]
fn what_is_secret_may_be_read_by_its_owner_only_and_is_refused_otherwise() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let folder = directory.path().join("store/identity");
    let authority = Authority::create(&folder, &name("a"), NOW).unwrap();
    let token = authority.issue_token(NOW).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
        let secret = token.to_string();
        let secret = secret.split('-').nth(1).unwrap();
        assert!(!fs::read_to_string(file).unwrap().contains(secret), "the token itself is kept in {}", file.display());
    }
    for file in ["authority.pem", "server.pem", "ledger.json"] {
        let path = folder.join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = match file {
            "server.pem" => Identity::open(&folder, clock.clone()).map(drop),
            _ => Authority::open(&folder).and_then(|authority| authority.unwrap().issue_token(NOW)).map(drop),
        };
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(file) && refused.contains("640") && refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    identity(&folder, &clock);
}

#[test]
fn a_federation_is_made_once_in_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("identity");
    let authority = Authority::create(&folder, &name("a"), NOW).unwrap();
    let before = fs::read(folder.join("authority.pem")).unwrap();
    let refused = Authority::create(&folder, &name("b"), NOW).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Usage(what) if what.contains("authority.pem")), "{refused}");
    assert_eq!(fs::read(folder.join("authority.pem")).unwrap(), before);
    // Nor in the folder of a server that has joined one.
    let joined = directory.path().join("joined");
    join(&authority, &authority.issue_token(NOW).unwrap(), &joined, "b", NOW).unwrap();
    assert!(Authority::create(&joined, &name("b"), NOW).is_err());
    // One whose making was interrupted is made anew.
    fs::remove_file(folder.join("authority.pem")).unwrap();
    let again = Authority::create(&folder, &name("c"), NOW).unwrap();
    assert_ne!(again.federation(), authority.federation());
    assert_eq!(again.state().unwrap().servers().len(), 1);
    assert_eq!(identity(&folder, &Set::at(NOW)).own().name, name("c"));
    // Names that no certificate can have.
    let long = Authority::create(&directory.path().join("long"), &name(&"n".repeat(65)), NOW).map(drop);
    assert!(long.unwrap_err().to_string().contains("64"));
}

#[test]
fn who_joins_gets_what_the_authority_says_and_the_key_stays_where_it_was_made() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let authority = Authority::create(&directory.path().join("a"), &name("a"), NOW).unwrap();
    let token = authority.issue_token(NOW).unwrap();
    assert!(token.authority().is(&fingerprint(authority.certificate()).unwrap()));
    let folder = directory.path().join("b");
    // The first answer is lost.
    let lost = Joining::begin(&folder, token.clone(), name("b")).unwrap();
    let first = authority.join(token.secret(), &name("b"), &lost.request, NOW).unwrap();
    drop(lost);
    let key = fs::read_to_string(folder.join("joining.pem")).unwrap();
    join(&authority, &token, &folder, "b", NOW.plus(60)).unwrap();
    assert!(!folder.join("joining.pem").exists());
    assert!(fs::read_to_string(folder.join("server.pem")).unwrap().starts_with(&key), "it is the same key");
    let own = identity(&folder, &clock).own();
    assert_eq!(own.member, Peer::of(&first.certificate).unwrap().member);
    assert_eq!((own.federation, own.name), (authority.federation(), name("b")));
    assert_eq!((own.begins, own.ends), (NOW.plus(60).minus(300), NOW.plus(60 + 24 * HOUR)));
    assert_eq!(authority.state().unwrap().servers().len(), 2);
    // Another one with the same token.
    let refused = join(&authority, &token, &directory.path().join("c"), "c", NOW).unwrap_err();
    assert_eq!(refused.kind(), "spent-token", "{refused}");
    assert!(refused.to_string().contains("cluster token"), "{refused}");
    let stale = authority.issue_token(NOW).unwrap();
    let refused = join(&authority, &stale, &directory.path().join("d"), "d", NOW.plus(HOUR)).unwrap_err();
    assert_eq!(refused.kind(), "expired-token", "{refused}");
    let refused = join(&authority, &authority.issue_token(NOW).unwrap(), &directory.path().join("e"), "b", NOW);
    assert_eq!(refused.unwrap_err().kind(), "name-taken");
}

#[test]
fn an_answer_of_another_authority_or_for_another_key_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let authority = Authority::create(&at("a"), &name("a"), NOW).unwrap();
    let foreign = Authority::create(&at("x"), &name("x"), NOW).unwrap();
    let (token, of_foreign) = (authority.issue_token(NOW).unwrap(), foreign.issue_token(NOW).unwrap());
    let joining = || Joining::begin(&at("b"), token.clone(), name("b")).unwrap();
    let issued = foreign.join(of_foreign.secret(), &name("b"), &joining().request, NOW).unwrap();
    assert!(joining().end(&issued, NOW).unwrap_err().to_string().contains("another authority"));
    // The right authority for the wrong key.
    let other = Joining::begin(&at("c"), authority.issue_token(NOW).unwrap(), name("c")).unwrap();
    let of_other = authority.join(other.token().secret(), &name("c"), &other.request, NOW).unwrap();
    assert!(joining().end(&of_other, NOW).unwrap_err().to_string().contains("another server"));
    // A request that is not signed by its key.
    let mut forged = joining().request;
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let refused = authority.join(token.secret(), &name("b"), &forged, NOW).unwrap_err();
    assert_eq!(refused.kind(), "certificate", "{refused}");
    // None of that has spent the token.
    join(&authority, &token, &at("b"), "b", NOW).unwrap();
}

#[test]
fn a_renewed_certificate_is_the_same_servers_with_another_key() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let folder = directory.path().join("a");
    let authority = Authority::create(&folder, &name("a"), NOW).unwrap();
    let identity = identity(&folder, &clock);
    let (before, file) = (identity.own(), fs::read(folder.join("server.pem")).unwrap());
    clock.set(NOW.plus(12 * HOUR - 1));
    assert!(!identity.renewal_is_due());
    clock.set(NOW.plus(12 * HOUR));
    assert!(identity.renewal_is_due());
    identity.renewal_failed();
    assert!(!identity.renewal_is_due());
    let now = NOW.plus(12 * HOUR + 60);
    clock.set(now);
    assert!(identity.renewal_is_due());
    let renewal = identity.begin_renewal().unwrap();
    let issued = authority.renew(before.member, &renewal.request, now).unwrap();
    identity.end_renewal(&renewal, &issued).unwrap();
    let own = identity.own();
    assert_eq!((own.member, &own.name), (before.member, &before.name));
    assert_eq!(own.ends, now.plus(24 * HOUR));
    assert!(!identity.renewal_is_due());
    assert_ne!(fs::read(folder.join("server.pem")).unwrap(), file);
    assert_eq!(Identity::open(&folder, clock.clone()).unwrap().unwrap().own(), own);
    // Another server's certificate is not taken, nor one for another key.
    let other = directory.path().join("b");
    join(&authority, &authority.issue_token(now).unwrap(), &other, "b", now).unwrap();
    let of_other = Identity::open(&other, clock.clone()).unwrap().unwrap().own().member;
    let renewal = identity.begin_renewal().unwrap();
    let issued = authority.renew(of_other, &renewal.request, now).unwrap();
    assert!(identity.end_renewal(&renewal, &issued).is_err());
    let another = identity.begin_renewal().unwrap();
    let issued = authority.renew(own.member, &another.request, now).unwrap();
    assert!(identity.end_renewal(&renewal, &issued).is_err());
    assert_eq!(identity.own(), own);
    // A removed one gets none.
    authority.remove("b", now).unwrap();
    assert_eq!(authority.renew(of_other, &renewal.request, now).unwrap_err().kind(), "unknown-server");
}

#[test]
fn two_processes_share_one_record() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("a");
    let one = Authority::create(&folder, &name("a"), NOW).unwrap();
    let other = Authority::open(&folder).unwrap().unwrap();
    assert_eq!(one.state().unwrap().servers().len(), 1);
    std::thread::scope(|scope| {
        for (authority, called) in [(&one, "one"), (&other, "other")] {
            let directory = &directory;
            scope.spawn(move || {
                for number in 0..8 {
                    let called = format!("{called}-{number}");
                    let token = authority.issue_token(NOW).unwrap();
                    join(authority, &token, &directory.path().join(&called), &called, NOW).unwrap();
                }
            });
        }
    });
    assert_eq!(one.state().unwrap(), other.state().unwrap());
    assert_eq!(one.state().unwrap().servers().len(), 17);
    let removed = other.remove("one-3", NOW).unwrap();
    assert_eq!(one.state().unwrap().removed().collect::<Vec<_>>(), [removed]);
}

#[test]
fn a_damaged_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("a");
    Authority::create(&folder, &name("a"), NOW).unwrap();
    for file in ["authority.pem", "server.pem", "ledger.json"] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        for cut in [0, whole.len() / 2] {
            fs::write(&path, &whole[..cut]).unwrap();
            let failed = match file {
                "server.pem" => Identity::open(&folder, std::sync::Arc::new(SystemClock)).map(drop),
                _ => Authority::open(&folder).and_then(|authority| authority.unwrap().state()).map(drop),
            };
            let failed = failed.unwrap_err();
            assert!(matches!(failed, Error::Damaged { .. }), "{failed}");
            assert!(failed.to_string().contains(file), "{failed}");
        }
        fs::write(&path, &whole).unwrap();
    }
    assert!(Hash::of(b"a").is(&Hash::of(b"a")) && !Hash::of(b"a").is(&Hash::of(b"b")));
}
