//! Which file of a crate imports which, and whether imports go in a circle.
//!
//! A path that begins with `crate`, `super`, `self` or a child module is followed to the file that
//! defines what it names, through re-exports. A module and what lies in its folder are one family,
//! whose members may name each other. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rust::{Token, tokens};
use super::{files, read, shown};

/// The name of a module: `["limits", "gate"]`.
type Module = Vec<String>;

/// One file of a crate.
#[derive(Default)]
struct Source {
    file: PathBuf,
    /// Every path in its code, and those that it passes on under a name.
    paths: Vec<Vec<String>>,
    passed_on: BTreeMap<String, Vec<String>>,
    /// Modules that it declares for tests only.
    test_modules: BTreeSet<String>,
}

/// Groups of files of the crate in `dir` that import each other in a circle.
pub fn circles(dir: &Path) -> Vec<Vec<String>> {
    let src = dir.join("src");
    let mut sources: BTreeMap<Module, Source> = files(&src, &["rs"])
        .into_iter()
        .map(|file| (module_of(file.strip_prefix(&src).expect("it lies there")), source(file.clone(), &read(&file))))
        .collect();
    let test_modules: Vec<Module> = sources
        .iter()
        .flat_map(|(module, source)| source.test_modules.iter().map(|name| child(module, name)))
        .collect();
    sources.retain(|module, _| !test_modules.iter().any(|test| module.starts_with(test)));
    let arrows: BTreeMap<&Module, BTreeSet<&Module>> = sources
        .iter()
        .map(|(module, source)| {
            let targets = source.paths.iter().filter_map(|path| target(&sources, module, path, 0));
            (module, targets.filter(|to| !to.starts_with(module) && !module.starts_with(to)).collect())
        })
        .collect();
    strongly_connected(&arrows)
        .into_iter()
        .filter(|group| group.len() > 1)
        .map(|group| group.iter().map(|module| shown(&sources[*module].file)).collect())
        .collect()
}

fn child(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_string()]).collect()
}

fn module_of(file: &Path) -> Module {
    let mut parts: Module = file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    parts
}

fn source(file: PathBuf, text: &str) -> Source {
    let all = tokens(text);
    let mut source = Source { file, ..Source::default() };
    let mut at = 0;
    while at < all.len() {
        if let Some(behind) = behind_test_attribute(&all, at) {
            if let [(_, Token::Word("mod")), (_, Token::Word(name)), (_, Token::Sign(';')), ..] = &all[behind..] {
                source.test_modules.insert((*name).to_string());
            }
            at = behind_item(&all, behind);
            continue;
        }
        match all[at].1 {
            Token::Word("use") => {
                let is_passed_on = at > 0 && matches!(all[at - 1].1, Token::Word("pub") | Token::Sign(')'));
                let mut leaves = Vec::new();
                at += 1;
                use_tree(&all, &mut at, &[], &mut leaves);
                for (path, name) in leaves {
                    if is_passed_on {
                        source.passed_on.insert(name, path.clone());
                    }
                    source.paths.push(path);
                }
            }
            Token::Word("crate" | "super") if !matches!(at.checked_sub(1).map(|at| &all[at].1), Some(Token::Path)) => {
                let mut path = Vec::new();
                while let Some((_, Token::Word(word))) = all.get(at) {
                    path.push((*word).to_string());
                    at += 1;
                    if !matches!(all.get(at), Some((_, Token::Path))) {
                        break;
                    }
                    at += 1;
                }
                if path.len() > 1 {
                    source.paths.push(path);
                }
            }
            _ => at += 1,
        }
    }
    source
}

/// Where a `#[cfg(test)]` or `#[cfg(all(test, …))]` at `at` ends.
fn behind_test_attribute(all: &[(usize, Token<'_>)], at: usize) -> Option<usize> {
    let [(_, Token::Sign('#')), (_, Token::Sign('[')), (_, Token::Word("cfg")), (_, Token::Sign('(')), rest @ ..] =
        &all[at..]
    else {
        return None;
    };
    let length = rest.iter().position(|(_, token)| *token == Token::Sign(']'))?;
    let condition = &rest[..length];
    let is_test = matches!(condition, [(_, Token::Word("test")), ..])
        || matches!(condition, [(_, Token::Word("all")), (_, Token::Sign('(')), (_, Token::Word("test")), ..]);
    is_test.then_some(at + 4 + length + 1)
}

/// Where the item that begins at `at` ends.
fn behind_item(all: &[(usize, Token<'_>)], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some((_, token)) = all.get(at) {
        at += 1;
        match token {
            Token::Sign('{' | '(' | '[') => depth += 1,
            Token::Sign(')' | ']') => depth = depth.saturating_sub(1),
            Token::Sign('}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            Token::Sign(';' | ',') if depth == 0 => return at,
            _ => {}
        }
    }
    at
}

/// The leaves of a use tree, each with the name that it has here.
fn use_tree(all: &[(usize, Token<'_>)], at: &mut usize, prefix: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    while let Some((_, token)) = all.get(*at) {
        match token {
            Token::Word("as") => {
                *at += 1;
                if let Some((_, Token::Word(name))) = all.get(*at) {
                    leaves.push((path, (*name).to_string()));
                }
                *at += 1;
                return;
            }
            Token::Word("self") if !path.is_empty() => {}
            Token::Word(word) => path.push((*word).to_string()),
            Token::Path => {}
            Token::Sign('{') => {
                *at += 1;
                while !matches!(all.get(*at), None | Some((_, Token::Sign('}')))) {
                    use_tree(all, at, &path, leaves);
                    if matches!(all.get(*at), Some((_, Token::Sign(',')))) {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            Token::Sign('*') => {
                *at += 1;
                break;
            }
            _ => break,
        }
        *at += 1;
    }
    if let Some(name) = path.last().cloned() {
        leaves.push((path, name));
    }
}

/// The file that defines what `path` names in `module`.
fn target<'m>(
    sources: &'m BTreeMap<Module, Source>,
    module: &[String],
    path: &[String],
    depth: usize,
) -> Option<&'m Module> {
    let (first, _) = path.split_first()?;
    let mut at: Module;
    let mut rest = path;
    match first.as_str() {
        "crate" => {
            (at, rest) = (Vec::new(), &rest[1..]);
        }
        "super" | "self" => {
            at = module.to_vec();
            while let Some((first, behind)) = rest.split_first() {
                match first.as_str() {
                    "super" => drop(at.pop()),
                    "self" => {}
                    _ => break,
                }
                rest = behind;
            }
        }
        name if sources.contains_key(&child(module, name)) => at = module.to_vec(),
        _ => return None,
    }
    while let Some((name, behind)) = rest.split_first() {
        let next = child(&at, name);
        if sources.contains_key(&next) {
            (at, rest) = (next, behind);
            continue;
        }
        // Nothing is passed on in a circle: rustc would not have it. The bound is for what this
        // reads wrongly.
        if depth < 8
            && let Some(passed_on) = sources.get(&at).and_then(|source| source.passed_on.get(name))
            && let Some(found) = target(sources, &at, passed_on, depth + 1)
        {
            return Some(found);
        }
        break;
    }
    // An inline module lies in the file around it.
    while !sources.contains_key(&at) {
        at.pop()?;
    }
    sources.get_key_value(&at).map(|(module, _)| module)
}

/// Tarjan's algorithm.
fn strongly_connected<'m>(arrows: &BTreeMap<&'m Module, BTreeSet<&'m Module>>) -> Vec<Vec<&'m Module>> {
    struct Search<'a, 'm> {
        arrows: &'a BTreeMap<&'m Module, BTreeSet<&'m Module>>,
        /// Of each that was visited: when, and the earliest that it leads back to.
        seen: BTreeMap<&'m Module, (usize, usize)>,
        stack: Vec<&'m Module>,
        groups: Vec<Vec<&'m Module>>,
    }
    impl<'m> Search<'_, 'm> {
        fn visit(&mut self, module: &'m Module) -> usize {
            let number = self.seen.len();
            self.seen.insert(module, (number, number));
            self.stack.push(module);
            let mut lowest = number;
            for to in self.arrows.get(module).into_iter().flatten() {
                lowest = lowest.min(match self.seen.get(to) {
                    None => self.visit(to),
                    Some((number, _)) if self.stack.contains(to) => *number,
                    Some(_) => continue,
                });
            }
            self.seen.insert(module, (number, lowest));
            if lowest == number {
                let at = self.stack.iter().position(|other| *other == module).unwrap_or(0);
                let group = self.stack.split_off(at);
                self.groups.push(group);
            }
            lowest
        }
    }
    let mut search = Search { arrows, seen: BTreeMap::new(), stack: Vec::new(), groups: Vec::new() };
    for module in arrows.keys() {
        if !search.seen.contains_key(module) {
            search.visit(module);
        }
    }
    search.groups
}

/// The finder itself: circles that must be found, and imports that are none.
#[test]
fn it_finds_circles_through_re_exports_and_in_code_and_leaves_families_and_tests_alone() {
    let found = |sources: &[(&str, &str)]| -> Vec<Vec<String>> {
        let dir = tempfile::tempdir().expect("a folder");
        for (file, text) in sources {
            let path = dir.path().join("src").join(file);
            std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let src = format!("{}/src/", dir.path().display());
        circles(dir.path())
            .into_iter()
            .map(|group| group.into_iter().map(|file| file.replace(&src, "")).collect())
            .collect()
    };
    let none = Vec::<Vec<String>>::new();
    let two = vec![vec!["a.rs".to_string(), "b.rs".to_string()]];
    let lib = ("lib.rs", "mod a; mod b; pub use b::B; use a::A;");
    assert_eq!(found(&[lib, ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::{c, a::{self, A}};")]), two);
    assert_eq!(found(&[lib, ("a.rs", "fn f() { crate::B::new() }"), ("b.rs", "use super::a;")]), two);
    assert_eq!(found(&[lib, ("a.rs", "use crate::B as C;"), ("b.rs", "// crate::a::A\n")]), none);
    assert_eq!(found(&[lib, ("a.rs", "use crate::B;"), ("b.rs", "#[cfg(test)] mod t { use crate::a::A; }")]), none);
    assert_eq!(
        found(&[lib, ("a.rs", "use crate::B;"), ("b.rs", "#[cfg(test)] mod t;"), ("b/t.rs", "use crate::a;")]),
        none
    );
    let family = [lib, ("a/mod.rs", "mod c; use c::C;"), ("a/c.rs", "use super::A; use crate::a::D;")];
    assert_eq!(found(&family), none);
}
