//! JSON of `fs/*` as clients send it.

use proptest::prelude::*;

use super::*;
use crate::params;

#[test]
fn params_may_come_as_an_array_in_the_order_of_their_declaration() {
    let read: FsReadFileParams = params::decode(r#"["file:///a",false,null]"#).unwrap();
    assert_eq!(read.follow_symlinks, Some(false));
    let open: FsOpenParams = params::decode(r#"["h","file:///a","replace",null]"#).unwrap();
    assert_eq!((open.handle_id.as_str(), open.mode), ("h", OpenMode::Replace));
    assert_eq!(
        params::decode::<FsOpenParams>(r#"["h","file:///a"]"#).unwrap().mode,
        OpenMode::Read
    );
}

#[test]
fn an_open_mode_is_read_or_replace_and_never_null() {
    let with = |mode: &str| {
        let raw = format!(r#"{{"handleId":"h","path":"file:///a","mode":{mode}}}"#);
        params::decode::<FsOpenParams>(&raw).map(|params| params.mode)
    };
    assert_eq!(with("\"read\""), Ok(OpenMode::Read));
    assert_eq!(
        with("\"append\"").unwrap_err(),
        "unknown variant `append`, expected `read` or `replace`"
    );
    assert!(with("null").is_err());
}

#[test]
fn recursive_is_required_for_a_copy() {
    let raw = r#"{"sourcePath":"file:///a","destinationPath":"file:///b"}"#;
    assert_eq!(params::decode::<FsCopyParams>(raw).unwrap_err(), "missing field `recursive`");
}

#[test]
fn optional_members_are_omitted_unless_requested() {
    let text = |value: &FsWriteFileResponse| serde_json::to_string(value).unwrap();
    assert_eq!(text(&FsWriteFileResponse::default()), "{}");
    let in_place = FsWriteFileResponse { in_place: Some(true), ..Default::default() };
    assert_eq!(text(&in_place), r#"{"inPlace":true}"#);
    assert_eq!(
        serde_json::to_string(&FsGetMetadataResponse::default()).unwrap(),
        r#"{"isDirectory":false,"isFile":false,"isSymlink":false,"size":0,"createdAtMs":0,"modifiedAtMs":0}"#
    );
}

proptest! {
    #[test]
    fn both_decoders_of_a_write_agree(
        path in r#"("file:///a"|"/a"|"x"|5|null)"#,
        data in r#"("aGk="|"aGk"|"\\u0061Gk="|"!"|7)"#,
        rest in r#"(,"followSymlinks":(true|false|null|1))?(,"ifMatch":("a\\"b"|null|3))?(,"durability":("full"|"all"))?"#,
    ) {
        let raw = format!("{{\"path\":{path},\"x\":[{{}}],\"dataBase64\":{data}{rest}}}");
        prop_assert_eq!(FsWriteFileParams::decode(&raw), params::decode(&raw));
    }

    #[test]
    fn both_decoders_of_a_block_agree(
        id in r#"("h"|"a\\u0062"|5|null)"#,
        offset in r#"(0|7|-1|1.5|18446744073709551615|18446744073709551616|"3")"#,
        chunk in r#"("aGk="|"aGk"|"\\u0061Gk="|"!"|7)"#,
    ) {
        let raw = format!("{{\"handleId\":{id},\"offset\":{offset},\"chunk\":{chunk},\"x\":[]}}");
        prop_assert_eq!(FsWriteBlockParams::decode(&raw), params::decode(&raw));
    }
}
