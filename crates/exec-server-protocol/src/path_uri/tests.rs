use proptest::prelude::*;

use super::*;

fn path(text: &str) -> Result<String, String> {
    let uri = PathUri::parse(text).map_err(|error| error.to_string())?;
    let bytes = uri.to_posix(NativePaths::Reject).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(bytes).unwrap())
}

#[test]
fn every_spelling_of_a_file_uri_names_its_path() {
    for text in [
        "file:///tmp/x",
        "file:/tmp/x",
        "file:tmp/x",
        "FILE:///tmp/x",
        "file:////tmp/x",
        "file://LOCALHOST/tmp/x",
    ] {
        assert_eq!(path(text).as_deref(), Ok("/tmp/x"), "{text}");
    }
    for text in ["file:///", "file://", "file:"] {
        assert_eq!(path(text).as_deref(), Ok("/"), "{text}");
    }
    for (text, expected) in [
        ("file:///a/b/../c/./d//e/", "/a/c/d/e"),
        ("file:///a/%2e%2E/b", "/b"),
        ("file:///a/b/..%2F..%2Fx", "/x"),
        ("file:///a%2Fb", "/a/b"),
        ("file:///a\\b", "/a/b"),
        (" file:///a b\t/\u{e4} ", "/a b/\u{e4}"),
        ("file:///a%ZZ", "/a%ZZ"),
        ("file:///~/x", "/~/x"),
        // Only a whole segment is a drive.
        ("file:///C:%2F..%2Fetc", "/etc"),
        ("file:///a%2F..%2FC:", "/C:"),
    ] {
        assert_eq!(path(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_file_uris_are_rejected_with_the_reason() {
    let native = path("/tmp/x").unwrap_err();
    assert!(
        native.contains("send `file:///tmp/x`, or start the server with --accept-native-paths")
    );
    for text in ["x", "./x", "~/x", "", "//srv/share", "\\\\srv\\share"] {
        assert_eq!(path(text).unwrap_err(), "invalid URI: relative URL without a base", "{text}");
    }
    assert_eq!(path("C:\\x").unwrap_err(), "unsupported path URI scheme `c`");
    assert_eq!(path("http://a/").unwrap_err(), "unsupported path URI scheme `http`");
    for text in ["file:///a?", "file:///a?b"] {
        assert_eq!(path(text).unwrap_err(), "query parameters are not allowed in path URIs");
    }
    for text in ["file:///a#", "file:///a%00b", "file://user@host/a", "file://host:1/a"] {
        assert!(path(text).is_err(), "{text}");
    }
}

#[test]
fn paths_of_another_system_are_foreign() {
    for text in [
        "file:///C:/x",
        "file:///c:/x",
        "file:///C%3A/x",
        "file:///C:/..%2F..%2Fetc",
        "file:///C%3A/..%2Fetc",
        "file://server/C:/..%2Fetc",
        "file://server/share",
        "file://127.0.0.1/x",
    ] {
        let error = path(text).unwrap_err();
        assert!(error.ends_with(&format!("is invalid on '{}'", std::env::consts::OS)), "{error}");
    }
}

#[test]
fn native_paths_are_taken_only_when_asked_for() {
    let uri = PathUri::parse("/a/../b/").unwrap();
    assert!(uri.to_posix(NativePaths::Reject).is_err());
    assert_eq!(uri.to_posix(NativePaths::Accept).unwrap(), b"/b");
}

#[test]
fn a_path_that_looks_foreign_travels_in_the_opaque_form() {
    let uri = PathUri::from_posix(b"/C:/h2x");
    assert_eq!(uri.as_str(), "file:///%00/bad/path/L0M6L2gyeA");
    let read = PathUri::parse(uri.as_str()).unwrap();
    assert_eq!(read.to_posix(NativePaths::Reject).unwrap(), b"/C:/h2x");
    for text in ["file:///%00/bad/path/L3RtcA", "file:///%00/bad/path/!!"] {
        assert!(path(text).is_err(), "{text}");
    }
}

#[test]
fn names_that_are_not_utf8_keep_their_bytes() {
    let uri = PathUri::from_posix(b"/d/bad-\xff {}.txt");
    assert_eq!(uri.as_str(), "file:///d/bad-%FF%20%7B%7D.txt");
    assert_eq!(uri.to_posix(NativePaths::Reject).unwrap(), b"/d/bad-\xff {}.txt");
}

#[test]
fn the_uri_of_a_child_is_the_uri_of_the_joined_path() {
    for (parent, name, joined) in [
        ("/", "a", "/a"),
        ("/", "C:", "/C:"),
        ("/", "C:x", "/C:x"),
        ("/C:", "x y", "/C:/x y"),
        ("/C:/h", "x", "/C:/h/x"),
        ("/a", "C:", "/a/C:"),
        ("/a b", "%41 {}", "/a b/%41 {}"),
    ] {
        let child = PathUri::from_posix(parent.as_bytes()).child(name.as_bytes());
        assert_eq!(child, PathUri::from_posix(joined.as_bytes()), "{parent} {name}");
    }
    let of_native = PathUri::parse("/a/../b c/").unwrap().child(b"d");
    assert_eq!(of_native, PathUri::from_posix(b"/b c/d"));
    let of_slash = PathUri::parse("file:///a/").unwrap().child(b"d");
    assert_eq!(of_slash, PathUri::from_posix(b"/a/d"));
}

proptest! {
    #[test]
    fn children_of_children_have_the_uri_of_their_path(
        names in proptest::collection::vec(proptest::collection::vec(1u8..=255, 1..8), 1..4),
    ) {
        let (mut uri, mut path) = (PathUri::from_posix(b"/"), Vec::new());
        for name in names {
            let name: Vec<u8> = name.into_iter().filter(|byte| *byte != b'/').collect();
            prop_assume!(!name.is_empty() && name != b"." && name != b"..");
            uri = uri.child(&name);
            path = [path.as_slice(), b"/", &name].concat();
            prop_assert_eq!(&uri, &PathUri::from_posix(&path));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        if let Ok(uri) = PathUri::parse(&text) {
            let _ = uri.to_posix(NativePaths::Reject);
            let _ = uri.to_posix(NativePaths::Accept);
        }
        if let Ok(uri) = PathUri::parse(&format!("file:{text}")) {
            let _ = uri.to_posix(NativePaths::Reject);
        }
    }

    #[test]
    fn every_normal_path_survives_the_wire(segments in proptest::collection::vec("[^/\0]{1,8}", 0..5)) {
        let path = normalise(format!("/{}", segments.join("/")).as_bytes());
        let uri = PathUri::from_posix(&path);
        let read = PathUri::parse(uri.as_str()).unwrap();
        prop_assert_eq!(read.to_posix(NativePaths::Reject).unwrap(), path);
        prop_assert_eq!(read.as_str(), uri.as_str());
    }

    #[test]
    fn every_name_of_raw_bytes_survives_the_wire(name in proptest::collection::vec(1u8..=255, 1..20)) {
        let path = normalise(&[b"/d/", name.as_slice()].concat());
        let read = PathUri::parse(PathUri::from_posix(&path).as_str()).unwrap();
        prop_assert_eq!(read.to_posix(NativePaths::Reject).unwrap(), path);
    }
}

#[test]
fn an_opaque_form_of_a_path_that_is_not_normal_is_refused() {
    for path in [&b"/C:/../x"[..], b"C:/x", b"/C:/x/", b"/C:/a\0b"] {
        let uri = PathUri::from_posix(path);
        let outcome = PathUri::parse(uri.as_str()).map(|uri| uri.to_posix(NativePaths::Reject));
        assert!(!matches!(outcome, Ok(Ok(_))), "{uri:?}");
    }
}
