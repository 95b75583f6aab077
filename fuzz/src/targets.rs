//! What each fuzz target does with its input; a panic is a finding.
//!
//! The same functions replay the committed seeds in `cargo test`, so this file uses nothing of the fuzzer.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bytes::Bytes;
use exec_server_protocol::binary;
use exec_server_protocol::envelope::{self, Incoming};
use exec_server_protocol::environment::*;
use exec_server_protocol::fs::*;
use exec_server_protocol::http::*;
use exec_server_protocol::initialize::InitializeParams;
use exec_server_protocol::json::{self, JsonError};
use exec_server_protocol::params;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::process::*;
use exec_server_protocol::sandbox::SandboxParams;
use exec_server_protocol::session::SessionSetLingerParams;
use exec_server_relay::frame::RelayFrame;
use exec_server_relay::noise::SystemRandom;
use exec_server_relay::noise::handshake::{Binding, Hello, Initiator};
use exec_server_relay::noise::identity::Identity;
use exec_server_sandbox::policy::{FilePolicy, HostFacts, can_hold, compile};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of the directory with their seeds.
pub const ALL: [(&str, Target); 7] = [
    ("json_scanner", json_scanner),
    ("envelope", envelope),
    ("binary_message", binary_message),
    ("path_uri", path_uri),
    ("relay_frame", relay_frame),
    ("noise_handshake", noise_handshake),
    ("policy", policy),
];

/// A binary message has a JSON form exactly if its header is a JSON message with a place for the bytes.
pub fn binary_message(data: &[u8]) {
    let Ok((header, bytes)) = binary::split(data) else {
        assert!(binary::to_text(data).is_err());
        return;
    };
    assert_eq!(binary::PREFIX_BYTES + header.len() + bytes.len(), data.len());
    let Ok(text) = binary::to_text(data) else { return };
    let parsed: serde_json::Value = serde_json::from_slice(&text).expect("the form is JSON");
    let payload = parsed.get("params").unwrap_or_else(|| &parsed["result"]);
    let chunk = payload["chunk"].as_str().expect("the chunk is text");
    assert_eq!(exec_server_protocol::base64::decode(chunk).as_deref(), Ok(bytes));
    assert_eq!(envelope::decode(header).is_ok(), envelope::decode(&text).is_ok());
}

/// The scanner takes what serde takes, except for what it has limits of its own for.
pub fn json_scanner(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut members = Vec::new();
    let scanned = json::scan_object(text, |key, value| members.push((key.to_owned(), value)));
    let parsed = serde_json::from_str::<serde_json::Value>(text);
    match scanned {
        Ok(()) => {
            let raw = serde_json::from_str::<&serde_json::value::RawValue>(text);
            raw.expect("the scanner took it");
            // A number that is too large for a value is still JSON.
            let Ok(parsed) = parsed else { return };
            let object = parsed.as_object().expect("the scanner took it for an object");
            assert_eq!(object.len(), members.len());
            for (key, value) in members {
                let value: serde_json::Value = serde_json::from_str(value).expect("a value");
                assert_eq!(object[&key], value);
            }
        }
        // A number that is too large for a value is no object either.
        Err(JsonError::NotAnObject) => assert!(!parsed.is_ok_and(|value| value.is_object())),
        Err(JsonError::DuplicateKey(_) | JsonError::TooManyValues | JsonError::TooDeep) => {}
        Err(_) => assert!(parsed.is_err(), "the scanner refuses what serde takes"),
    }
}

/// A message that can be read can be read again, and its params are decoded or refused by every method.
pub fn envelope(data: &[u8]) {
    let Ok(message) = envelope::decode(data) else { return };
    let raw = match &message {
        Incoming::Request { params, .. } | Incoming::Notification { params, .. } => params,
        Incoming::Response { result, .. } => result,
        Incoming::Error { error, .. } => error,
    };
    if let Incoming::Request { id, .. } = &message {
        let reply = envelope::response(id, &());
        let again = envelope::decode_text(&reply).expect("a reply can be read");
        assert!(matches!(again, Incoming::Response { id: read, .. } if read == *id));
    }
    let _ = ProcessWriteParams::decode(raw);
    let _ = FsWriteBlockParams::decode(raw);
    let _ = FsWriteFileParams::decode(raw);
    let _ = HttpRequestBodyParams::decode(raw);
    macro_rules! each {
        ($($params:ty),*) => { $(let _ = params::decode::<$params>(raw);)* };
    }
    each!(
        InitializeParams,
        ProcessStartParams,
        ProcessReadParams,
        ProcessSignalParams,
        ProcessTerminateParams,
        ProcessResizeParams,
        ProcessCloseStdinParams,
        SessionSetLingerParams,
        EnvironmentConfigReadParams,
        CapabilityRootsParams,
        CapabilitiesParams,
        FsReadFileParams,
        FsOpenParams,
        FsReadBlockParams,
        FsCloseParams,
        FsAppendParams,
        FsTruncateParams,
        FsEditParams,
        FsWatchParams,
        FsReadChangesParams,
        FsUnwatchParams,
        FsSearchParams,
        FsFindParams,
        FsNextPageParams,
        FsCancelSearchParams,
        FsCreateDirectoryParams,
        FsGetMetadataParams,
        FsCanonicalizeParams,
        FsReadDirectoryParams,
        FsWalkParams,
        FsRemoveParams,
        FsCopyParams,
        FsRenameParams,
        FsSymlinkParams,
        FsReadLinkParams,
        FsSetPermissionsParams,
        FsBatchParams,
        FsWatchMissingParams,
        HttpRequestParams,
        HttpCancelParams
    );
}

/// A path that a URI names is absolute and normal, and comes back from the URI that it makes.
pub fn path_uri(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(uri) = PathUri::parse(text) else { return };
    let again = PathUri::parse(uri.as_str()).expect("its own text can be read");
    for native in [NativePaths::Reject, NativePaths::Accept] {
        // Not the text: a URI with a host and a drive loses its host, and names no path either way.
        assert_eq!(again.to_posix(native).ok(), uri.to_posix(native).ok());
        let Ok(path) = uri.to_posix(native) else { continue };
        let rest = path.strip_prefix(b"/").expect("the path is absolute");
        let is_normal = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
        assert!(rest.is_empty() || rest.split(|byte| *byte == b'/').all(is_normal));
        assert!(!path.contains(&0));
        let again = PathUri::from_posix(&path);
        assert_eq!(again.to_posix(NativePaths::Reject).ok(), Some(path));
    }
}

/// A frame that can be read is written so that the same is read again.
pub fn relay_frame(data: &[u8]) {
    let Ok(frame) = RelayFrame::decode(Bytes::copy_from_slice(data)) else { return };
    let again = RelayFrame::decode(frame.encode().into()).expect("a frame can be read");
    assert_eq!(again, frame);
}

const BINDING: Binding<'static> =
    Binding { environment_id: "env", registration_id: "registration", stream_id: "stream" };

/// Nothing that a stranger sends completes a handshake, at either end.
///
/// With a first byte of 1 the rest is a change to a good message.
pub fn noise_handshake(data: &[u8]) {
    static ENDS: LazyLock<[Identity; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Identity::generate(&mut SystemRandom)));
    let [harness, executor] = &*ENDS;
    let start = || {
        let key = executor.public_key();
        Initiator::<SystemRandom>::start(harness, &key, BINDING, "authorization")
            .expect("the authorization is short")
    };
    let Some((kind, rest)) = data.split_first() else { return };
    let (initiator, first) = start();
    if *kind != 1 {
        assert!(Hello::<SystemRandom>::read(executor, BINDING, rest).is_err());
        assert!(initiator.finish(rest).is_err());
        return;
    }
    let changed = change(&first, rest);
    let hello = Hello::<SystemRandom>::read(executor, BINDING, &changed);
    assert_eq!(hello.is_ok(), changed == first);
    let good = Hello::<SystemRandom>::read(executor, BINDING, &first).expect("it is unchanged");
    let (second, _) = good.accept().expect("it is from the harness");
    let changed = change(&second, rest);
    assert_eq!(initiator.finish(&changed).is_ok(), changed == second);
}

/// Changes bytes of a message at places that the input chooses.
fn change(message: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut changed = message.to_vec();
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match changed.get_mut(place) {
            Some(byte) => *byte ^= change[2],
            None => changed.push(change[2]),
        }
    }
    changed
}

/// A policy that compiles gives each path one access, and no more below a denied place than its rules say.
pub fn policy(data: &[u8]) {
    let Ok(sandbox) = serde_json::from_slice::<SandboxParams>(data) else { return };
    let host = HostFacts {
        tmpdir: Some(PathBuf::from("/var/tmp")),
        has_slash_tmp: true,
        home: Some(PathBuf::from("/home/user")),
        minimal: vec![PathBuf::from("/usr"), PathBuf::from("/etc")],
        native_paths: NativePaths::Reject,
    };
    let Ok(policy) = compile(&sandbox, &host) else { return };
    assert_eq!(compile(&sandbox, &host).map(|again| again.digest()).ok(), Some(policy.digest()));
    let _ = can_hold(&policy);
    let FilePolicy::Restricted(rules) = &policy.files else { return };
    for (place, access) in rules.places() {
        assert!(place.is_absolute(), "{place:?}");
        let is_denied_by_glob = rules.deny_globs().any(|glob| glob.denies(place));
        assert!(rules.access(place) == access || is_denied_by_glob, "{place:?}");
    }
    let _ = rules.access(Path::new("/home/user/project/.git/hooks"));
    let text = serde_json::to_string(&sandbox).expect("it was read from JSON");
    let again: SandboxParams = serde_json::from_str(&text).expect("it was written by us");
    let again = compile(&again, &host).map(|again| again.digest());
    assert_eq!(again.ok(), Some(policy.digest()));
}
