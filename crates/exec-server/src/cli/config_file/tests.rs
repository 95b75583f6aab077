use super::*;

/// One of these is a valid value for every option that is no switch.
const SAMPLES: [&str; 18] = [
    "200ms",
    "1073741824",
    "5s",
    "4096",
    "1",
    "true",
    "text",
    "json",
    "64m",
    "127.0.0.1:1",
    "ws://127.0.0.1:1",
    "http://127.0.0.1:1",
    "https://example.org",
    "capability-token",
    "landlock",
    "debugging",
    "block",
    "/a/file",
];

fn is_valid(command: &Command, option: &Arg, text: &str) -> bool {
    let file = format!("[{}]\n{} = {text}\n", section_name(command), option.get_long().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, file).unwrap();
    let place = Place { path, is_required: true };
    let Ok(Some(file)) = ConfigFile::read(&place) else { return false };
    let section = section_name(command);
    let line = CommandLine::new(section, &[]);
    let settings = line.settings(&[file]);
    let words = line.with_settings(&settings);
    let command = line.command.ignore_errors(true);
    let matches = command.get_matches_from(std::iter::once(OsString::from("x")).chain(words));
    let source = matches.value_source(option.get_id().as_str());
    source == Some(clap::parser::ValueSource::CommandLine)
}

fn section_name(command: &Command) -> &'static str {
    SECTIONS.into_iter().find(|name| *name == command.get_name()).unwrap_or("server")
}

#[test]
fn every_flag_of_every_section_can_be_set_in_a_file() {
    for section in SECTIONS {
        let command = CommandLine::new(section, &[]).command;
        assert!(options(&command).count() > 1, "{section}");
        for option in options(&command) {
            let texts = SAMPLES.map(|sample| format!("\"{sample}\""));
            let mut texts = texts.iter().map(String::as_str).chain(["true"]);
            let is_settable = texts.any(|text| is_valid(&command, option, text));
            assert!(is_settable, "no file can set {} in [{section}]", option.get_id());
        }
    }
}

fn problems(text: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text).unwrap();
    let found = ConfigFile::read(&Place { path, is_required: true }).err().unwrap_or_default();
    found.iter().map(|it| format!("{}: {}", it.line.unwrap_or(0), it.text)).collect()
}

#[test]
fn mistakes_are_reported_with_their_line_and_a_suggestion() {
    for (text, expected) in [
        ("[server]\nlisten-url = \"x\"", "2: unknown setting `listen-url`; did you mean `listen`?"),
        ("[server]\nmax_memory = 1", "2: unknown setting `max_memory`; did you mean `max-memory`?"),
        ("\n[servers]\n", "2: unknown section `servers`; did you mean `server`?"),
        ("listen = \"x\"", "1: put `listen` into a section, such as [server]"),
        ("server = 1", "1: `server` is a section: [server]"),
        (
            "[server]\naudit-payloads = \"yes\"",
            "2: `audit-payloads`: expected true or false, not a string",
        ),
        ("[server]\n\nlisten = 1.5", "3: `listen`: expected a text, not a float"),
        ("[server]\nlisten = [\"a\"]", "2: `listen`: expected a text, not an array"),
        ("[server]\nconfig = \"a\"", "2: unknown setting `config`"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:?}");
    }
    let found = problems("[server]\nmax-sessions = 0\nlisten = \n");
    assert!(found.len() == 1 && found[0].starts_with("3: "), "{found:?}");
    let found = problems("[server]\nmax-sessions = 0\nping-interval = \"5 parsecs\"\n");
    assert!(
        found.len() == 2 && found[0].starts_with("2: `max-sessions`: invalid value"),
        "{found:?}"
    );
}

#[test]
fn a_flag_replaces_what_it_contradicts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let text = "[server]\nremote = \"https://r.example\"\nenvironment-id = \"e\"\nname = \"n\"\nmax-sessions = 5\n";
    std::fs::write(&path, text).unwrap();
    let files = read(&[Place { path, is_required: true }]).unwrap();
    let names = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let line = CommandLine::new("server", &words);
        line.settings(&files).into_iter().map(|it| it.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["remote", "environment-id", "name", "max-sessions"]);
    assert_eq!(names(&["--listen", "ws://127.0.0.1:0"]), ["max-sessions"]);
    assert_eq!(names(&["--name=other"]), ["remote", "environment-id", "max-sessions"]);
    // Values and what comes after the separator are no flags.
    assert_eq!(names(&["--", "--name"]).len(), 4);
}

#[test]
fn files_are_named_by_config_and_the_reference_settings_are_not_files() {
    let places = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        CommandLine::new("server", &words).places()
    };
    let named = |path: &str| Place { path: path.into(), is_required: true };
    assert_eq!(
        places(&["--config", "a", "-c", "k=v", "--config=b", "-cc"]),
        ["c", "b", "a"].map(named)
    );
    // A server that another program started reads none of the usual files.
    assert_eq!(places(&["--listen", "stdio"]), []);
    assert_eq!(places(&["--exit-on-stdin-close"]), []);
    assert_eq!(places(&["--listen=stdio", "--config", "a"]), [named("a")]);
}

#[test]
fn only_commands_that_serve_read_files() {
    let of = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        section_of(&words)
    };
    assert_eq!(of("x"), Some(("server", 1)));
    assert_eq!(of("x --listen stdio"), Some(("server", 1)));
    assert_eq!(of("x rendezvous --listen a"), Some(("rendezvous", 2)));
    for line in ["x run -- ls", "x rendezvous migrate", "x --help", "x forward -h", "x --version"] {
        assert_eq!(of(line), None, "{line}");
    }
}
