use crate::relay::ExecutorKey;

use super::*;

fn parse(text: &str) -> Result<Environments, EnvironmentsError> {
    Environments::parse(text, Path::new("/home/me/environments.toml"))
}

fn error_of(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_file_lists_urls_and_programs() {
    let environments = parse(
        r#"
        default = "box"
        [[environments]]
        id = "box"
        url = "wss://box.example:8443/exec"
        connect_timeout_sec = 2.5
        [[environments]]
        id = "child"
        program = "ssh"
        args = ["host", "exec-server", "--listen", "stdio"]
        env = { A = "1" }
        cwd = "here"
        initialize_timeout_sec = 1
        "#,
    )
    .unwrap();
    let Endpoint::Url { connect_timeout, .. } = &environments.get(None).unwrap().endpoint else {
        panic!("a URL")
    };
    assert_eq!(*connect_timeout, Duration::from_millis(2500));
    let child = environments.get(Some("child")).unwrap();
    assert_eq!(child.initialize_timeout, Duration::from_secs(1));
    let Endpoint::Program { cwd, .. } = &child.endpoint else { panic!("a program") };
    assert_eq!(cwd.as_deref(), Some(Path::new("/home/me/here")));
}

#[test]
fn without_a_default_this_machine_is_meant_if_it_counts() {
    assert_eq!(*parse("").unwrap().default_choice(), Choice::Local);
    assert_eq!(*parse("include_local = false").unwrap().default_choice(), Choice::Unset);
    assert_eq!(*parse("default = \"none\"").unwrap().default_choice(), Choice::Disabled);
    let error = parse("").unwrap().get(None).unwrap_err().to_string();
    assert!(error.contains("this machine"), "{error}");
}

#[test]
fn keys_of_other_programs_are_ignored_and_listed() {
    let environments = parse(
        r#"
        schema = 2
        default = "carrier"
        [[environments]]
        id = "box"
        url = "wss://box.example"
        auth_bearer_token = "t0ken"
        color = "red"
        [environments.skills]
        required = ["review"]
        [[environments]]
        id = "carrier"
        pigeon = { name = "Ada" }
        [telemetry]
        on = true
        "#,
    )
    .unwrap();
    let expected = ["schema", "telemetry", "environments.box.color", "environments.carrier.pigeon"];
    assert_eq!(environments.ignored_keys(), expected);
    let Endpoint::Url { token, .. } = &environments.get(Some("box")).unwrap().endpoint else {
        panic!("a URL")
    };
    assert_eq!(*token, Some(TokenSource::fixed("t0ken")));
    assert!(!format!("{environments:?}").contains("t0ken"));
    let error = environments.get(None).unwrap_err().to_string();
    assert!(error.contains("environment `carrier` has none of"), "{error}");
}

#[test]
fn mistakes_are_named() {
    let entry = |rest: &str| format!("[[environments]]\nid = \"a\"\n{rest}");
    for (text, what) in [
        (entry("program = \"p\"\nauth_bearer_token = \"t\""), "`auth_bearer_token` needs `url`"),
        (entry("url = \"ws://h\"\nauth_bearer_token = \"t\""), "without TLS"),
        (entry(""), "exactly one of"),
        (entry("url = \"ws://h\"\nprogram = \"p\""), "exactly one of"),
        (entry("url = \"http://h\""), "unsupported scheme"),
        (entry("url = \"ws://h\"\nargs = []"), "`args` needs `program`"),
        (entry("program = \"p\"\nconnect_timeout_sec = 1"), "needs `url`"),
        (entry("url = \"ws://h\"\nregistry = \"https://h\""), "exactly one of"),
        (entry("registry = \"ws://h\""), "is not a registry URL"),
        (entry("url = \"ws://h\"\ntoken_file = \"t\""), "`token_file` needs `registry`"),
        (entry("registry = \"https://h\"\ncwd = \"x\""), "`cwd` needs `program`"),
        (entry("registry = \"https://h\"\nexecutor_key = \"x\""), "is not a key fingerprint"),
        (entry("url = \"ws://h\"\nconnect_timeout_sec = 0"), "above 0"),
        (entry("url = \"ws://h\"\ninitialize_timeout_sec = -1.0"), "above 0"),
        ("default = \"b\"".to_owned(), "`b` is not listed"),
        ("include_local = false\ndefault = \"local\"".to_owned(), "`local` is not listed"),
        (
            format!("{0}\nurl = \"ws://h\"\n{0}\nurl = \"ws://h\"", "[[environments]]\nid = \"a\""),
            "listed twice",
        ),
    ] {
        let error = error_of(&text);
        assert!(error.contains(what), "{text}\n{error}");
    }
    for id in ["", "local", "none", "a b", "ä", &"x".repeat(65)] {
        let error = error_of(&format!("[[environments]]\nid = \"{id}\"\nurl = \"ws://h\""));
        assert!(error.contains("must be 1 to 64"), "{error}");
    }
}

#[test]
fn the_variable_stands_for_one_environment_and_no_local_one() {
    let with = |value: &str| {
        let value = value.to_owned();
        Environments::from_lookup(move |name| (name == URL_VARIABLE).then(|| value.clone()))
    };
    let environments = with("  ws://127.0.0.1:1  ").unwrap();
    assert_eq!(environments.get(None).unwrap().id, REMOTE_ID);
    assert!(!environments.includes_local());
    assert_eq!(*with("NoNe").unwrap().default_choice(), Choice::Disabled);
    assert_eq!(*with(" ").unwrap().default_choice(), Choice::Unset);
    assert!(with("127.0.0.1:1").is_err());
}

#[test]
fn a_registry_knows_environments() {
    let environments = parse(
        r#"
        [[environments]]
        id = "build"
        registry = "https://relay.example.org"
        [[environments]]
        id = "other"
        registry = "https://relay.example.org"
        environment_id = "a b"
        token_file = "token"
        executor_key = "any"
        connect_timeout_sec = 1
        "#,
    )
    .unwrap();
    let place = |id| match &environments.get(Some(id)).unwrap().endpoint {
        Endpoint::Relay(place) => place.clone(),
        endpoint => panic!("{endpoint:?}"),
    };
    assert_eq!(place("build"), RelayTarget::new("https://relay.example.org", "build"));
    let other = place("other");
    assert_eq!(other.environment_id, "a b");
    assert_eq!(other.token, Some(TokenSource::File("/home/me/token".into())));
    assert_eq!(other.executor_key, Some(ExecutorKey::Any));
    assert_eq!(other.connect_timeout, Duration::from_secs(1));
}

#[test]
fn three_variables_name_an_environment_at_a_registry_before_the_one_that_names_a_server() {
    let with = |values: [&str; 3]| {
        let values = values.map(str::to_owned);
        Environments::from_lookup(move |name| match name {
            URL_VARIABLE => Some("ws://h".to_owned()),
            ACCOUNT_VARIABLE => Some("account".to_owned()),
            name => {
                REGISTRY_VARIABLES.iter().position(|it| *it == name).map(|at| values[at].clone())
            }
        })
    };
    let environments = with(["https://h", "env", "hush"]).unwrap();
    let Endpoint::Relay(place) = &environments.get(None).unwrap().endpoint else {
        panic!("a registry")
    };
    assert_eq!((place.registry.as_str(), place.environment_id.as_str()), ("https://h", "env"));
    assert_eq!(place.account_id.as_deref(), Some("account"));
    assert!(!format!("{environments:?}").contains("hush"));
    assert!(matches!(
        with(["", "", " "]).unwrap().get(None).unwrap().endpoint,
        Endpoint::Url { .. }
    ));
    let error = with(["https://h", "env", ""]).unwrap_err().to_string();
    assert!(error.contains("set all or none"), "{error}");
}

#[test]
fn the_file_wins_over_the_variable() {
    let home = std::env::temp_dir().join(format!("environments-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join(FILE_NAME), "default = \"none\"").unwrap();
    let found = Environments::from_lookup(|name| match name {
        HOME_VARIABLE => home.to_str().map(str::to_owned),
        URL_VARIABLE => Some("ws://h".to_owned()),
        _ => None,
    });
    std::fs::remove_dir_all(&home).unwrap();
    assert_eq!(*found.unwrap().default_choice(), Choice::Disabled);
}
