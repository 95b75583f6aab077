//! Pattern matching by table and against a naive model.

use std::ffi::OsStr;

use proptest::prelude::*;

use super::*;

fn parse_in(start: &str, pattern: &str, depth: usize) -> Result<Vec<Pattern>, GlobProblem> {
    parse(Path::new(start), pattern, NonZeroUsize::new(depth))
}

fn denies(pattern: &str, path: &str) -> bool {
    let patterns = parse_in("/w", pattern, 0).unwrap();
    patterns.iter().any(|pattern| match pattern {
        Pattern::Literal(literal) => Path::new(path).starts_with(literal),
        Pattern::Glob(glob) => glob.denies(Path::new(path)),
    })
}

/// Checks a pattern in `/w` against names below it.
fn check(pattern: &str, matched: &[&str], others: &[&str]) {
    for (names, expected) in [(matched, true), (others, false)] {
        for name in names {
            assert_eq!(denies(pattern, &format!("/w/{name}")), expected, "{pattern} {name}");
        }
    }
}

#[test]
fn a_star_and_a_question_mark_stay_inside_one_name() {
    check("*.env", &["x.env", ".env", "x.env/below"], &["a/x.env", "x.envy", "env"]);
    // The reference also denies these two.
    check("dir/*.env", &["dir/x.env"], &["dir/sub/x.env", "dir/sub/deep/x.env"]);
    check("?.k", &["a.k", "é.k"], &["ab.k", ".k", "a/k"]);
    check("a*b*c", &["abc", "aXbXbXc"], &["ab", "abcd", "a/b/c"]);
    check("s**.env", &["sx.env", "s.env"], &["s/x.env"]);
}

#[test]
fn two_stars_cross_names() {
    check("**/*.env", &["x.env", "a/x.env", "a/b/x.env", "a/x.env/y"], &["x", "a/env"]);
    check("a/**/z", &["a/z", "a/b/z", "a/b/c/z"], &["z", "a", "a/b"]);
    check("a/**", &["a/b", "a/b/c"], &["a", "ab"]);
    check("**", &["a", "a/b"], &[]);
    check("**/**/x", &["x", "a/x"], &["y"]);
    assert!(!denies("**", "/w"));
    assert!(!denies("**", "/other"));
}

#[test]
fn a_directory_that_is_matched_is_covered_whole() {
    check("**/secrets", &["secrets", "a/secrets/deep/x"], &["a/b"]);
    check("sub/*", &["sub/x", "sub/x/y"], &["sub", "subx/y"]);
}

#[test]
fn classes_are_one_character_and_an_open_one_is_text() {
    check("[xf]*", &["x1", "f"], &["a"]);
    check("[a-c]", &["b"], &["d", "-", "ab"]);
    check("[!a-c]", &["d", "é"], &["a", "", "dd"]);
    check("[^x].txt", &["f.txt"], &["x.txt"]);
    check("[]x]", &["]", "x"], &["[", "y"]);
    check("[a-]", &["a", "-"], &["b"]);
    check("[\\]]*", &["]", "]x"], &["\\", "x"]);
    check("[x", &["[x"], &["x"]);
    check("[[a", &["[[a"], &["[a", "a"]);
    check("*[x", &["a[x"], &["ax"]);
    check("[", &["["], &["x"]);
    check("[!]", &["[!]"], &["x"]);
    check("[a/b]", &["[a/b]"], &["a", "b"]);
}

#[test]
fn braces_are_alternatives_and_an_open_one_is_text() {
    check("{x,y}.env", &["x.env", "y.env"], &["z.env", "{x,y}.env"]);
    check("**/{a,b{c,d}}/e", &["a/e", "z/bc/e", "bd/e"], &["b/e"]);
    check("{a/x,b}", &["a/x", "b"], &["a", "x"]);
    check("{,.}env*", &["env1", ".env"], &["xenv"]);
    check("a.b{c", &["a.b{c"], &["a.bc"]);
    check("a}b{c,d}", &["a}bc", "a}bd"], &["ab"]);
    check("{a{b,c}", &["{ab", "{ac"], &["ab"]);
    check("[{,}]", &["{", ",", "}"], &["", "[{,}]"]);
    check("\\{a,b}", &["{a,b}"], &["a", "b"]);
    check("{[,],x}", &[",", "x"], &["["]);
}

#[test]
fn a_backslash_takes_the_next_character_as_it_is() {
    check("\\*", &["*"], &["x"]);
    check("\\[x]", &["[x]"], &["x"]);
    check("!x", &["!x"], &["x", "y"]);
    check("x\\", &["x\\"], &["x"]);
}

#[test]
fn a_pattern_without_wildcards_is_a_path() {
    for (pattern, path) in [
        ("f.txt", "/w/f.txt"),
        ("./sub//f/", "/w/sub/f"),
        ("sub/../f", "/w/f"),
        ("../f", "/f"),
        ("../../../f", "/f"),
        ("", "/w"),
        ("\\.\\./f", "/f"),
        ("[x", "/w/[x"),
    ] {
        let parsed = parse_in("/w", pattern, 0).unwrap();
        assert!(
            matches!(&parsed[..], [Pattern::Literal(it)] if it == Path::new(path)),
            "{pattern}"
        );
    }
}

#[test]
fn the_fixed_part_of_a_pattern_bounds_where_it_looks() {
    let glob = |start, pattern, depth| match parse_in(start, pattern, depth).unwrap().remove(0) {
        Pattern::Glob(glob) => glob,
        Pattern::Literal(path) => panic!("{path:?}"),
    };
    // The characters of the directory are not wildcards.
    let odd = glob("/w*/[a]", "b/*.c", 0);
    assert_eq!(odd.base(), Path::new("/w*/[a]/b"));
    assert!(odd.denies(Path::new("/w*/[a]/b/x.c")));
    assert!(!odd.denies(Path::new("/ww/a/b/x.c")));
    assert_eq!(odd.scan_depth(), Some(1));
    assert_eq!(glob("/w", "*/x/*", 0).scan_depth(), Some(3));
    assert_eq!(glob("/w", "*/x/*", 2).scan_depth(), Some(2));
    assert_eq!(glob("/w", "**/x", 0).scan_depth(), None);
    assert_eq!(glob("/w", "**/x", 7).scan_depth(), Some(7));
    let deep = glob("/w", "sub/**/*.env", 2);
    for (path, expected) in [
        ("/w/sub/x.env", true),
        ("/w/sub/a/x.env", true),
        ("/w/sub/a/b/x.env", false),
        ("/w/sub/a/d.env/deep/below", true),
    ] {
        assert_eq!(deep.denies(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn patterns_without_a_clear_meaning_are_refused() {
    for (pattern, problem) in [
        ("*/../x", GlobProblem::ParentOfWildcard),
        ("**/..", GlobProblem::ParentOfWildcard),
        ("[z-a]", GlobProblem::EmptyRange),
        ("a\0b", GlobProblem::Nul),
        (&"{a,b}".repeat(20), GlobProblem::TooManyAlternatives),
        (&format!("{}{}", "{".repeat(2000), "}".repeat(2000)), GlobProblem::TooManyAlternatives),
        (&"x".repeat(5000), GlobProblem::TooLong),
        (&"*/".repeat(128), GlobProblem::TooLong),
    ] {
        assert_eq!(parse_in("/w", pattern, 0).err(), Some(problem), "{pattern:.20}");
    }
    assert!(denies("*/x/../y", "/w/a/y"));
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8_are_matched_too() {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(OsStr::from_bytes(b"/w/a\xff.env"));
    for (pattern, expected) in
        [("*.env", true), ("a?.env", true), ("a[!x].env", true), ("a[x].env", false)]
    {
        let Pattern::Glob(glob) = &parse_in("/w", pattern, 0).unwrap()[0] else { panic!() };
        assert_eq!(glob.denies(path), expected, "{pattern}");
    }
}

#[test]
fn no_pattern_makes_a_name_slow() {
    let name = "a".repeat(250);
    check(&format!("{}b", "*a".repeat(100)), &[], &[&name]);
    check(&format!("{}b", "**/a*/".repeat(50)), &[], &[&format!("{name}/").repeat(50)]);
    check(&"[".repeat(4000), &[], &["x"]);
}

/// Naive model of patterns without classes and braces: matches the whole path, or a parent of it.
fn naive(pattern: &[char], path: &[char]) -> bool {
    fn whole(pattern: &[char], path: &[char], at_start: bool) -> bool {
        match pattern {
            [] => path.is_empty(),
            ['*', '*', '/', rest @ ..] if at_start => {
                whole(rest, path, true)
                    || path
                        .iter()
                        .position(|c| *c == '/')
                        .is_some_and(|end| whole(pattern, &path[end + 1..], true))
            }
            ['*', '*'] if at_start => !path.is_empty(),
            ['*', rest @ ..] => {
                whole(rest, path, false)
                    || matches!(path, [c, left @ ..] if *c != '/' && whole(pattern, left, false))
            }
            ['?', rest @ ..] => {
                matches!(path, [c, left @ ..] if *c != '/' && whole(rest, left, false))
            }
            [expected, rest @ ..] => {
                matches!(path, [c, left @ ..] if c == expected && whole(rest, left, *c == '/'))
            }
        }
    }
    let ends = (1..=path.len()).filter(|end| *end == path.len() || path[*end] == '/');
    ends.into_iter().any(|end| whole(pattern, &path[..end], true))
}

proptest! {
    #[test]
    fn matching_agrees_with_a_naive_model(
        parts in prop::collection::vec("\\*\\*|[ab?*]{1,4}", 1..5),
        names in prop::collection::vec("[ab]{1,3}", 1..6),
    ) {
        // The naive model does not support three stars in a row.
        prop_assume!(parts.iter().all(|part| part == "**" || !part.contains("**")));
        let (pattern, path) = (parts.join("/"), names.join("/"));
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        prop_assert_eq!(
            denies(&pattern, &format!("/w/{path}")),
            naive(&chars(&pattern), &chars(&path)),
            "{} {}", pattern, path
        );
    }

    #[test]
    fn no_text_is_too_odd_to_be_read(pattern in "[ab*?\\[\\]{},!^\\\\/.~-]{0,30}", path in "(/[ab*\\[\\]{}]{1,3}){0,5}") {
        if let Ok(patterns) = parse_in("/w", &pattern, 0) {
            for pattern in patterns {
                let (Pattern::Literal(base) | Pattern::Glob(DenyGlob { base, .. })) = &pattern;
                let normal = crate::policy::normalised(base);
                prop_assert_eq!(normal.as_ref(), Some(base));
                if let Pattern::Glob(glob) = &pattern {
                    glob.denies(Path::new(&path));
                }
            }
        }
    }
}
