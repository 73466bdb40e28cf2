//! Joining over sockets: who asks is sent to the leader, waits for one, and gives up in time.

#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ecotone_identity::join::Joining;
use ecotone_identity::{
    Authority, Clock, Identity, JoinToken, Joined, MemberId, Peer, SystemClock, check_request, found,
};
use ecotone_transport::enrollment::{
    self, Asked, Enrollment, Introduction, MAX_REDIRECTS, NO_LEADER, NOT_HERE, granted, no_leader, not_here, refused,
};
use ecotone_transport::file_server::FileServer;
use ecotone_transport::listener::{Accepting, accept};
use ecotone_transport::peers::Quotas;
use ecotone_transport::security::Security;
use ecotone_transport::wire::{EnrollReply, EnrollRequest};
use ecotone_transport::{Error, PROTOCOL_VERSION};
use ecotone_types::{Duty, DutyObserver, ServerId};
use tempfile::TempDir;
use tokio::net::TcpListener;

const LONGEST: Duration = Duration::from_secs(5);

fn name(name: &str) -> ServerId {
    ServerId::new(name).unwrap()
}

fn about() -> Introduction {
    Introduction {
        zone: "cellar".into(),
        is_witness: true,
        min_feature_level: 1,
        max_feature_level: 2,
        address: Some("edge.example:7411".into()),
    }
}

struct NoDuties;

impl DutyObserver for NoDuties {
    fn begin(&self, _duty: Duty) {}
    fn end(&self) {}
}

/// Answers as it was told to, in this order, and grants what is asked for behind that.
struct Told {
    authority: Arc<Authority>,
    replies: Mutex<VecDeque<EnrollReply>>,
    heard: Mutex<Vec<Asked>>,
}

impl Told {
    fn heard(&self) -> Vec<Asked> {
        self.heard.lock().unwrap().clone()
    }
}

impl Enrollment for Told {
    fn answer(&self, request: &EnrollRequest, peer: Option<&Peer>) -> EnrollReply {
        let asked = match Asked::read(request, peer) {
            Ok(asked) => asked,
            Err(refusal) => return *refusal,
        };
        self.heard.lock().unwrap().push(asked.clone());
        if let Some(reply) = self.replies.lock().unwrap().pop_front() {
            return reply;
        }
        let now = SystemClock.now();
        let (member, name, request) = match &asked {
            Asked::Renew { member, name, certificate_request } => (*member, name, certificate_request),
            Asked::Join(join) => match self.authority.check_token(&join.token, now) {
                Ok(_) => (MemberId::from_number(2), &join.name, &join.certificate_request),
                Err(error) => return refused(error.kind(), error),
            },
        };
        granted(&self.authority.issue(member, name, request, now).unwrap(), member, 7)
    }
}

/// A server of a federation that listens.
struct Server {
    address: String,
    told: Arc<Told>,
}

impl Server {
    async fn begin(folder: &Path, authority: &Arc<Authority>, replies: impl Into<VecDeque<EnrollReply>>) -> Server {
        let identity = Identity::open(folder, Arc::new(SystemClock)).unwrap().unwrap();
        let security = Security::new(Some(Arc::new(identity)), Quotas::with_rate(1e9));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let told = Arc::new(Told {
            authority: authority.clone(),
            replies: Mutex::new(replies.into()),
            heard: Mutex::default(),
        });
        let files = FileServer::new(Arc::default(), Arc::default(), Arc::new(NoDuties), Arc::new(|_| {}));
        let accepting = Accepting {
            security,
            file_server: Arc::new(files),
            for_calls: tokio::sync::mpsc::channel(1).0,
            enrollment: told.clone(),
            max_connections: 16,
            greeting_timeout: LONGEST,
        };
        tokio::spawn(accept(listener, accepting));
        Server { address, told }
    }
}

/// A federation, and a folder that is to join it.
struct Stage {
    directory: TempDir,
    authority: Arc<Authority>,
    token: JoinToken,
}

impl Stage {
    fn new() -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let founded = found(&directory.path().join("first"), &name("first"), SystemClock.now()).unwrap();
        let token = founded.authority.issue_token(SystemClock.now()).unwrap();
        Stage { directory, authority: Arc::new(founded.authority), token }
    }

    async fn server(&self, replies: impl Into<VecDeque<EnrollReply>>) -> Server {
        Server::begin(&self.directory.path().join("first"), &self.authority, replies).await
    }

    async fn join_within(&self, address: &str, longest: Duration) -> Result<Joined, Error> {
        let folder = self.directory.path().join("new");
        let joining = Joining::begin(&folder, self.token.clone(), name("new"))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        enrollment::join(joining, address, &about(), &clock, longest).await
    }

    async fn join(&self, address: &str) -> Result<Joined, Error> {
        self.join_within(address, LONGEST).await
    }

    fn has_joined(&self) -> Option<Joined> {
        let folder = self.directory.path().join("new");
        let identity = Identity::open(&folder, Arc::new(SystemClock)).unwrap()?;
        Joined::read(&folder, &identity).unwrap()
    }
}

fn is_refused(outcome: &Result<Joined, Error>, named: &str) -> bool {
    matches!(outcome, Err(Error::Refused { reason, .. }) if reason == named)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_says_what_the_log_needs_and_keeps_what_its_own_log_begins_with() {
    let stage = Stage::new();
    let leader = stage.server([]).await;
    let other = stage.server([not_here(&leader.address)]).await;
    let joined = stage.join(&other.address).await.unwrap();
    assert_eq!((joined.member, joined.generation), (MemberId::from_number(2), 7));
    assert_eq!(joined.federation, stage.authority.federation());
    assert_eq!(stage.has_joined(), Some(joined));
    let heard = leader.told.heard();
    let [Asked::Join(asked)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((&asked.name, &asked.about, &asked.directory), (&name("new"), &about(), &joined.directory));
    check_request(&asked.certificate_request).unwrap();
    assert_eq!(other.told.heard(), heard, "it asks the same wherever it is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_sent_around_in_a_circle_pauses_and_gives_up_in_time() {
    let stage = Stage::new();
    let circle = stage.server([]).await;
    let around = |times| circle.told.replies.lock().unwrap().extend((0..times).map(|_| not_here(&circle.address)));
    around(1000);
    let longest = Duration::from_secs(1);
    let outcome = stage.join_within(&circle.address, longest).await;
    // What it was told last, or that the answer that was on its way came too late.
    let is_late = matches!(&outcome, Err(Error::Unreachable { what, .. }) if what.contains("in time"));
    assert!(is_refused(&outcome, NOT_HERE) || is_late, "{outcome:?}");
    let asked = circle.told.heard().len();
    assert!((2..=4).contains(&(asked / (1 + MAX_REDIRECTS))), "{asked} requests within a second");
    assert_eq!(stage.has_joined(), None);
    // Once they all know who leads, it comes to an end.
    circle.told.replies.lock().unwrap().clear();
    around(1 + MAX_REDIRECTS);
    stage.join(&circle.address).await.unwrap();
    // What is no address is not followed.
    let stage = Stage::new();
    for wrong in ["", "edge", "edge:port", "a b:1", "edge:1\r\n", &format!("{}:1", "e".repeat(300))] {
        let server = stage.server([not_here(wrong)]).await;
        let outcome = stage.join(&server.address).await;
        assert!(is_refused(&outcome, NOT_HERE), "{wrong:?}: {outcome:?}");
        assert_eq!(server.told.heard().len(), 1, "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nobody_leads_it_is_asked_again_until_the_time_is_over() {
    let stage = Stage::new();
    let electing = stage.server([no_leader(), no_leader()]).await;
    let joined = stage.join(&electing.address).await.unwrap();
    assert_eq!(stage.has_joined(), Some(joined));
    let heard = electing.told.heard();
    assert!(heard.len() == 3 && heard.iter().all(|asked| *asked == heard[0]), "{heard:?}");

    let stage = Stage::new();
    let leaderless = stage.server([]).await;
    leaderless.told.replies.lock().unwrap().extend((0..100).map(|_| no_leader()));
    let (began, longest) = (Instant::now(), Duration::from_secs(1));
    let outcome = stage.join_within(&leaderless.address, longest).await;
    assert!(is_refused(&outcome, NO_LEADER), "{outcome:?}");
    assert!(began.elapsed() <= 2 * longest, "{:?}", began.elapsed());
    assert!((2..=4).contains(&leaderless.told.heard().len()), "it is asked with pauses");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_gone_is_looked_for_again_where_one_was_told_to_ask() {
    let stage = Stage::new();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let leader = stage.server([]).await;
    let other = stage.server([not_here(&gone), not_here(&gone), not_here(&leader.address)]).await;
    stage.join(&other.address).await.unwrap();
    assert_eq!((other.told.heard().len(), leader.told.heard().len()), (3, 1));
    // Where nobody answers at all the address is wrong, mostly: it is said at once.
    let began = Instant::now();
    let outcome = stage.join(&gone).await;
    assert!(matches!(outcome, Err(Error::Unreachable { .. })), "{outcome:?}");
    assert!(began.elapsed() < LONGEST / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_to_its_federation_only_wherever_one_is_sent() {
    let (stage, foreign) = (Stage::new(), Stage::new());
    let stranger = foreign.server([]).await;
    let other = stage.server(vec![not_here(&stranger.address); 100]).await;
    let outcome = stage.join_within(&other.address, Duration::from_secs(1)).await;
    assert!(matches!(&outcome, Err(Error::Unreachable { what, .. }) if what.contains("federation")), "{outcome:?}");
    assert_eq!(stranger.told.heard(), []);
    assert!(matches!(stage.join(&stranger.address).await, Err(Error::Unreachable { .. })));
    assert_eq!((stranger.told.heard(), stage.has_joined()), (vec![], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_is_asked_for_again_with_the_same_key_and_directory() {
    let stage = Stage::new();
    // Granted, and not what was asked for: the new server takes it for lost.
    let issue = |number| {
        let joining = Joining::begin(&stage.directory.path().join("x"), stage.token.clone(), name("x")).unwrap();
        let member = MemberId::from_number(number);
        (stage.authority.issue(member, &name("x"), &joining.request, SystemClock.now()).unwrap(), member)
    };
    let (wrong, member) = issue(2);
    let server = stage.server([granted(&wrong, member, 7)]).await;
    let outcome = stage.join(&server.address).await;
    assert!(matches!(outcome, Err(Error::Identity(_))), "{outcome:?}");
    assert_eq!(stage.has_joined(), None);
    let joined = stage.join(&server.address).await.unwrap();
    let heard = server.told.heard();
    let [Asked::Join(first), Asked::Join(again)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((&first.directory, &first.token), (&again.directory, &again.token));
    assert_eq!(joined.directory, first.directory);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_certificate_comes_from_whoever_leads() {
    let stage = Stage::new();
    let leader = stage.server([no_leader()]).await;
    let other = stage.server([not_here(&leader.address), not_here(&leader.address)]).await;
    stage.join(&leader.address).await.unwrap();
    let folder = stage.directory.path().join("new");
    let identity = Arc::new(Identity::open(&folder, Arc::new(SystemClock)).unwrap().unwrap());
    let before = std::fs::read(folder.join("server.pem")).unwrap();
    let security = Security::new(Some(identity.clone()), Quotas::with_rate(1e9));
    leader.told.replies.lock().unwrap().push_back(no_leader());
    enrollment::renew(&security, &other.address, LONGEST).await.unwrap();
    assert_ne!(std::fs::read(folder.join("server.pem")).unwrap(), before);
    let heard = leader.told.heard();
    let Some(Asked::Renew { member, name: called, .. }) = heard.last() else { panic!("{heard:?}") };
    assert_eq!((*member, called), (identity.own().member, &name("new")));
}

#[test]
fn a_request_that_the_log_could_not_take_is_refused_before_anything_is_spent() {
    let stage = Stage::new();
    let joining = Joining::begin(&stage.directory.path().join("new"), stage.token.clone(), name("new")).unwrap();
    let good = EnrollRequest {
        protocol_version: PROTOCOL_VERSION,
        token: stage.token.secret().to_vec(),
        server: "new".into(),
        certificate_request: joining.request.clone(),
        directory: joining.directory().to_vec(),
        zone: "z".repeat(64),
        witness: false,
        min_feature_level: 1,
        max_feature_level: 1,
        announced_address: String::new(),
    };
    let asked = Asked::read(&good, None).unwrap();
    assert!(matches!(&asked, Asked::Join(join) if join.about.address.is_none() && join.about.zone.len() == 64));
    let wrong = |change: &dyn Fn(&mut EnrollRequest)| {
        let mut request = good.clone();
        change(&mut request);
        Asked::read(&request, None).unwrap_err()
    };
    type Change<'c> = &'c dyn Fn(&mut EnrollRequest);
    let changes: [(&str, Change<'_>); 14] = [
        ("version", &|request| request.protocol_version += 1),
        ("certificate", &|request| request.certificate_request.clear()),
        ("certificate", &|request| *request.certificate_request.last_mut().unwrap() ^= 1),
        ("name", &|request| request.server.clear()),
        ("name", &|request| request.server = "n".repeat(65)),
        ("malformed", &|request| request.directory.clear()),
        ("malformed", &|request| request.directory.push(0)),
        ("malformed", &|request| request.zone.push('z')),
        ("malformed", &|request| request.zone = "a\nb".into()),
        ("malformed", &|request| request.min_feature_level = 0),
        ("malformed", &|request| request.min_feature_level = 2),
        ("malformed", &|request| request.announced_address = "edge".into()),
        ("malformed", &|request| request.announced_address = "edge:65536".into()),
        ("malformed", &|request| request.announced_address = format!("{}:7411", "e".repeat(257))),
    ];
    for (at, (expected, change)) in changes.into_iter().enumerate() {
        let refusal = wrong(change);
        assert_eq!(refusal.refusal, expected, "change {at}: {}", refusal.detail);
        assert!(refusal.certificate.is_empty());
    }
}
