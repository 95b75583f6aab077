//! The deployment files of `deploy/cluster`, as far as they can be checked without the engines that run them.

use std::path::PathBuf;
use std::process::Command;

use saphyr_parser::Parser;

use super::commands::run;

fn read(name: &str) -> String {
    std::fs::read_to_string(place().join(name)).unwrap()
}

fn place() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cluster")
}

#[tokio::test]
async fn the_program_knows_every_option_of_the_manifests() {
    let (code, help, stderr) = run(&["rendezvous", "--help"], &[]).await;
    assert_eq!(code, 0, "{stderr}");
    let known = |option: &str| {
        help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n"))
    };
    for (name, nodes) in [("compose.yaml", 3), ("kubernetes.yaml", 1)] {
        let text = read(name);
        for event in Parser::new_from_str(&text) {
            event.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        // The options of NATS are before the list of a node, and PostgreSQL's are in its health check.
        let lists: Vec<&str> = text.split("- rendezvous\n").skip(1).collect();
        assert_eq!(lists.len(), nodes, "{name}");
        for list in lists {
            let options = list.lines().map_while(|line| line.trim().strip_prefix("- --"));
            let options: Vec<&str> = options.filter_map(|it| it.split('=').next()).collect();
            for needed in ["listen", "public-url", "node-url", "node-id", "nats", "signing-keys"] {
                assert!(options.contains(&needed), "{name} lacks --{needed}");
            }
            for option in options {
                assert!(known(&format!("--{option}")), "{name}: --{option} is not in the help");
            }
        }
        assert!(text.contains("EXEC_SERVER_STORE_FILE"), "{name}");
    }
}

#[test]
fn haproxy_accepts_its_configuration_with_the_variables_of_each_example() {
    let compose = read("compose.yaml");
    for (listen, a, b, c) in [
        ("127.0.0.1:7780", "127.0.0.1:7781", "127.0.0.1:7782", "127.0.0.1:7783"),
        (":7780", "a:7780", "b:7780", "c:7780"),
    ] {
        let mut check = Command::new("haproxy");
        check.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        check.args(["-c", "-f"]).arg(place().join("haproxy.cfg"));
        for (name, value) in [("LISTEN", listen), ("A", a), ("B", b), ("C", c)] {
            check.env(format!("MEET_{name}"), value);
            let line = format!("MEET_{name}: \"{value}\"");
            assert!(value.starts_with("127.") || compose.contains(&line), "{line}");
        }
        let Ok(checked) = check.output() else {
            return eprintln!(
                "skipped: haproxy is not installed (on Debian: apt-get install haproxy)"
            );
        };
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
