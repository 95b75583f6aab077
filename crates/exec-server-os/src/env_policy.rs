//! Computes the environment of a child from the server's environment and the request.
//!
//! Names and values are bytes: variables of the server that are not UTF-8 are passed on too.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use exec_server_protocol::process::{Env, EnvInherit, EnvPolicy, ProcessMetadata};

use crate::accounts::Account;
use crate::secret_names::is_secret_name;

/// Variables of `inherit: core`, compared without case.
const CORE: [&str; 11] = [
    "PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME",
    "USER",
];

/// Default excludes of the protocol. They match substrings: `MONKEY` is excluded, `DB_PASSWORD` is not.
const DEFAULT_EXCLUDES: [&str; 3] = ["*KEY*", "*SECRET*", "*TOKEN*"];

/// Secrets and settings of the client and the server that no child gets, even if a request sets them.
pub const NEVER_PASSED: [&str; 10] = [
    "CODEX_GUARDIAN_DECISIONS_API_KEY",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN",
    "EXEC_SERVER_ADMIN_TOKEN",
    "EXEC_SERVER_REMOTE_TOKEN",
    "EXEC_SERVER_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
];
/// Variables that name the session or the files of the server's user, which no other user inherits.
const OF_ONE_USER: [&str; 9] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "MAIL",
    "SSH_AUTH_SOCK",
    "XAUTHORITY",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];
const EXIT_ON_STDIN_CLOSE: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";
const THREAD_ID: &str = "CODEX_THREAD_ID";
const TOOL_CALL_ID: &str = "CODEX_TOOL_CALL_ID";

/// The environment part of a start request.
#[derive(Debug, Clone, Copy)]
pub struct EnvRequest<'a> {
    /// Inheritance from the server; `None` inherits nothing.
    pub policy: Option<&'a EnvPolicy>,
    /// Overrides inherited variables.
    pub env: &'a Env,
    /// Thread and tool call ids of the request.
    pub metadata: Option<&'a ProcessMetadata>,
    /// The user of the child, if the request names one.
    pub user: Option<&'a Account>,
}

/// Computes the child's environment; `server` is the environment of the server itself.
pub fn child_environment(
    server: impl IntoIterator<Item = (OsString, OsString)>,
    request: EnvRequest,
) -> Vec<(OsString, OsString)> {
    let mut env: BTreeMap<OsString, OsString> = BTreeMap::new();
    if let Some(policy) = request.policy {
        let mut inherited: BTreeMap<OsString, OsString> = server.into_iter().collect();
        if let Some(user) = request.user {
            inherited.retain(|name, _| !OF_ONE_USER.iter().any(|own| name == own));
            let of_user = user.variables().into_iter();
            inherited.extend(of_user.map(|(name, value)| (name.into(), value.to_owned())));
        }
        env.extend(
            inherited
                .into_iter()
                .filter(|(name, _)| is_inherited(policy, name) && !is_of_service(name)),
        );
        env.extend(policy.set.iter().map(|(name, value)| (name.into(), value.into())));
        if !policy.include_only.is_empty() {
            env.retain(|name, _| matches_any(&policy.include_only, name));
        }
    }
    env.extend(request.env.iter().map(|(name, value)| (name.into(), value.into())));
    env.retain(|name, _| !is_never_passed(name));
    describe(&mut env, request.metadata);
    env.into_iter().collect()
}

/// Removes the variables in [`NEVER_PASSED`] and the server's own settings.
pub fn without_secrets(
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    env.into_iter().filter(|(name, _)| !is_never_passed(name)).collect()
}

/// Variables by which a service manager talks to the server alone, and credentials of the server's own telemetry.
const OF_SERVICE: [&str; 10] = [
    "CREDENTIALS_DIRECTORY",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

fn is_of_service(name: &OsStr) -> bool {
    OF_SERVICE.iter().any(|known| *known == name)
}

fn is_inherited(policy: &EnvPolicy, name: &OsStr) -> bool {
    let is_in_set = match policy.inherit {
        EnvInherit::All => true,
        EnvInherit::Core => CORE.iter().any(|core| name.eq_ignore_ascii_case(core)),
        EnvInherit::None => false,
    };
    is_in_set && !is_excluded(policy, name)
}

/// Whether a variable exported by a shell profile may be passed to a child.
///
/// `inherit` does not apply here, because the profile belongs to the user and not to the server.
pub fn may_come_from_profile(policy: Option<&EnvPolicy>, name: &str) -> bool {
    let name = OsStr::new(name);
    let is_allowed = policy.is_none_or(|policy| {
        let is_included = policy.include_only.is_empty() || matches_any(&policy.include_only, name);
        is_included
            && !is_excluded(policy, name)
            && !policy.set.contains_key(&*name.to_string_lossy())
    });
    is_allowed && !is_never_passed(name) && name != THREAD_ID && name != TOOL_CALL_ID
}

fn is_excluded(policy: &EnvPolicy, name: &OsStr) -> bool {
    let looks_secret = if policy.exclude_secrets {
        is_secret_name(&name.to_string_lossy())
    } else {
        !policy.ignore_default_excludes && matches_any(&DEFAULT_EXCLUDES, name)
    };
    looks_secret || matches_any(&policy.exclude, name)
}

fn is_never_passed(name: &OsStr) -> bool {
    name == EXIT_ON_STDIN_CLOSE || NEVER_PASSED.iter().any(|never| name.eq_ignore_ascii_case(never))
}

/// Sets the request ids for the child and removes inherited values of the same variables.
fn describe(env: &mut BTreeMap<OsString, OsString>, metadata: Option<&ProcessMetadata>) {
    env.remove(OsStr::new(TOOL_CALL_ID));
    let Some(metadata) = metadata else { return };
    env.remove(OsStr::new(THREAD_ID));
    for (name, value) in [(THREAD_ID, &metadata.thread_id), (TOOL_CALL_ID, &metadata.tool_call_id)]
    {
        if let Some(value) = value {
            env.insert(name.into(), value.into());
        }
    }
}

fn matches_any(patterns: &[impl AsRef<str>], name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    patterns.iter().any(|pattern| matches(pattern.as_ref().as_bytes(), name))
}

/// Matches the whole name without case; `*` is any run and `?` one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || byte.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            _ => {
                // Backtrack: the last star matches one more byte.
                let Some((star_p, star_n)) = star else { return false };
                p = star_p + 1;
                n = star_n + 1;
                star = Some((star_p, star_n + 1));
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Credentials;

    fn policy(inherit: EnvInherit) -> EnvPolicy {
        EnvPolicy {
            inherit,
            ignore_default_excludes: false,
            exclude: vec![],
            set: BTreeMap::new(),
            include_only: vec![],
            exclude_secrets: false,
        }
    }

    fn names(server: &[(&str, &str)], policy: Option<&EnvPolicy>, env: &[(&str, &str)]) -> String {
        let server = server.iter().map(|(name, value)| (name.into(), value.into()));
        let env =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = EnvRequest { policy, env: &env, metadata: None, user: None };
        let child = child_environment(server, request);
        let shown: Vec<String> = child
            .iter()
            .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
            .collect();
        shown.join(" ")
    }

    #[test]
    fn without_a_policy_the_child_gets_exactly_env() {
        assert_eq!(names(&[("PATH", "/bin")], None, &[("A", "1")]), "A=1");
        assert_eq!(names(&[("PATH", "/bin")], None, &[]), "");
    }

    #[test]
    fn the_policy_is_applied_step_by_step() {
        let server = [("PATH", "p"), ("home", "h"), ("MONKEY", "m"), ("X1", "x"), ("Y", "y")];
        let mut all = policy(EnvInherit::All);
        assert_eq!(names(&server, Some(&all), &[]), "PATH=p X1=x Y=y home=h");
        all.ignore_default_excludes = true;
        all.exclude = vec!["x?".into(), "SET*".into()];
        all.set = BTreeMap::from([("SETTLED".into(), "s".into())]);
        assert_eq!(names(&server, Some(&all), &[]), "MONKEY=m PATH=p SETTLED=s Y=y home=h");
        all.include_only = vec!["*E*".into()];
        assert_eq!(names(&server, Some(&all), &[("Q", "q")]), "MONKEY=m Q=q SETTLED=s home=h");
        assert_eq!(names(&server, Some(&policy(EnvInherit::Core)), &[]), "PATH=p home=h");
        assert_eq!(
            names(&server, Some(&policy(EnvInherit::None)), &[("PATH", "mine")]),
            "PATH=mine"
        );
    }

    #[test]
    fn secrets_are_excluded_by_word_if_asked_for() {
        let server = [("DB_PASSWORD", "p"), ("KEYBOARD", "k"), ("API_KEY", "a"), ("Z", "z")];
        let mut all = policy(EnvInherit::All);
        assert_eq!(names(&server, Some(&all), &[]), "DB_PASSWORD=p Z=z");
        all.exclude_secrets = true;
        assert_eq!(names(&server, Some(&all), &[]), "KEYBOARD=k Z=z");
        all.ignore_default_excludes = true;
        assert_eq!(names(&server, Some(&all), &[]), "KEYBOARD=k Z=z");
        // Variables set by the request itself are not excluded.
        assert_eq!(
            names(&server, Some(&all), &[("API_KEY", "mine")]),
            "API_KEY=mine KEYBOARD=k Z=z"
        );
    }

    #[test]
    fn secrets_of_the_client_and_the_server_are_never_passed() {
        let env = [
            ("node_repl_auth_token", "x"),
            ("EXEC_SERVER_ADMIN_TOKEN", "x"),
            ("EXEC_SERVER_REMOTE_TOKEN", "x"),
            ("exec_server_token", "x"),
            ("codex_exec_server_remote_bearer_token", "x"),
            ("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "true"),
            ("CODEX_TOOL_CALL_ID", "c"),
            ("CODEX_THREAD_ID", "t"),
            ("OPENAI_API_KEY", "k"),
        ];
        assert_eq!(names(&[], None, &env), "CODEX_THREAD_ID=t OPENAI_API_KEY=k");
    }

    #[test]
    fn metadata_sets_the_ids_and_overrides_env() {
        let env = Env::from([
            ("CODEX_THREAD_ID".into(), "claim".into()),
            ("CODEX_TOOL_CALL_ID".into(), "claim".into()),
        ]);
        let child = |metadata: &ProcessMetadata| {
            let metadata = Some(metadata);
            child_environment([], EnvRequest { policy: None, env: &env, metadata, user: None })
        };
        assert!(child(&ProcessMetadata::default()).is_empty());
        let known = ProcessMetadata { thread_id: Some("t".into()), tool_call_id: Some("c".into()) };
        assert_eq!(
            child(&known),
            [("CODEX_THREAD_ID".into(), "t".into()), ("CODEX_TOOL_CALL_ID".into(), "c".into())]
        );
    }

    #[test]
    fn another_user_inherits_its_own_home_and_nothing_of_the_server_user() {
        let account = Account {
            name: "ann".to_owned(),
            credentials: Credentials { uid: 1, gid: 1, groups: vec![1] },
            home: "/home/ann".into(),
            shell: "/bin/zsh".into(),
        };
        let server = [("HOME", "/root"), ("XDG_RUNTIME_DIR", "/run/user/0"), ("LANG", "C")];
        let show = |policy: Option<&EnvPolicy>, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let request = EnvRequest { policy, env: &env, metadata: None, user: Some(&account) };
            let server = server.iter().map(|(name, value)| (name.into(), value.into()));
            let child = child_environment(server, request);
            let shown = |(name, value): &(OsString, OsString)| {
                format!("{}={}", name.to_string_lossy(), value.to_string_lossy())
            };
            child.iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        let all = policy(EnvInherit::All);
        let own = "HOME=/home/ann LANG=C LOGNAME=ann SHELL=/bin/zsh USER=ann";
        assert_eq!(show(Some(&all), &[]), own);
        assert_eq!(show(Some(&policy(EnvInherit::Core)), &[]), own);
        assert_eq!(show(Some(&all), &[("HOME", "/tmp")]), own.replace("/home/ann", "/tmp"));
        assert_eq!(show(Some(&policy(EnvInherit::None)), &[]), "");
        assert_eq!(show(None, &[("A", "1")]), "A=1");
    }

    #[test]
    fn patterns_have_stars_and_question_marks_only() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a*c", "ABBC", true),
            ("a*c", "ABBD", false),
            ("?", "", false),
            ("[a]", "a", false),
            ("[a]", "[A]", true),
            ("*a*b*", "xaxbx", true),
            ("**", "x", true),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn variables_that_are_not_utf8_are_passed_on() {
        use std::os::unix::ffi::OsStringExt;
        let odd = OsString::from_vec(b"v\xff".to_vec());
        let server = [(OsString::from_vec(b"N\xfe".to_vec()), odd.clone())];
        let all = policy(EnvInherit::All);
        let child = child_environment(
            server,
            EnvRequest { policy: Some(&all), env: &Env::new(), metadata: None, user: None },
        );
        assert_eq!(child[0].1, odd);
    }
}
