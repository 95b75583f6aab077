//! Compares the parser with an independent model, on URIs composed of critical pieces.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_uri_names_the_path_of_the_model(text in uri_text()) {
        let parsed = PathUri::parse(&text);
        let path = parsed.as_ref().ok().and_then(|uri| uri.to_posix(NativePaths::Reject).ok());
        prop_assert_eq!(&path, &model(&text), "{:?}", parsed);
        if let (Ok(uri), Some(path)) = (parsed, path) {
            is_absolute_and_normal(&path)?;
            comes_back(&path)?;
            let again = PathUri::parse(uri.as_str()).unwrap();
            prop_assert_eq!(again.to_posix(NativePaths::Reject).unwrap(), path);
            prop_assert_eq!(again, uri);
        }
    }

    #[test]
    fn native_texts_name_absolute_normal_paths(pieces in prop::collection::vec(piece(), 0..8)) {
        let text = format!("/{}", pieces.concat());
        if let Ok(uri) = PathUri::parse(&text) {
            prop_assert!(uri.to_posix(NativePaths::Reject).is_err());
            if let Ok(path) = uri.to_posix(NativePaths::Accept) {
                is_absolute_and_normal(&path)?;
                comes_back(&path)?;
            }
        }
    }
}

fn is_absolute_and_normal(path: &[u8]) -> Result<(), TestCaseError> {
    let rest = path.strip_prefix(b"/").expect("the path is absolute");
    let mut segments = rest.split(|byte| *byte == b'/');
    prop_assert!(rest.is_empty() || segments.all(|name| !matches!(name, b"" | b"." | b"..")));
    prop_assert!(!path.contains(&0));
    Ok(())
}

fn comes_back(path: &[u8]) -> Result<(), TestCaseError> {
    let uri = PathUri::from_posix(path);
    let read = PathUri::parse(uri.as_str()).unwrap();
    prop_assert_eq!(&read, &uri);
    prop_assert_eq!(read.to_posix(NativePaths::Reject).unwrap(), path);
    Ok(())
}

fn uri_text() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        8 => Just("file:"),
        1 => prop::sample::select(vec!["FILE:", " \u{1}fIlE:", "fi\tle:", "\nfile:"]),
        1 => prop::sample::select(vec!["", "http:", "file", "files:", "C:", "f\u{ef}le:"]),
    ];
    let host = prop_oneof![
        6 => Just("///"),
        2 => prop::sample::select(vec!["", "/", "//", "////", "\\\\\\", "/\\/"]),
        2 => prop::sample::select(vec![
            "//localhost", "//LocalHost/", "//%6cocalhost/", "//srv/", "//127.0.0.1/", "//[::1]/",
            "//user@srv/", "//srv:1/", "//localhost:1/", "//a b/", "//\u{e4}/",
        ]),
    ];
    let end = prop_oneof![
        8 => Just(""),
        2 => prop::sample::select(vec!["?", "#", "?a", "#a", " ", "\u{0}", "\n", "%", "%0"]),
    ];
    let pieces = prop::collection::vec(piece(), 0..10);
    (scheme, host, pieces, end)
        .prop_map(|(scheme, host, pieces, end)| format!("{scheme}{host}{}{end}", pieces.concat()))
}

/// Two oddities of the `url` crate are left out because they only decide whether a path is foreign: the result for `c|`
/// depends on the number of slashes before it, and a tab after `C:` ends the segment.
fn piece() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => Just("/"),
        4 => prop::sample::select(vec!["a", "b c", "\u{e4}", "\u{1f980}", "~", "a.b", "...", "{}`", "x\ty"]),
        3 => prop::sample::select(vec![".", "..", "/.", "/../", "%2e", "%2E%2e", ".%2e", "%2E."]),
        3 => prop::sample::select(vec!["%2F", "%2f..%2F", "%5C", "\\", "\\..\\", "\t/", "/\r\n"]),
        2 => prop::sample::select(vec!["%00", "\u{0}", "%FF", "%C3", "%7f", "%25", "%252e", "%zz", "%"]),
        2 => prop::sample::select(vec!["C:", "/C:/", "C%3A", "/%43:/", ":", "@"]),
    ]
}

/// The host path of a `file:` URI, if it has one.
fn model(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_matches(|letter| letter <= ' ');
    let text: String = text.chars().filter(|letter| !"\t\r\n".contains(*letter)).collect();
    let (scheme, rest) = text.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("file") || rest.contains(['?', '#']) {
        return None;
    }
    let rest = rest.replace('\\', "/");
    let path = match rest.strip_prefix("//") {
        Some(rest) => without_host(rest)?,
        None => &rest,
    };
    let names = resolve_dots(path);
    let first = names.iter().find(|name| !name.is_empty());
    let decoded = decode(names.join("/").as_bytes());
    if decoded.contains(&0) || first.is_some_and(|name| is_drive(&decode(name.as_bytes()))) {
        return None;
    }
    // Decoded segments may contain separators and dots.
    let mut names: Vec<&[u8]> = Vec::new();
    for name in decoded.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    Some([b"/", names.join(&b'/').as_slice()].concat())
}

/// The rest of the URI after a local host; a drive letter is not a host.
fn without_host(rest: &str) -> Option<&str> {
    let end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    match host.as_bytes() {
        host if is_drive(host) => Some(rest),
        host if host.is_empty() || decode(host).eq_ignore_ascii_case(b"localhost") => Some(path),
        _ => None,
    }
}

/// Path segments after resolving `.` and `..`: empty segments count, and a drive is never left.
fn resolve_dots(path: &str) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in path.strip_prefix('/').unwrap_or(path).split('/') {
        match name.to_ascii_lowercase().replace("%2e", ".").as_str() {
            "." => {}
            ".." if names.last().is_some_and(|name| is_drive(name.as_bytes())) => {}
            ".." => _ = names.pop(),
            _ => names.push(name),
        }
    }
    names
}

fn is_drive(name: &[u8]) -> bool {
    matches!(name, [letter, b':'] if letter.is_ascii_alphabetic())
}

fn decode(mut text: &[u8]) -> Vec<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::new();
    while let Some((&first, rest)) = text.split_first() {
        text = rest;
        if let (b'%', [high, low, after @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            decoded.push(high * 16 + low);
            text = after;
        } else {
            decoded.push(first);
        }
    }
    decoded
}
