//! Random requests from templates.
//!
//! A template is words. `<kind>` becomes a random argument, see [`Random::argument`]; `[ a b | c ]`
//! one of its alternatives or nothing; `( a | b )` one of its alternatives; `{ a b }` its words
//! once or several times. Now and then the result is spoiled: a word is lost, added or replaced, so
//! that wrong numbers of arguments and wrong options need no template.

use std::fmt;

/// How replies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Byte for byte.
    Exact,
    /// Integers that differ by no more than this; byte for byte where one is negative or none.
    Within(i64),
    /// Arrays or sets with the same elements in any order.
    AnyOrder,
    /// Arrays or maps with the same pairs in any order.
    PairsInAnyOrder,
    /// Both nothing, or both of the same kind.
    Kind,
    /// The request is one step of a scan: all steps are made, from the cursor 0 on, and what they
    /// return is compared as a set.
    WholeScan {
        /// The index of the cursor among the arguments.
        cursor: usize,
    },
    /// The same of a scan that returns pairs.
    WholeScanOfPairs {
        /// The index of the cursor among the arguments.
        cursor: usize,
    },
    /// The request is `SPOP key`: a set of one member is put under the key before it, so that it is
    /// known which one is popped. The replies are the same bytes.
    PopOne,
    /// Puts a small collection under a key: `PLANT type key`. The replies are not compared.
    Plant,
}

/// What a family of commands sends.
pub struct Family {
    /// How often, how to compare, and a template.
    pub templates: &'static [(u32, Compare, &'static str)],
}

/// A request and how its replies are compared.
#[derive(Clone)]
pub struct Request {
    pub arguments: Vec<Vec<u8>>,
    pub compare: Compare,
    /// Which of two clients sends it.
    pub client: usize,
}

impl Request {
    pub fn new(words: &[&[u8]], compare: Compare) -> Self {
        Self { arguments: words.iter().map(|word| word.to_vec()).collect(), compare, client: 0 }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.arguments.iter().map(|argument| shown(argument)).collect();
        write!(f, "{}: {}", self.client, words.join(" "))
    }
}

/// Bytes as text, quoted where needed, long ones shortened.
pub fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    let text = if text.len() > 300 { format!("{}... ({} bytes)", &text[..300], bytes.len()) } else { text };
    if text.is_empty() || text.contains(' ') { format!("\"{text}\"") } else { text }
}

/// Few, so that commands meet. Two have a hash tag in common.
const KEYS: &[&str] = &["a", "b", "c", "{t}d", "{t}e"];

/// What stands in the place of another argument now and then. None is a time that is over soon.
const JUNK: &[&[u8]] = &[
    b"",
    b"x",
    b"0",
    b"-1",
    b"1.5",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"NX",
    b"XX",
    b"\xff\xfe",
    b"a\xc3",
    b"a\0b",
    b"\r\na\r\nb\r\n",
];

/// splitmix64.
pub struct Random(u64);

/// What Redis 7.2 refuses in other words than 7.0, which is what there is to compare with on many
/// systems.
fn is_otherwise_in_7_2(arguments: &[Vec<u8>]) -> bool {
    let is = |name: &[u8]| arguments[0].eq_ignore_ascii_case(name);
    let has_least = || arguments.iter().any(|argument| argument == i64::MIN.to_string().as_bytes());
    ((is(b"ZRANK") || is(b"ZREVRANK")) && arguments.len() != 3) || (is(b"LPOS") && has_least())
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn percent(&mut self, of_100: u64) -> bool {
        self.below(100) < of_100
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }

    /// A request of one of the families, by the weights of their templates.
    pub fn request(&mut self, families: &[Family]) -> Request {
        let templates = || families.iter().flat_map(|family| family.templates);
        let mut left = self.below(templates().map(|(weight, ..)| u64::from(*weight)).sum());
        let (_, compare, template) = templates()
            .find(|(weight, ..)| {
                let found = left < u64::from(*weight);
                left = left.wrapping_sub(u64::from(*weight));
                found
            })
            .unwrap();
        let mut arguments = Vec::new();
        let words: Vec<&str> = template.split(' ').collect();
        self.fill(&words, &mut arguments);
        let mut compare = *compare;
        // A member that is popped of several is any, and what is left would not be the same.
        let may_be_spoiled = compare != Compare::Plant && !arguments[0].eq_ignore_ascii_case(b"SPOP");
        if may_be_spoiled && self.percent(6) {
            self.spoil(&mut arguments);
            // A scan whose cursor was lost is none, and draws of a number that was lost are of any.
            let is_scan =
                matches!(compare, Compare::WholeScan { .. } | Compare::WholeScanOfPairs { .. } | Compare::AnyOrder);
            if is_scan || arguments[0].to_ascii_uppercase().windows(4).any(|part| part == b"RAND") {
                compare = Compare::Kind;
            }
        }
        if is_otherwise_in_7_2(&arguments) {
            return self.request(families);
        }
        Request { arguments, compare, client: 0 }
    }

    fn fill(&mut self, words: &[&str], arguments: &mut Vec<Vec<u8>>) {
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            let closing = match *word {
                "[" => "]",
                "(" => ")",
                "{" => "}",
                word => {
                    arguments.push(self.argument(word));
                    rest = behind;
                    continue;
                }
            };
            let (inside, behind) = split_at_closing(behind, word, closing);
            rest = behind;
            let times = match *word {
                "[" => u64::from(self.percent(35)),
                "{" => 1 + self.below(3),
                _ => 1,
            };
            for _ in 0..times {
                let alternatives: Vec<&[&str]> = inside.split(|word| *word == "|").collect();
                let chosen = alternatives[self.below(alternatives.len() as u64) as usize];
                self.fill(chosen, arguments);
            }
        }
    }

    /// An argument for a word of a template.
    fn argument(&mut self, word: &str) -> Vec<u8> {
        let below = |random: &mut Self, end: u64| random.below(end).to_string().into_bytes();
        match word {
            "<key>" => self.pick(KEYS).into(),
            "<value>" => match self.below(10) {
                0..4 => self.argument("<integer>"),
                4 => self.argument("<float>"),
                5 => Vec::new(),
                6 => (0..self.below(8)).map(|_| self.next() as u8).collect(),
                // Some beyond what is stored beside the key.
                7 => vec![b'v'; self.below(600) as usize],
                _ => self.pick(&["hello", "Hello World", "10", "nan", " 1"]).into(),
            },
            "<field>" => match self.below(12) {
                0 => self.argument("<value>"),
                _ => format!("field{}", self.below(40)).into_bytes(),
            },
            // A few of them are more than a small collection holds.
            "<long>" => vec![b'l'; self.below(2000) as usize],
            "<integer>" => match self.below(8) {
                0 => self
                    .pick(&[
                        "9223372036854775807",
                        "-9223372036854775808",
                        "9223372036854775800",
                        "-9223372036854775800",
                    ])
                    .into(),
                1 => self.pick(&["9223372036854775808", "01", "+1", "-0", "1.0", "", " 1", "x", "1e3"]).into(),
                2 => self.next().cast_signed().to_string().into_bytes(),
                _ => (self.below(41) as i64 - 20).to_string().into_bytes(),
            },
            "<float>" => match self.below(6) {
                0 => self
                    .pick(&["inf", "-inf", "nan", "1e400", "1e4000", "1e5000", "1e-300", "x", "", " 1", "0x1p3", "1."])
                    .into(),
                1 => format!("{}e{}", self.below(1000), self.below(40) as i64 - 20).into_bytes(),
                _ => format!("{}.{}", self.below(200) as i64 - 100, self.below(1000)).into_bytes(),
            },
            // Around the ends of short strings and collections.
            "<index>" => match self.below(10) {
                0 => self.argument("<integer>"),
                _ => (self.below(25) as i64 - 12).to_string().into_bytes(),
            },
            "<offset>" => match self.below(12) {
                0 => self.pick(&["-1", "536870911", "536870912", "9223372036854775807", "x"]).into(),
                _ => below(self, 700),
            },
            "<count>" => match self.below(10) {
                0 => self.pick(&["0", "-1", "x", "9223372036854775807"]).into(),
                _ => (1 + self.below(20)).to_string().into_bytes(),
            },
            // Seconds and milliseconds from now: long, and hardly ever twice the same, so that to
            // compare two does not depend on when each was given.
            "<seconds>" => self.time(10_000, 2_000_000_000),
            "<milliseconds>" => self.time(10_000_000, 2_000_000_000_000),
            // Since 1970, in the year 2096. Some are the same.
            "<at-seconds>" => self.time(4_000_000_000, 4_000_000_004),
            "<at-milliseconds>" => self.time(3_999_999_999_998, 4_000_000_000_002),
            "<member>" => match self.below(12) {
                0 => self.pick(&["", "10", "-1", "01", "member that is longer", "\u{e9}"]).into(),
                _ => vec![b'a' + self.below(12) as u8],
            },
            "<score>" => match self.below(10) {
                0 => self
                    .pick(&[
                        "inf", "-inf", "+inf", "nan", "-0", "0", "1e400", "5e-324", "x", "", " 1", "0x1p3", "1.23E9",
                        "1e17",
                    ])
                    .into(),
                1 => format!("{}.{}", self.below(6) as i64 - 3, self.below(100)).into_bytes(),
                2 => self.argument("<float>"),
                _ => (self.below(9) as i64 - 4).to_string().into_bytes(),
            },
            "<bound>" => match self.below(10) {
                0 => self
                    .pick(&[
                        "",
                        "(",
                        " 1",
                        "1 ",
                        "( 1",
                        "((1",
                        "nan",
                        "(nan",
                        "1e400",
                        "-0x1p9999",
                        "(-1e400",
                        "1e-400",
                        "x",
                        "0x",
                        "(+2",
                        "-0",
                    ])
                    .into(),
                1..3 => self.pick(&["-inf", "(-inf", "-INFINITY"]).into(),
                3..5 => self.pick(&["+inf", "inf", "(inf", "(+Inf"]).into(),
                _ => [self.pick(&["", "("]).as_bytes(), &self.argument("<score>")].concat(),
            },
            "<name>" => match self.below(10) {
                0 => self.pick(&["", "a", "(", "[", "++", "-x", "+\0x", "*"]).into(),
                1..3 => "-".into(),
                3..5 => "+".into(),
                _ => [self.pick(&["[", "("]).as_bytes(), &self.argument("<member>")].concat(),
            },
            "<pattern>" => {
                self.pick(&["*", "?", "a*", "[a-c]", "[^a]", "{t}*", "*e", "\\a", "", "x", "{t}[de]"]).into()
            }
            "<type>" => self.pick(&["string", "hash", "LIST", "zset", "set", "none", "stream"]).into(),
            "<junk>" => JUNK[self.below(JUNK.len() as u64) as usize].into(),
            "<planted>" => self.pick(&["hash", "list", "set", "zset"]).into(),
            word if word.starts_with('<') => panic!("no kind of argument is called {word}"),
            word => match self.below(4) {
                0 => word.to_lowercase().into_bytes(),
                _ => word.into(),
            },
        }
    }

    fn time(&mut self, least: u64, end: u64) -> Vec<u8> {
        match self.below(12) {
            0 => self
                .pick(&[
                    "0",
                    "-1",
                    "-100000",
                    "x",
                    "",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "92233720368547758",
                ])
                .into(),
            _ => (least + self.below(end - least)).to_string().into_bytes(),
        }
    }

    fn spoil(&mut self, arguments: &mut Vec<Vec<u8>>) {
        let place = 1 + self.below(arguments.len() as u64) as usize;
        let junk = self.argument("<junk>");
        match self.below(3) {
            0 if place < arguments.len() => drop(arguments.remove(place)),
            1 if place < arguments.len() => arguments[place] = junk,
            _ => arguments.insert(place, junk),
        }
    }
}

/// Requests that show all that is left.
pub fn closing_requests() -> Vec<Request> {
    let mut requests =
        vec![Request::new(&[b"DISCARD"], Compare::Exact), Request::new(&[b"KEYS", b"*"], Compare::AnyOrder)];
    for key in KEYS.iter().map(|key| key.as_bytes()) {
        requests.push(Request::new(&[b"TYPE", key], Compare::Exact));
        requests.push(Request::new(&[b"GET", key], Compare::Exact));
        requests.push(Request::new(&[b"HGETALL", key], Compare::PairsInAnyOrder));
        requests.push(Request::new(&[b"SMEMBERS", key], Compare::AnyOrder));
        requests.push(Request::new(&[b"LRANGE", key, b"0", b"-1"], Compare::Exact));
        requests.push(Request::new(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"], Compare::Exact));
        requests.push(Request::new(&[b"PEXPIRETIME", key], Compare::Within(10_000)));
    }
    requests
}

fn split_at_closing<'a, 'w>(words: &'a [&'w str], opening: &str, closing: &str) -> (&'a [&'w str], &'a [&'w str]) {
    let mut depth = 1;
    for (index, word) in words.iter().enumerate() {
        depth += i32::from(*word == opening) - i32::from(*word == closing);
        if depth == 0 {
            return (&words[..index], &words[index + 1..]);
        }
    }
    panic!("{opening} without {closing} in {words:?}");
}
