//! The power manager: a table of situations decided by hand, and what holds in every one.

use ecotone_policy::power::{
    CapState, Domain, MAX_PROMOTION_WAIT, PowerMode, PowerPlan, PowerSettings, Promotion, Role, ServerPower, Step,
    plan, promotion,
};
use ecotone_types::units::{Cores, Hertz, Seconds, Time, Watts};
use ecotone_types::{CoreClass, Duty, ServerId, Task};
use proptest::prelude::*;

const TABLE: &str = include_str!("../golden/power.txt");

#[derive(Default)]
struct Situation {
    title: String,
    settings: PowerSettings,
    servers: Vec<ServerPower>,
    expected: Vec<String>,
}

fn number(word: &str) -> f64 {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number"))
}

fn role(name: &str) -> Role {
    Role::ALL.into_iter().find(|role| role.name() == name).unwrap_or_else(|| panic!("the table does not know `{name}`"))
}

fn parse() -> Vec<Situation> {
    let mut situations: Vec<Situation> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            situations.push(Situation { title: title.to_owned(), ..Situation::default() });
            continue;
        }
        let now = situations.last_mut().expect("a title comes first");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "mode" => now.settings.mode = words[1].parse().unwrap(),
            "cap" => now.settings.cap = Some(Watts(number(words[1]))),
            "server" => now.servers.push(ServerPower {
                server: ServerId::new(words[1]).unwrap(),
                idle: Watts(number(words[3])),
                domains: Vec::new(),
                demand: Vec::new(),
            }),
            "domain" => {
                let step = |word: &&str| {
                    let (ghz, watts) = word.split_once(':').unwrap();
                    Step { frequency: Hertz(number(ghz) * 1e9), watts: Watts(number(watts)) }
                };
                let cores = words[1].split(',').map(|core| core.parse().unwrap()).collect();
                let domain = Domain { cores, steps: words[2..].iter().map(step).collect() };
                now.servers.last_mut().unwrap().domains.push(domain);
            }
            "=>" => now.expected.push(line[3..].to_owned()),
            name => now.servers.last_mut().unwrap().demand.push((role(name), Cores(number(words[1])))),
        }
    }
    situations
}

/// The table's words for a decision, figures rounded as the table has them.
fn words(situation: &Situation, plan: &PowerPlan) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut joules, mut deferred) = (0.0, 0.0);
    for (server, of) in situation.servers.iter().zip(&plan.servers) {
        let mut line = of.server.to_string();
        for (class, hz) in of.classes.iter().zip(of.caps(server)) {
            let class = if *class == CoreClass::Fast { 'f' } else { 's' };
            line += &format!(" {class}@{:.1}", hz.0 / 1e9);
        }
        lines.push(line);
        joules += of.predicted(server, Seconds(1.0)).0;
        deferred += of.deferred(server).0;
    }
    let cap = match plan.cap {
        CapState::None => "-",
        CapState::Kept => "kept",
        CapState::CannotBeKept(least) => {
            assert_eq!(least, plan.most);
            "broken"
        }
    };
    let short = |value: f64| (value * 1e4).round() / 1e4;
    lines.push(format!("most {} {cap}", short(plan.most.0)));
    lines.push(format!("joules {}", short(joules)));
    lines.push(format!("deferred {}", short(deferred)));
    lines
}

#[test]
fn every_situation_is_decided_as_the_table_says() {
    let situations = parse();
    assert!(situations.len() > 12, "the table was read: {} situations", situations.len());
    let mut wrong = Vec::new();
    for situation in &situations {
        let got = words(situation, &plan(situation.settings, &situation.servers));
        for line in &situation.expected {
            if !got.contains(line) {
                wrong.push(format!("{}\n  expected {line}\n  got      {got:?}", situation.title));
            }
        }
        // Nothing waits unless the table says so.
        if !situation.expected.iter().any(|line| line.starts_with("deferred"))
            && !got.contains(&"deferred 0".to_owned())
        {
            wrong.push(format!("{}\n  nothing should wait\n  got      {got:?}", situation.title));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Ladders as processors have them: voltage falls with frequency, so that work costs no more at a
/// lower step.
fn ladder() -> impl Strategy<Value = Vec<Step>> {
    (0.5..4.0f64, 0.5..20.0f64, proptest::collection::vec((0.5..0.95f64, 0.8..1.0f64), 0..6)).prop_map(
        |(ghz, watts, below)| {
            let mut steps = vec![Step { frequency: Hertz(ghz * 1e9), watts: Watts(watts) }];
            for (frequency, volts) in below {
                let last = steps[steps.len() - 1];
                steps.push(Step {
                    frequency: Hertz(last.frequency.0 * frequency),
                    watts: Watts(last.watts.0 * frequency * volts * volts),
                });
            }
            steps
        },
    )
}

fn servers() -> impl Strategy<Value = Vec<ServerPower>> {
    let domain = (1usize..5, ladder()).prop_map(|(cores, steps)| Domain { cores: (0..cores as u32).collect(), steps });
    let demand = proptest::collection::vec((0..Role::ALL.len(), 0.0..4.0f64), 0..6);
    let server = (0.0..30.0f64, proptest::collection::vec(domain, 0..5), demand).prop_map(|(idle, domains, demand)| {
        let demand = demand.into_iter().map(|(role, cores)| (Role::ALL[role], Cores(cores))).collect();
        ServerPower { server: ServerId::new("s").unwrap(), idle: Watts(idle), domains, demand }
    });
    proptest::collection::vec(server, 1..5).prop_map(|mut servers| {
        for (number, server) in servers.iter_mut().enumerate() {
            server.server = ServerId::new(format!("s{number}")).unwrap();
        }
        servers
    })
}

fn joules(plan: &PowerPlan, servers: &[ServerPower]) -> f64 {
    plan.servers.iter().zip(servers).map(|(plan, server)| plan.predicted(server, Seconds(10.0)).0).sum()
}

/// What all servers draw with every core busy at its lowest step.
fn least(servers: &[ServerPower]) -> f64 {
    let domain = |domain: &Domain| domain.steps.last().unwrap().watts.0 * domain.cores.len() as f64;
    servers.iter().map(|server| server.idle.0 + server.domains.iter().map(domain).sum::<f64>()).sum()
}

proptest! {
    #[test]
    fn a_lower_cap_never_raises_joules_and_a_cap_that_can_be_kept_is(
        servers in servers(), mode in 0usize..3, caps in proptest::array::uniform2(0.0..400.0f64)
    ) {
        let mode = PowerMode::ALL[mode];
        let [low, high] = if caps[0] <= caps[1] { caps } else { [caps[1], caps[0]] };
        let with = |cap| plan(PowerSettings { mode, cap }, &servers);
        let (low_plan, high_plan, free) = (with(Some(Watts(low))), with(Some(Watts(high))), with(None));
        let tolerance = 1.0 + 1e-12;
        prop_assert!(joules(&low_plan, &servers) <= joules(&high_plan, &servers) * tolerance);
        prop_assert!(joules(&high_plan, &servers) <= joules(&free, &servers) * tolerance);
        for (plan, cap) in [(&low_plan, low), (&high_plan, high)] {
            match plan.cap {
                CapState::Kept => prop_assert!(plan.most.0 <= cap),
                CapState::CannotBeKept(watts) => {
                    prop_assert!(watts.0 > cap && (watts.0 - least(&servers)).abs() <= 1e-9 * watts.0.max(1.0));
                }
                CapState::None => prop_assert!(false),
            }
            prop_assert_eq!(plan.servers.iter().map(|p| &p.classes).collect::<Vec<_>>(),
                free.servers.iter().map(|p| &p.classes).collect::<Vec<_>>());
            // Fast cores are lowered only when every slow one is at its lowest.
            let of = |class: CoreClass| plan.servers.iter().zip(&free.servers).zip(&servers).flat_map(move |((p, f), s)| {
                (0..p.classes.len()).filter(move |d| p.classes[*d] == class)
                    .map(move |d| (p.steps[d] > f.steps[d], p.steps[d] + 1 == s.domains[d].steps.len()))
            });
            let fast_lowered = of(CoreClass::Fast).any(|(lowered, _)| lowered);
            prop_assert!(!fast_lowered || of(CoreClass::Slow).all(|(_, lowest)| lowest));
        }
    }

    #[test]
    fn in_concerto_a_read_has_a_fast_core_and_background_none_where_cores_can_be_divided(servers in servers()) {
        let plan = plan(PowerSettings { mode: PowerMode::Concerto, cap: None }, &servers);
        for (server, plan) in servers.iter().zip(&plan.servers) {
            let of = |class| (0..plan.classes.len()).filter(|d| plan.classes[*d] == class).count();
            prop_assert_eq!(of(CoreClass::Fast) > 0, !server.domains.is_empty());
            prop_assert_eq!(of(CoreClass::Slow) > 0, server.domains.len() > 1);
            // Numbered anew, so that a core tells its domain.
            let mut server = server.clone();
            for (d, domain) in server.domains.iter_mut().enumerate() {
                domain.cores.iter_mut().for_each(|core| *core += 100 * d as u32);
            }
            for role in Role::ALL {
                let cores = plan.cores(&server, PowerMode::Concerto, role);
                prop_assert_eq!(cores.is_empty(), server.domains.is_empty());
                if server.domains.len() > 1 {
                    prop_assert!(cores.iter().all(|core| plan.classes[(*core / 100) as usize] == role.class()));
                }
            }
        }
    }
}

#[test]
fn what_someone_waits_for_is_fast() {
    for (duty, is_deep, class) in [
        (Duty::Foreground, false, CoreClass::Fast),
        (Duty::Flush, false, CoreClass::Fast),
        (Duty::Compaction, false, CoreClass::Fast),
        (Duty::Compaction, true, CoreClass::Slow),
        (Duty::Worker, false, CoreClass::Fast),
        (Duty::Worker, true, CoreClass::Slow),
        (Duty::Replica, false, CoreClass::Slow),
        (Duty::Gc, false, CoreClass::Slow),
        (Duty::Read, false, CoreClass::Fast),
        (Duty::Seed, false, CoreClass::Slow),
        (Duty::Scrub, false, CoreClass::Slow),
    ] {
        assert_eq!(PowerMode::Concerto.class(Role::of(Task { duty, is_deep })), class, "{duty} {is_deep}");
    }
    // No role is one that nobody has.
    let tasks = Duty::ALL.into_iter().flat_map(|duty| [false, true].map(|is_deep| Task { duty, is_deep }));
    let had: Vec<Role> = tasks.map(Role::of).collect();
    for role in Role::ALL {
        assert!(had.contains(&role), "nothing is {}", role.name());
    }
}

#[test]
fn modes_by_name() {
    for mode in PowerMode::ALL {
        assert_eq!(mode.to_string().parse::<PowerMode>(), Ok(mode));
    }
    let error = "fast".parse::<PowerMode>().unwrap_err().to_string();
    assert!(error.contains("power.mode") && error.contains("concerto"), "{error}");
}

#[test]
fn a_promoted_copy_waits_fifty_milliseconds_at_most() {
    let at = |ms: f64| Time::from_seconds(100.0 + ms / 1e3);
    let look = |ms: f64, reached| promotion(at(0.0), at(ms), Hertz(2.2e9), reached);
    assert_eq!(look(0.0, Some(Hertz(2.15e9))), Promotion::Ready);
    assert_eq!(look(0.0, None), Promotion::Ready);
    assert_eq!(look(0.0, Some(Hertz(1.0e9))), Promotion::Wait(MAX_PROMOTION_WAIT));
    assert!(matches!(look(30.0, Some(Hertz(1.0e9))), Promotion::Wait(left) if (left.0 - 0.02).abs() < 1e-6));
    assert_eq!(look(50.001, Some(Hertz(1.0e9))), Promotion::ReadyBelowSpeed);
}
