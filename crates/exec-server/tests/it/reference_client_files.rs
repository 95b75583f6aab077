//! The unmodified reference client works on files that it can reach only through our server.
//!
//! Where the system allows it, the client finds an empty folder where the server has the workspace. In any case the
//! server's own counts say what the client asked for. See `reference_client` for how to try another server.

use std::collections::BTreeMap;
use std::fs;

use exec_server_protocol::base64;
use exec_server_testkit::TestExecutor;
use exec_server_testkit::reference::{ReferenceClient, Run, Scenario, Thread, ToolCall};

use crate::metrics;
use crate::reference_client::{DEADLINE, blocking, each_version};

/// The client searches instructions and skills up to the repository root, which must not be ours.
const REPOSITORY: &str = ".git/HEAD";

/// The client offers `apply_patch` as a tool of its own only to models that it knows.
const PATCHING_MODEL: &str = "gpt-5.5";

const SKILL: &str =
    "---\nname: tidy\ndescription: Tidies the desk.\n---\n\nSweep it, then dust it.\n";

#[tokio::test]
async fn the_patch_tool_adds_updates_moves_and_deletes_files() {
    patches_are_applied(ToolCall::patch, Scenario::new().model(PATCHING_MODEL)).await;
}

#[tokio::test]
async fn a_patch_in_a_shell_command_is_applied_without_a_shell() {
    for counts in patches_are_applied(ToolCall::patch_in_shell, Scenario::new()).await {
        assert_eq!(counts.of("process/start"), (0, 0), "{counts:?}");
    }
}

async fn patches_are_applied(patch: fn(&str, &str) -> ToolCall, scenario: Scenario) -> Vec<Counts> {
    let scenario = scenario
        .file(REPOSITORY, "ref: refs/heads/main\n")
        .file("song.txt", "one\ntwo\nthree\n")
        .file("old.txt", "nobody wants this\n")
        .file("here.txt", "a\nb\n")
        .turn([patch("add", &patch_of("*** Add File: new/deep/größe {1}.txt\n+hello\n+ü"))])
        .turn([patch("update", &patch_of("*** Update File: song.txt\n@@\n one\n-two\n+2\n three"))])
        .turn([patch(
            "move",
            &patch_of("*** Update File: here.txt\n*** Move to: there/it.txt\n@@\n a\n-b\n+c"),
        )])
        .turn([patch("delete", &patch_of("*** Delete File: old.txt"))])
        .turn([patch("wrong", &patch_of("*** Update File: song.txt\n@@\n-no such line\n+x"))]);
    let mut all_counts = Vec::new();
    for (run, counts) in runs(scenario).await {
        for (label, letter) in [("add", "A"), ("update", "M"), ("move", "M"), ("delete", "D")] {
            let output = &run.result(label).output;
            let success = format!("Success. Updated the following files:\n{letter} ");
            assert!(output.contains(&success), "{label}: {output}");
        }
        let wrong = &run.result("wrong").output;
        assert!(wrong.contains("no such line"), "{wrong}");
        let read = |name: &str| fs::read_to_string(run.workspace().join(name)).ok();
        assert_eq!(read("new/deep/größe {1}.txt").as_deref(), Some("hello\nü\n"));
        assert_eq!(read("song.txt").as_deref(), Some("one\n2\nthree\n"));
        assert_eq!(read("there/it.txt").as_deref(), Some("a\nc\n"));
        assert_eq!((read("here.txt"), read("old.txt")), (None, None));

        if let Some(counts) = &counts {
            // Both files with a new folder are written once more when there is one.
            assert_eq!(counts.of("fs/writeFile"), (3, 2), "{counts:?}");
            assert_eq!(counts.of("fs/createDirectory"), (2, 0), "{counts:?}");
            assert_eq!(counts.of("fs/remove"), (2, 0), "{counts:?}");
            assert!(counts.of("fs/readFile").0 >= 3, "{counts:?}");
        }
        all_counts.extend(counts);
    }
    all_counts
}

#[tokio::test]
async fn the_model_sees_exactly_the_bytes_of_an_image() {
    let image = image();
    let scenario = Scenario::new()
        .file(REPOSITORY, "ref: refs/heads/main\n")
        .file("pictures/a dot.png", image.clone())
        .turn([ToolCall::view_image("dot", "pictures/a dot.png")])
        .turn([ToolCall::view_image("missing", "pictures/none.png")]);
    for (run, counts) in runs(scenario).await {
        let expected = format!("data:image/png;base64,{}", base64::encode(&image));
        let seen = &run.result("dot").images;
        assert_eq!(seen.len(), 1, "{:?}", run.result("dot"));
        assert!(seen[0] == expected, "{} bytes instead of {}", seen[0].len(), expected.len());
        let missing = run.result("missing");
        assert!(missing.images.is_empty() && missing.output.contains("none.png"), "{missing:?}");
        if let Some(counts) = counts {
            assert_eq!(counts.of("fs/readFile"), (1, 0), "{counts:?}");
        }
    }
}

#[tokio::test]
async fn instructions_and_skills_of_the_workspace_reach_the_model() {
    let scenario = Scenario::new()
        .file(REPOSITORY, "ref: refs/heads/main\n")
        .file("AGENTS.md", "Speak softly.\n")
        .file(".agents/skills/tidy/SKILL.md", SKILL)
        .task("use $tidy");
    for (run, counts) in runs(scenario).await {
        let told = run.instructions();
        for text in ["Speak softly.", "- tidy: Tidies the desk.", "Sweep it, then dust it."] {
            assert!(told.contains(text), "`{text}` is not in {told}");
        }
        if let Some(counts) = counts {
            assert_eq!(counts.of("fs/walk"), (1, 0), "{counts:?}");
            // The instructions, the skill for the list, and the skill once more because the task names it.
            assert_eq!(counts.of("fs/readFile"), (3, 0), "{counts:?}");
            assert_eq!(counts.of("fs/canonicalize"), (2, 0), "{counts:?}");
            let (found, missing) = counts.of("fs/getMetadata");
            assert!(found >= 3 && missing >= 3, "{counts:?}");
        }
    }
}

#[tokio::test]
async fn a_skill_that_appears_between_two_turns_is_noticed() {
    for client in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", client.version());
        a_new_skill_is_noticed(client).await;
    }
}

async fn a_new_skill_is_noticed(client: ReferenceClient) {
    let scenario = Scenario::new().file(REPOSITORY, "ref: refs/heads/main\n");
    let (server, url) = Counted::start().await;
    let mut thread = blocking(move || client.start_thread(&url, scenario, DEADLINE)).await;
    let mut told = String::new();
    for text in ["first", "second"] {
        (thread, told) = turn(thread, text).await;
    }
    assert!(told.contains("second") && !told.contains("Tidies the desk."), "{told}");
    if let Some(server) = &server {
        let counts = server.counts().await;
        // A client whose watch is rejected retries it, and then polls at every turn.
        assert_eq!(counts.of("fs/watchMissing"), (1, 0), "{counts:?}");
        assert_eq!(counts.of("fs/walk"), (0, 0), "{counts:?}");
    }

    thread.write(".agents/skills/tidy/SKILL.md", SKILL);
    // The notification and the next turn reach the client independently.
    while !told.contains("- tidy: Tidies the desk.") {
        (thread, told) = turn(thread, "go on").await;
    }
    if let Some(server) = &server {
        let counts = server.counts().await;
        assert_eq!(counts.of("fs/walk"), (1, 0), "{counts:?}");
        assert_eq!(counts.of("fs/readFile"), (1, 0), "{counts:?}");
    }
    blocking(move || drop(thread)).await;
}

fn patch_of(change: &str) -> String {
    format!("*** Begin Patch\n{change}\n*** End Patch")
}

/// One dot, and after its end more bytes than the server reads at once, with all values among them.
fn image() -> Vec<u8> {
    let dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let mut image = base64::decode(dot).unwrap();
    image.extend((0..300_001_u32).map(|place| place.wrapping_mul(2_654_435_761).to_be_bytes()[0]));
    image
}

/// Runs the scenario in every version of the client; returns the request counts of our server.
async fn runs(scenario: Scenario) -> impl Iterator<Item = (Run, Option<Counts>)> {
    let (mut runs, mut all_counts) = (Vec::new(), Vec::new());
    for client in blocking(ReferenceClient::find_all).await {
        let (server, url) = Counted::start().await;
        let scenario = scenario.clone();
        runs.push(blocking(move || client.run(&url, scenario, DEADLINE)).await);
        all_counts.push(match &server {
            Some(server) => Some(server.counts().await),
            None => None,
        });
    }
    each_version(runs).zip(all_counts)
}

async fn turn(mut thread: Thread, text: &'static str) -> (Thread, String) {
    blocking(move || {
        let told = thread.turn(text);
        (thread, told)
    })
    .await
}

/// A server of ours that counts the requests.
struct Counted {
    _server: TestExecutor,
    metrics: String,
}

impl Counted {
    async fn start() -> (Option<Self>, String) {
        if let Ok(url) = std::env::var("EXEC_SERVER_TEST_URL") {
            return (None, url);
        }
        let (server, metrics) = metrics::start().await;
        let url = server.url().to_string();
        (Some(Self { _server: server, metrics }), url)
    }

    async fn counts(&self) -> Counts {
        let samples = metrics::scrape(&self.metrics).await;
        let requests = samples.into_iter().filter_map(|(name, count)| {
            let labels = name.strip_prefix("exec_server_requests_total")?.to_owned();
            (count > 0.0).then_some((labels, count as u64))
        });
        Counts(requests.collect())
    }
}

/// Request counts of the server.
#[derive(Debug)]
struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// How often a method succeeded and failed.
    fn of(&self, method: &str) -> (u64, u64) {
        let count = |result: &str| {
            let labels = format!("{{method=\"{method}\",result=\"{result}\"}}");
            self.0.get(&labels).copied().unwrap_or(0)
        };
        (count("ok"), count("error"))
    }
}
