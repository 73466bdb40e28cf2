//! The grammar of usage texts, on texts that are right, wrong and odd, and on those of the table.

use super::super::{KeyPositions, table};
use super::*;
use crate::protocol::reply::Version;

/// One argument on a line, its parts behind it in braces.
fn shown(arguments: &[Argument<'_>]) -> String {
    let one = |argument: &Argument<'_>| {
        let (kind, parts) = match &argument.kind {
            Kind::Key { spec } => (format!("key{spec}"), None),
            Kind::Value(of) => ((*of).to_owned(), None),
            Kind::Token => ("token".to_owned(), None),
            Kind::OneOf(parts) => ("oneof".to_owned(), Some(parts)),
            Kind::Block(parts) => ("block".to_owned(), Some(parts)),
        };
        let mut line = format!("{} {kind}", argument.name);
        let texts = [(' ', argument.token), ('@', argument.since), ('!', argument.deprecated_since)];
        for (mark, text) in texts {
            line.extend(text.map(|text| format!("{mark}{text}")));
        }
        let flags = [(argument.is_optional, " ?"), (argument.is_multiple, " +"), (argument.repeats_token, "+")];
        flags.iter().filter(|(is_set, _)| *is_set).for_each(|(_, flag)| line.push_str(flag));
        line.extend(parts.map(|parts| format!(" {{{}}}", shown(parts))));
        line
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn means(text: &str, expected: &str) {
    let usage = Usage::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(shown(&usage.arguments), expected, "{text}");
}

#[track_caller]
fn is_refused(text: &str, at: usize) {
    match Usage::parse(text) {
        Err(error) => assert_eq!(error.at, at, "{text}: {error}"),
        Ok(usage) => panic!("{text}: {}", shown(&usage.arguments)),
    }
}

#[test]
fn values_are_of_the_type_that_they_are_named_after_or_told() {
    means("", "");
    means("   ", "");
    means("key value", "key key0, value string");
    means("key:string pattern pattern:string string", "key string, pattern pattern, pattern string, string string");
    means("a:integer b:double c:unix-time d:key", "a integer, b double, c unix-time, d key0");
    means("ip:port:string yes/no", "ip:port string, yes/no string");
    means("double integer", "double double, integer integer");
}

#[test]
fn keys_are_counted_wherever_they_stand() {
    means("to:key n:integer key...", "to key0, n integer, key key1 +");
    means("(key value)... [STORE to:key]", "key_value block + {key key0, value string}, to key1 STORE ?");
    assert_eq!(Usage::parse("a:key [b:key | C c:key] key:string d").map(|usage| usage.keys), Ok(3));
}

#[test]
fn brackets_make_optional_and_parentheses_make_blocks() {
    means("[a]", "a string ?");
    means("(a)", "a block {a string}");
    means("[(a)]", "a block ? {a string}");
    means("[a b]", "a_b block ? {a string, b string}");
    means("[x: a [b]]", "x block ? {a string, b string ?}");
    means("(A | b | c d)", "a_b_c_d oneof {a token A, b string, c_d block {c string, d string}}");
    means("[x: A | B]", "x oneof ? {a token A, b token B}");
    means("([A] | [b])", "a_b oneof {a token A ?, b string ?}");
    means("(x: a | (y: B | C)...)", "x oneof {a string, y oneof + {b token B, c token C}}");
    means("[[A] [b]]", "a_b block ? {a token A ?, b string ?}");
}

#[test]
fn a_token_belongs_to_its_whole_sequence() {
    means("[A]", "a token A ?");
    means("[LIB-NAME a]", "a string LIB-NAME ?");
    means("[A b c]", "b_c block A ? {b string, c string}");
    means("[x: A b c]", "x block A ? {b string, c string}");
    means("[x: A]", "x token A ?");
    means("(x: A)", "x block {a token A}");
    means("[A (B | C)]", "b_c oneof A ? {b token B, c token C}");
    means("[A (b)]", "b block A ? {b string}");
    means("(A b | C d e)", "b_d_e oneof {b string A, d_e block C {d string, e string}}");
}

#[test]
fn one_or_more_repeats_the_token_only_behind_the_brackets() {
    means("[a...]", "a string ? +");
    means("[a]...", "a string ? +");
    means("[A b...]", "b string A ? +");
    means("[A b]...", "b string A ? ++");
    means("[A b c]...", "b_c block A ? ++ {b string, c string}");
    means("[A b... c]", "b_c block A ? {b string +, c string}");
}

#[test]
fn versions_belong_to_what_they_stand_behind() {
    means("a@1.0.0 b!10.20.30 c@1.2.3!4.5.6", "a string@1.0.0, b string!10.20.30, c string@1.2.3!4.5.6");
    means("[A@1.0.0 | B b@2.0.0]@0.1.0", "a_b oneof@0.1.0 ? {a token A@1.0.0, b string B@2.0.0}");
    means("[A]@1.0.0", "a token A@1.0.0 ?");
    means("key...@6.2.0", "key key0@6.2.0 +");
    means("([A b]@1.0.0 | c!2.0.0)", "b_c oneof {b string A@1.0.0 ?, c string!2.0.0}");
}

#[test]
fn what_is_no_usage_text_is_refused_where_it_ceases_to_be_one() {
    for (text, at) in [
        // Brackets that do not match, and choices outside of them.
        ("a]", 1),
        ("a)", 1),
        ("[a", 2),
        ("(a", 2),
        ("[a)", 2),
        ("(a]", 2),
        ("[", 1),
        ("a | b", 2),
        ("|", 0),
        // Nothing within them.
        ("[]", 1),
        ("()", 1),
        ("[x:]", 3),
        ("(a | )", 5),
        ("( | a)", 5),
        ("(a || b)", 7),
        // Tokens where none can stand.
        ("A", 0),
        ("a B", 2),
        ("[a B]", 3),
        ("[A B]", 3),
        ("[A@1.0.0 b]", 10),
        ("[A [b]]", 6),
        ("[A [B c]]", 8),
        ("[A (B c d)]", 10),
        ("[A...]", 2),
        // Words that are neither.
        ("Ab", 0),
        ("a,b", 0),
        ("\u{e9}", 0),
        ("a\u{e9}", 0),
        ("a\tb", 0),
        ("1a", 0),
        (":", 0),
        ("a:", 0),
        ("a::key", 0),
        ("a:number", 0),
        ("a:KEY", 0),
        ("[a:: b]", 1),
        ("[A: b]", 1),
        // What is told twice, or of nothing.
        ("...", 0),
        ("a......", 4),
        ("[a...]...", 6),
        ("....", 0),
        ("a..", 0),
        ("[[a]]", 5),
        ("[x: y]", 5),
        ("[x: [y: A | B]]", 14),
        ("[x: (y: a b)...]", 15),
        ("[a@1.0.0]@2.0.0", 9),
        ("a!1.0.0!2.0.0", 7),
        ("a!1.0.0@2.0.0", 7),
        ("@1.0.0", 0),
        ("a@1.0", 1),
        ("a@1.0.0.0", 1),
        ("a@1..0", 1),
        ("a@1.x.0", 1),
        ("a@", 1),
        ("a@1.0.0...", 1),
    ] {
        is_refused(text, at);
    }
}

#[test]
fn brackets_within_brackets_have_an_end() {
    let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Usage::parse(&nested(MAX_NESTED)).is_ok());
    is_refused(&nested(MAX_NESTED + 1), MAX_NESTED + 1);
    is_refused(&"[".repeat(1 << 20), MAX_NESTED + 1);
    // One behind the other they are not within one another.
    assert!(Usage::parse(&"(a) ".repeat(100)).is_ok());
}

#[test]
fn any_cut_or_doubled_byte_is_refused_or_means_something() {
    // Whatever the text, no panic; and what is understood can be told.
    for command in table::all_with_subcommands() {
        for cut in 0..command.usage.len() {
            let without = [&command.usage[..cut], &command.usage[cut + 1..]].concat();
            let doubled = [&command.usage[..=cut], &command.usage[cut..]].concat();
            for text in [&command.usage[..cut], &command.usage[cut..], &without, &doubled] {
                if let Ok(usage) = Usage::parse(text) {
                    usage.tell(&mut Reply::new(Version::Resp3));
                }
            }
        }
    }
}

#[test]
fn what_is_told_has_the_fields_of_redis_in_its_order() {
    let told = |text: &str| {
        let mut reply = Reply::new(Version::Resp3);
        Usage::parse(text).unwrap().tell(&mut reply);
        String::from_utf8(reply.take()).unwrap().replace("\r\n", " ")
    };
    assert_eq!(told("value"), "*1 %3 $4 name $5 value $4 type $6 string $12 display_text $5 value ");
    // A name for programs, and what people are shown instead; a token that is no word in upper
    // case.
    assert_eq!(
        told("['on a=b:c:string]"),
        "*1 %5 $4 name $1 a $4 type $6 string $12 display_text $3 b:c $5 token $2 on $5 flags ~1 +optional "
    );
    assert_eq!(
        told("[GET key]...@1.0.0!2.0.0"),
        "*1 %8 $4 name $3 key $4 type $3 key $12 display_text $3 key $14 key_spec_index :0 $5 token $3 GET $5 since $5 1.0.0 \
         $16 deprecated_since $5 2.0.0 $5 flags ~3 +optional +multiple +multiple_token "
    );
    assert_eq!(
        told("[A | b]"),
        "*1 %4 $4 name $3 a_b $4 type $5 oneof $5 flags ~1 +optional $9 arguments *2 \
         %4 $4 name $1 a $4 type $10 pure-token $12 display_text $1 a $5 token $1 A \
         %3 $4 name $1 b $4 type $6 string $12 display_text $1 b "
    );
}

/// The fewest words that an argument can be, and whether there can be more.
fn words(argument: &Argument<'_>) -> (usize, bool) {
    let (inner, may_be_more) = match &argument.kind {
        Kind::Key { .. } | Kind::Value(_) => (1, false),
        Kind::Token => (0, false),
        Kind::OneOf(parts) => {
            let all: Vec<_> = parts.iter().map(words).collect();
            let least = all.iter().map(|(least, _)| *least).min().unwrap_or(0);
            (least, all.iter().any(|(words, may_be_more)| *may_be_more || *words > least))
        }
        Kind::Block(parts) => {
            parts.iter().map(words).fold((0, false), |(sum, any), (least, more)| (sum + least, any || more))
        }
    };
    let least = if argument.is_optional { 0 } else { inner + usize::from(argument.token.is_some()) };
    (least, may_be_more || argument.is_optional || argument.is_multiple)
}

/// Where Redis' arguments, which these are, say less than the arity: nothing of what DEBUG takes
/// and that QUIT may be given any, and of CLIENT KILL that its filters may be left out.
const SAY_LESS: [&str; 3] = ["debug", "quit", "client|kill"];

#[test]
fn every_usage_text_of_the_table_is_one_and_fits_its_arity_and_keys() {
    for command in table::all_with_subcommands() {
        let name = command.name;
        let usage = Usage::parse(command.usage).unwrap_or_else(|error| panic!("{name}: {error}"));
        let keys = match command.keys {
            KeyPositions::None => 0..=0,
            KeyPositions::Range { first, last, .. } if last == first as isize => 1..=1,
            KeyPositions::Range { first, last, step: 1 } if last > 0 => {
                let keys = last as usize - first + 1;
                keys..=keys
            }
            // One or more, or one of another name before them.
            KeyPositions::Range { .. } => 1..=2,
            KeyPositions::Counted { also, .. } => {
                let keys = 1 + usize::from(also > 0);
                keys..=keys
            }
        };
        assert!(keys.contains(&usage.keys), "{name}: {} keys and not {keys:?}", usage.keys);
        if SAY_LESS.contains(&name) || !command.subcommands.is_empty() {
            continue;
        }
        let names = 1 + usize::from(name.contains('|'));
        let (least, may_be_more) =
            usage.arguments.iter().map(words).fold((names, false), |sum, words| (sum.0 + words.0, sum.1 || words.1));
        let least = least as i32;
        assert_eq!(if may_be_more { -least } else { least }, command.arity, "{name}");
    }
}
