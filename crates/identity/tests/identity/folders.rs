//! Identities on disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ecotone_identity::join::Joining;
use ecotone_identity::token::fingerprint;
use ecotone_identity::{Error, Founded, Identity, JoinToken, Joined, MemberId, SealKey, found};

use crate::{HOUR, NOW, Set, identity, join, name};

#[test]
fn a_token_has_this_form_and_no_other_text_is_one() {
    let text = format!("eco1-{}-{}", "0123456789abcdef".repeat(4), "fedcba9876543210".repeat(4));
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

/// Opens the file of this name in a folder that has all.
fn open_file(folder: &Path, file: &str) -> Result<(), Error> {
    let identity = || Identity::open(folder, Set::at(NOW)).map(Option::unwrap);
    match file {
        "server.pem" => identity().map(drop),
        "joined.json" => Joined::read(folder, &identity()?).map(drop),
        "seal.key" => SealKey::load(folder).map(drop),
        "authority.sealed" => Founded::read(folder, &identity()?).map(drop),
        _ => panic!("{file} is opened by nobody"),
    }
}

const FILES: [&str; 4] = ["authority.sealed", "joined.json", "seal.key", "server.pem"];

#[test]
fn what_is_secret_may_be_read_by_its_owner_only_and_is_refused_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("store/identity");
    let founded = found(&folder, &name("a"), NOW).unwrap();
    let token = founded.authority.issue_token(NOW).unwrap().to_string();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
        let secret = token.split('-').nth(1).unwrap();
        assert!(!fs::read_to_string(file).unwrap().contains(secret), "the token is kept in {}", file.display());
    }
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["authority.sealed", "creation-lock", "joined.json", "seal.key", "server.pem"]);
    for file in FILES {
        let path = folder.join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = open_file(&folder, file).unwrap_err().to_string();
        assert!(refused.contains(file) && refused.contains("640") && refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        open_file(&folder, file).unwrap();
    }
}

#[test]
fn a_federation_is_made_once_in_a_folder() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let folder = directory.path().join("identity");
    let founded = found(&folder, &name("a"), NOW).unwrap();
    let before = fs::read(folder.join("server.pem")).unwrap();
    let refused = found(&folder, &name("b"), NOW).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Usage(what) if what.contains("server.pem")), "{refused}");
    assert_eq!(fs::read(folder.join("server.pem")).unwrap(), before);
    // What the log is to begin with is there until the log has it, however often this is interrupted.
    for _ in 0..2 {
        let read = Founded::read(&folder, &identity(&folder, &clock)).unwrap().unwrap();
        assert_eq!((read.joined, read.name, &read.seal), (founded.joined, name("a"), &founded.seal));
        assert_eq!(read.sealed, founded.sealed);
        assert_eq!(read.authority.certificate(), founded.authority.certificate());
    }
    Founded::end(&folder).unwrap();
    assert!(Founded::read(&folder, &identity(&folder, &clock)).unwrap().is_none());
    assert!(found(&folder, &name("b"), NOW).is_err(), "it is still a server's folder");
    // Nor in the folder of a server that has joined one.
    let joined = directory.path().join("joined");
    join(&founded.authority, 2, &joined, "b", NOW).unwrap();
    assert!(found(&joined, &name("b"), NOW).is_err());
    assert!(Founded::read(&joined, &identity(&joined, &clock)).unwrap().is_none());
    // Names that no certificate can have.
    let long = found(&directory.path().join("long"), &name(&"n".repeat(65)), NOW).map(drop);
    assert!(long.unwrap_err().to_string().contains("64"));
}

#[test]
fn a_making_that_was_interrupted_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    let first = found(&whole, &name("a"), NOW).unwrap();
    // Whatever was written, in any order, without the identity: nobody was let in by it.
    for there in 0..8_u8 {
        let folder = directory.path().join(format!("cut-{there}"));
        fs::create_dir(&folder).unwrap();
        for (bit, file) in ["seal.key", "authority.sealed", "joined.json"].into_iter().enumerate() {
            if there & 1 << bit != 0 {
                fs::copy(whole.join(file), folder.join(file)).unwrap();
            }
        }
        assert!(Identity::open(&folder, Set::at(NOW)).unwrap().is_none());
        let again = found(&folder, &name("c"), NOW).unwrap();
        assert_ne!(again.federation(), first.federation());
        assert_ne!(again.joined.directory, first.joined.directory);
        let read = Founded::read(&folder, &identity(&folder, &Set::at(NOW))).unwrap().unwrap();
        assert_eq!((read.joined, read.sealed), (again.joined, again.sealed));
    }
}

#[test]
fn who_joins_gets_what_the_authority_says_and_the_key_stays_where_it_was_made() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let authority = found(&directory.path().join("a"), &name("a"), NOW).unwrap().authority;
    let token = authority.issue_token(NOW).unwrap();
    assert!(token.authority().is(&fingerprint(authority.certificate()).unwrap()));
    let folder = directory.path().join("b");
    let (member, later) = (MemberId::from_number(7), NOW.plus(60));
    // The first answer is lost.
    let lost = Joining::begin(&folder, token.clone(), name("b")).unwrap();
    let drawn = *lost.directory();
    drop(lost);
    let key = fs::read_to_string(folder.join("joining.pem")).unwrap();
    let again = Joining::begin(&folder, token.clone(), name("b")).unwrap();
    assert_eq!(*again.directory(), drawn, "by another one it would get another number");
    let issued = authority.issue(member, &name("b"), &again.request, later).unwrap();
    let joined = again.end(&issued, member, 3, later).unwrap();
    let expected = Joined { federation: authority.federation(), member, directory: drawn, generation: 3 };
    assert_eq!(joined, expected);
    assert!(!folder.join("joining.pem").exists());
    let key = key.split_inclusive("-----END PRIVATE KEY-----").next().unwrap();
    assert!(fs::read_to_string(folder.join("server.pem")).unwrap().starts_with(key), "it is the same key");
    let identity = identity(&folder, &clock);
    assert_eq!(Joined::read(&folder, &identity).unwrap(), Some(expected));
    let own = identity.own();
    assert_eq!((own.federation, own.member, own.name), (authority.federation(), member, name("b")));
    assert_eq!((own.begins, own.ends), (NOW.plus(60).minus(300), NOW.plus(60 + 24 * HOUR)));
    // Another folder draws another directory.
    let other = Joining::begin(&directory.path().join("c"), token, name("c")).unwrap();
    assert_ne!(*other.directory(), drawn);
}

#[test]
fn who_is_interrupted_while_it_takes_the_answer_asks_again() {
    let directory = tempfile::tempdir().unwrap();
    let authority = found(&directory.path().join("a"), &name("a"), NOW).unwrap().authority;
    let folder = directory.path().join("b");
    let joining = || Joining::begin(&folder, authority.issue_token(NOW).unwrap(), name("b")).unwrap();
    let before = fs::read(
        Joining::begin(&folder, authority.issue_token(NOW).unwrap(), name("b"))
            .map(|_| folder.join("joining.pem"))
            .unwrap(),
    )
    .unwrap();
    let end = |generation| {
        let (joining, member) = (joining(), MemberId::from_number(2));
        let issued = authority.issue(member, joining.name(), &joining.request, NOW).unwrap();
        joining.end(&issued, member, generation, NOW).unwrap()
    };
    let first = end(1);
    // As if it had ended before the certificate was there.
    fs::remove_file(folder.join("server.pem")).unwrap();
    fs::write(folder.join("joining.pem"), before).unwrap();
    fs::set_permissions(folder.join("joining.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    let second = end(2);
    assert_eq!(second, Joined { generation: 2, ..first });
    assert_eq!(Joined::read(&folder, &identity(&folder, &Set::at(NOW))).unwrap(), Some(second));
}

#[test]
fn an_answer_of_another_authority_or_for_another_key_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let authority = found(&at("a"), &name("a"), NOW).unwrap().authority;
    let foreign = found(&at("x"), &name("x"), NOW).unwrap().authority;
    let token = authority.issue_token(NOW).unwrap();
    let joining = || Joining::begin(&at("b"), token.clone(), name("b")).unwrap();
    let second = MemberId::from_number(2);
    let refused = |issued, member| joining().end(&issued, member, 1, NOW).unwrap_err().to_string();
    let of_foreign = foreign.issue(second, &name("b"), &joining().request, NOW).unwrap();
    assert!(refused(of_foreign, second).contains("another authority"));
    // The right authority for the wrong name, number, key, time.
    let other = Joining::begin(&at("c"), token.clone(), name("c")).unwrap();
    let of_other = authority.issue(second, &name("c"), &joining().request, NOW).unwrap();
    assert!(refused(of_other, second).contains("another server"));
    let own = authority.issue(second, &name("b"), &joining().request, NOW).unwrap();
    assert!(refused(own, MemberId::from_number(3)).contains("another server"));
    let nobody = MemberId::from_number(0);
    let of_nobody = authority.issue(nobody, &name("b"), &joining().request, NOW).unwrap();
    assert!(refused(of_nobody, nobody).contains("another server"));
    let of_other = authority.issue(second, &name("b"), &other.request, NOW).unwrap();
    assert!(refused(of_other, second).contains("do not belong together"));
    let ended = authority.issue(second, &name("b"), &joining().request, NOW.minus(48 * HOUR)).unwrap();
    assert!(refused(ended, second).contains("not good"));
    // A request that is not signed by its key.
    let mut forged = joining().request;
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let refused = authority.issue(second, &name("b"), &forged, NOW).unwrap_err();
    assert_eq!(refused.kind(), "certificate", "{refused}");
    // None of that has made an identity.
    assert!(Identity::open(&at("b"), Set::at(NOW)).unwrap().is_none());
    join(&authority, 2, &at("b"), "b", NOW).unwrap();
}

#[test]
fn a_renewed_certificate_is_the_same_servers_with_another_key() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Set::at(NOW));
    let folder = directory.path().join("a");
    let authority = found(&folder, &name("a"), NOW).unwrap().authority;
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
    let issued = authority.issue(before.member, &before.name, &renewal.request, now).unwrap();
    identity.end_renewal(&renewal, &issued).unwrap();
    let own = identity.own();
    assert_eq!((own.member, &own.name), (before.member, &before.name));
    assert_eq!(own.ends, now.plus(24 * HOUR));
    assert!(!identity.renewal_is_due());
    assert_ne!(fs::read(folder.join("server.pem")).unwrap(), file);
    assert_eq!(Identity::open(&folder, clock.clone()).unwrap().unwrap().own(), own);
    // Another server's certificate is not taken, nor one for another key, nor a foreign one.
    let renewal = identity.begin_renewal().unwrap();
    let issued = authority.issue(MemberId::from_number(2), &own.name, &renewal.request, now).unwrap();
    assert!(identity.end_renewal(&renewal, &issued).is_err());
    let issued = authority.issue(own.member, &name("b"), &renewal.request, now).unwrap();
    assert!(identity.end_renewal(&renewal, &issued).is_err());
    let another = identity.begin_renewal().unwrap();
    let issued = authority.issue(own.member, &own.name, &another.request, now).unwrap();
    assert!(identity.end_renewal(&renewal, &issued).is_err());
    let foreign = found(&directory.path().join("x"), &name("a"), NOW).unwrap().authority;
    assert!(foreign.renew(&identity).is_err());
    assert_eq!(identity.own(), own);
    // Long after it has ended, with nobody to ask.
    clock.set(now.plus(1000 * HOUR));
    authority.renew(&identity).unwrap();
    assert_eq!(identity.own().ends, now.plus(1024 * HOUR));
}

#[test]
fn a_damaged_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("a");
    found(&folder, &name("a"), NOW).unwrap();
    for file in FILES {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        // Half of a sealed authority is a matter of its seal.
        let cut = if file == "authority.sealed" { 1 } else { whole.len() / 2 };
        for content in [&whole[..cut], b"\xff\xfe", b"!"] {
            fs::write(&path, content).unwrap();
            let failed = open_file(&folder, file).unwrap_err();
            assert!(failed.to_string().contains(file), "{failed}");
        }
        fs::write(&path, &whole).unwrap();
    }
    // What is of another server.
    let other = directory.path().join("b");
    found(&other, &name("b"), NOW).unwrap();
    fs::copy(other.join("joined.json"), folder.join("joined.json")).unwrap();
    let failed = open_file(&folder, "joined.json").unwrap_err();
    assert!(matches!(failed, Error::Damaged { .. }), "{failed}");
    fs::remove_file(folder.join("joined.json")).unwrap();
    open_file(&folder, "joined.json").expect("the log is begun");
    let failed = open_file(&folder, "authority.sealed").unwrap_err();
    assert!(matches!(failed, Error::Damaged { .. }) && failed.to_string().contains("not beside it"), "{failed}");
}
