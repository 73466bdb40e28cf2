//! The parser of requests: however a stream is cut into reads, the same requests and the same error
//! come of it.

use ecotone_resp::protocol::request::{Limits, Parser, ProtocolError, RESERVE_AHEAD_BYTES};

use super::Input;

/// Small ones, so that short inputs meet them.
const LIMITS: [Limits; 2] =
    [Limits { arguments: 6, bulk_bytes: 20, inline_bytes: 40 }, Limits { arguments: 100, ..Limits::UNAUTHENTICATED }];

/// Cuts of one input.
const MAX_CUTS: u8 = 16;

/// Requests, each with its arguments; the error; and how many bytes were left.
pub type Parsed = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>, usize);

/// The input is which limits hold, the number of cuts, each of them, and the stream.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let limits = LIMITS[usize::from(input.byte()) % LIMITS.len()];
    let cuts: Vec<usize> =
        (0..input.byte() % MAX_CUTS).map(|_| usize::from(input.byte()) << 8 | usize::from(input.byte())).collect();
    let stream = input.0;
    let whole = parse(stream, &[], &limits);
    assert_eq!(parse(stream, &cuts, &limits), whole, "cut at {cuts:?}");
    if stream.len() < 512 {
        let everywhere: Vec<usize> = (0..stream.len()).collect();
        assert_eq!(parse(stream, &everywhere, &limits), whole, "byte by byte");
    }
    // What was found is found again in its plain form.
    let plain: Vec<u8> = whole.0.iter().flat_map(|request| encoded(request)).collect();
    let loose = Limits { arguments: usize::MAX, bulk_bytes: usize::MAX, inline_bytes: 64 };
    let requests: Vec<Vec<Vec<u8>>> = whole.0.into_iter().filter(|request| !request.is_empty()).collect();
    assert_eq!(parse(&plain, &[], &loose), (requests, None, 0));
}

/// Takes `stream` in pieces that end at `cuts`, as a connection does.
pub fn parse(stream: &[u8], cuts: &[usize], limits: &Limits) -> Parsed {
    let (mut parser, mut arguments, mut found) = (Parser::new(), Vec::new(), Vec::new());
    let (mut buffer, mut taken) = (Vec::new(), 0);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).chain([stream.len()]).collect();
    ends.sort_unstable();
    for end in ends {
        buffer.extend_from_slice(&stream[taken..end]);
        taken = end;
        loop {
            match parser.parse(&buffer, limits, &mut arguments) {
                Ok(Some(consumed)) => {
                    assert!((1..=buffer.len()).contains(&consumed));
                    assert!(arguments.len() <= limits.arguments.max(limits.inline_bytes));
                    let source = parser.source(&buffer);
                    found.push(arguments.iter().map(|range| source[range.clone()].to_vec()).collect());
                    buffer.drain(..consumed);
                }
                Ok(None) => {
                    assert!(arguments.is_empty());
                    if let Some(needs) = parser.needs() {
                        assert!((buffer.len() + 1..=buffer.len() + RESERVE_AHEAD_BYTES).contains(&needs));
                    }
                    break;
                }
                Err(error) => return (found, Some(error), 0),
            }
        }
    }
    (found, None, buffer.len())
}

/// The plain form of a request.
pub fn encoded(request: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = if request.is_empty() { Vec::new() } else { format!("*{}\r\n", request.len()).into_bytes() };
    for argument in request {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
