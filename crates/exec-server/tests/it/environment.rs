//! Environment info, and the environment variables of children.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

#[tokio::test]
async fn environment_info_describes_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let server = TestExecutor::builder()
        .env("HOME", "/home/some one")
        .env("TMPDIR", "relative")
        .env("SHELL", "/bin/sh")
        .current_dir(&place)
        .start()
        .await;
    let mut client = TestClient::connect(server.url()).await;
    let embedded = client.initialize().await["environmentInfo"].take();
    let info = client.call("environment/info", json!({})).await.unwrap();
    assert_eq!(info, embedded);
    let place = place.to_str().unwrap();
    assert_eq!(info["shell"], json!({"name": "sh", "path": "/bin/sh"}));
    assert_eq!((&info["platformOs"], &info["prependPathDirs"]), (&json!("linux"), &json!([])));
    assert_eq!(info["cwd"], format!("file://{place}"));
    assert_eq!(info["userHomeDir"], "file:///home/some%20one");
    assert_eq!(info["temporaryDirectories"], json!([format!("file://{place}/relative")]));
    assert_eq!(info["tempDir"], format!("file://{place}/relative"));
    let provider = info["providerId"].as_str().unwrap();
    assert!(provider.starts_with("sha256:") && provider.len() == 71, "{provider}");
    assert!(info["executorVersion"].is_string());
    let status = client.call("environment/status", Value::Null).await.unwrap();
    assert_eq!(status, json!({"status": "ready"}));
}

#[tokio::test]
async fn every_announced_capability_is_there_and_no_other() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let info = client.call("environment/info", json!({})).await.unwrap();
    let announced: Vec<&String> = info["capabilities"].as_object().unwrap().keys().collect();
    let expected = [
        "binaryMessages",
        "capabilityDiscoveryV2",
        "envExcludeSecrets",
        "environmentConfigRead",
        "environmentHost",
        "fileWriteStreaming",
        "fsAppend",
        "fsAtomicWrite",
        "fsBatch",
        "fsConditionalWrite",
        "fsDetailedMetadata",
        "fsDirectoryPaging",
        "fsEdit",
        "fsOwnerNames",
        "fsRename",
        "fsSearch",
        "fsSetPermissions",
        "fsSymlink",
        "fsTruncate",
        "fsUser",
        "fsWatch",
        "fsWatchMissing",
        "fsWriteAttributes",
        "httpBodyLimit",
        "httpCancel",
        "httpErrorKinds",
        "httpHeaderEnvVars",
        "httpRequestBody",
        "linuxApprovedRootWritePreservesRestrictions",
        "linuxRootWritePreservesDevices",
        "processCloseStdin",
        "processExitDetails",
        "processLimits",
        "processList",
        "processOutputRetention",
        "processOutputSpool",
        "processOutputTimes",
        "processPid",
        "processReadUntil",
        "processResize",
        "processSandboxReport",
        "processSignals",
        "processStartRetry",
        "processTerminateGrace",
        "processTimeouts",
        "processUniqueId",
        "processUser",
        "processWaitWhenDetached",
        "reportIgnored",
        "sandboxedFileStreaming",
        "sessionDirectory",
        "sessionLinger",
        "sessionMoved",
        "sessionTakeOver",
        "sessionTakeOverAsked",
        "shellSnapshotV2",
    ];
    let mut expected = expected.to_vec();
    if !rustix::process::geteuid().is_root() {
        expected.retain(|name| !["fsUser", "processUser"].contains(name));
    }
    assert_eq!(announced, expected);
    // A capability that is not announced does not exist.
    for method in ["fs/chown", "network/policyRequest"] {
        let error = client.call(method, json!({})).await.unwrap_err();
        assert_eq!(error["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn without_a_policy_a_child_gets_exactly_the_requested_variables() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let env = client.run("empty", &["/usr/bin/env"], json!({"env": {}})).await;
    assert_eq!(env.text(), "");
    let wanted = json!({"A": "1", "EMPTY": "", "ODD=NAME": "x", "MULTI": "a\nb", "Ü": "ö"});
    let env = client.run("some", &["/usr/bin/env", "-0"], json!({"env": wanted})).await;
    let mut entries: Vec<String> = env.text().split_terminator('\0').map(str::to_owned).collect();
    entries.sort();
    assert_eq!(entries, ["A=1", "EMPTY=", "MULTI=a\nb", "ODD=NAME=x", "Ü=ö"]);
    let error = json!({"envPolicy": {"inherit": "All"}});
    assert_eq!(client.start("p", &["/bin/true"], error).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_policy_is_applied_to_the_environment_of_the_server() {
    let server = TestExecutor::builder()
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("home", "/lower")
        .env("LANG", "C")
        .env("MONKEY", "m")
        .env("My_Token", "t")
        .env("PLAIN", "p")
        .env("PLAINER", "q")
        .start()
        .await;
    let mut client = server.client().await;
    let base = json!({
        "inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {},
        "includeOnly": [],
    });
    let core = "LANG=C PATH=/usr/bin:/bin";
    for (number, (changes, env, expected)) in [
        (json!({}), json!({}), format!("{core} PLAIN=p PLAINER=q home=/lower")),
        (
            json!({"ignoreDefaultExcludes": true}),
            json!({}),
            "LANG=C MONKEY=m My_Token=t PATH=/usr/bin:/bin PLAIN=p PLAINER=q home=/lower".into(),
        ),
        (json!({"inherit": "core"}), json!({}), format!("{core} home=/lower")),
        (json!({"inherit": "none"}), json!({"A": "1"}), "A=1".into()),
        (json!({"exclude": ["plain?*", "LANG"]}), json!({}), {
            "PATH=/usr/bin:/bin PLAIN=p home=/lower".into()
        }),
        (
            json!({"inherit": "none", "set": {"B": "2", "KEY": "k"}, "exclude": ["B"]}),
            json!({"B": "env wins"}),
            "B=env wins KEY=k".into(),
        ),
        (
            json!({"set": {"SET": "s"}, "includeOnly": ["P*", "*ang"]}),
            json!({"A": "kept"}),
            "A=kept LANG=C PATH=/usr/bin:/bin PLAIN=p PLAINER=q".into(),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut policy = base.clone();
        policy.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let more = json!({"env": env, "envPolicy": policy});
        let shown = variables(&mut client, &number.to_string(), more).await;
        assert_eq!(shown, expected, "{policy}");
    }
}

#[tokio::test]
async fn variables_of_harness_and_server_never_reach_a_child() {
    let secrets = [
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
    let mut builder = TestExecutor::builder().env_clear().env("OPENAI_API_KEY", "passes");
    builder = builder.env("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "false");
    for name in secrets {
        builder = builder.env(name, "server");
    }
    let server = builder.start().await;
    let mut client = server.client().await;
    let mut env: BTreeMap<String, &str> =
        secrets.iter().map(|name| (name.to_lowercase(), "env")).collect();
    env.extend(secrets.iter().map(|name| ((*name).to_owned(), "env")));
    env.insert("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE".into(), "true");
    env.insert("CODEX_TOOL_CALL_ID".into(), "claim");
    env.insert("CODEX_THREAD_ID".into(), "claim");
    let policy = json!({
        "inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "includeOnly": [],
        "set": {"NODE_REPL_AUTH_TOKEN": "set"},
    });
    let more = |metadata: Value| json!({"env": env, "envPolicy": policy, "metadata": metadata});
    assert_eq!(
        variables(&mut client, "without", more(Value::Null)).await,
        "CODEX_THREAD_ID=claim OPENAI_API_KEY=passes"
    );
    assert_eq!(variables(&mut client, "empty", more(json!({}))).await, "OPENAI_API_KEY=passes");
    let thread = "01a1e0e5-54d6-7612-bf4d-1871bd74e7ea";
    let metadata = json!({"threadId": thread, "toolCallId": "c1"});
    assert_eq!(
        variables(&mut client, "both", more(metadata)).await,
        format!("CODEX_THREAD_ID={thread} CODEX_TOOL_CALL_ID=c1 OPENAI_API_KEY=passes")
    );
}

#[tokio::test]
async fn a_variable_that_is_no_text_is_passed_on() {
    let server = TestExecutor::builder()
        .env_clear()
        .env(OsStr::from_bytes(b"ODD_\xfe"), OsStr::from_bytes(b"v\xff"))
        .env("HOME", OsStr::from_bytes(b"/h\xff"))
        .env("TMPDIR", OsStr::from_bytes(b"/t\xff"))
        .start()
        .await;
    let mut client = server.client().await;
    let info = client.call("environment/info", json!({})).await.unwrap();
    assert_eq!(
        (&info["userHomeDir"], &info["tempDir"]),
        (&json!("file:///h%FF"), &json!("file:///t%FF"))
    );
    for (inherit, expected) in [
        ("all", &b"HOME=/h\xff\0ODD_\xfe=v\xff\0TMPDIR=/t\xff\0"[..]),
        ("core", b"HOME=/h\xff\0TMPDIR=/t\xff\0"),
        ("none", b""),
    ] {
        let policy = json!({
            "inherit": inherit, "ignoreDefaultExcludes": false, "exclude": [], "set": {},
            "includeOnly": [],
        });
        let more = json!({"env": {}, "envPolicy": policy});
        let finished = client.run(inherit, &["/usr/bin/env", "-0"], more).await;
        assert_eq!(finished.stdout, expected, "{inherit}");
    }
}

/// The environment that a child sees, sorted, on one line.
async fn variables(client: &mut TestClient, id: &str, more: Value) -> String {
    let text = client.run(id, &["/usr/bin/env", "-0"], more).await.text();
    let mut entries: Vec<&str> = text.split_terminator('\0').collect();
    entries.sort_unstable();
    entries.join(" ")
}

#[tokio::test]
async fn a_child_has_its_standard_streams_and_no_other_file() {
    let server = TestExecutor::builder().after("exec 7</dev/null 8>/dev/null 9<&0").start().await;
    let mut client = server.client().await;
    client.start("other", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    for (id, more) in
        [("pipes", json!({})), ("stdin", json!({"pipeStdin": true})), ("tty", json!({"tty": true}))]
    {
        let finished = client.run(id, &["/bin/ls", "/proc/self/fd"], more).await;
        let text = finished.text() + &finished.pty_text();
        // The last one is the directory that `ls` reads.
        let numbers: Vec<&str> = text.split_ascii_whitespace().collect();
        assert_eq!(numbers, ["0", "1", "2", "3"], "{id}");
    }
}

#[tokio::test]
async fn a_child_ignores_and_blocks_no_signal_whatever_the_server_does() {
    let server = TestExecutor::builder().after("trap '' USR1 USR2 PIPE CHLD ALRM").start().await;
    let mut client = server.client().await;
    for tty in [false, true] {
        let argv = ["/bin/cat", "/proc/self/status"];
        let finished = client.run(&format!("{tty}"), &argv, json!({"tty": tty})).await;
        let text = finished.text() + &finished.pty_text();
        for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
            let mask = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
            // Signals 32 and 33 are reserved by the C library.
            assert_eq!(mask & !(3 << 31), 0, "{name} {mask:x}");
        }
    }
}

#[tokio::test]
async fn a_server_started_with_sigchld_ignored_still_reaps_children() {
    // A shell's `trap` does not do it: some shells keep this signal for themselves.
    let ignoring = r#"exec env --ignore-signal=CHLD "$0" "$@""#;
    let mut server = TestExecutor::builder().after(ignoring).start().await;
    let mut client = server.client().await;
    assert_eq!(client.sh("p", "exit 7").await.exit_code, 7);
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_child_has_the_limits_and_the_mask_that_the_server_was_started_with() {
    let server = TestExecutor::builder().after("ulimit -Sn 300; umask 027").start().await;
    let mut client = server.client().await;
    let script = "ulimit -Sn; umask; ulimit -Hn";
    let text = client.sh("p", script).await.text();
    let limits: Vec<&str> = text.split_ascii_whitespace().collect();
    assert_eq!(limits[..2], ["300", "0027"]);
    let guardian = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = guardian.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(limits[2], line.split_ascii_whitespace().nth(4).unwrap());
}

#[tokio::test]
async fn selected_settings_can_be_read() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), "model = \"m\"\n[tools]\na = 1\nb = 2\n")
        .unwrap();
    let server = TestExecutor::builder().env("CODEX_HOME", home.path()).start().await;
    let mut client = server.client().await;
    let params =
        |paths: Value| json!({"cwd": "file:///", "configPaths": paths, "requirementsPaths": []});
    let result =
        client.call("environmentConfig/read", params(json!([["tools", "a"]]))).await.unwrap();
    let uri = format!("file://{}", home.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(result["codexHomeDir"], uri);
    let layers = result["config"]["layers"].as_array().unwrap();
    let user = layers.iter().find(|layer| layer["baseDir"] == uri).expect("the user's layer");
    assert_eq!(user["toml"].as_str().unwrap().trim(), "[tools]\na = 1");
    for (paths, message) in [
        (json!([]), "at least one config or requirements path is required"),
        (json!([[]]), "TOML paths must contain at least one key segment"),
    ] {
        let error = client.call("environmentConfig/read", params(paths)).await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(message)));
    }
    let bad = json!({"cwd": "/", "configPaths": [["a"]], "requirementsPaths": []});
    let error = client.call("environmentConfig/read", bad).await.unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("send `file:///`, or start the server with --accept"), "{message}");
}

#[tokio::test]
async fn plugins_and_skills_are_found_below_given_roots() {
    let folder = tempfile::tempdir().unwrap();
    let skill = folder.path().join("root/skills/a");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(skill.join("SKILL.md"), "do it").unwrap();
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let uri = |name: &str| format!("file://{}/{name}", folder.path().to_str().unwrap());
    let roots = json!([{"id": "gone", "path": uri("gone")}, {"id": "root", "path": uri("root")}]);
    let result = client.call("capabilityRoots/discoverV1", json!({"roots": roots})).await.unwrap();
    let [gone, root] = result["roots"].as_array().unwrap().as_slice() else {
        panic!("not two roots: {result}");
    };
    let error = gone["error"].as_str().unwrap();
    assert!(
        error.starts_with(&format!("failed to inspect capability root {}:", uri("gone"))),
        "{error}"
    );
    assert_eq!((&root["id"], &root["error"]), (&json!("root"), &Value::Null));
    let instructions = json!({"path": uri("root/skills/a/SKILL.md"), "contents": "do it"});
    assert_eq!(root["skills"], json!([{"instructions": instructions, "metadata": null}]));
    let many: Vec<Value> =
        (0..129).map(|number| json!({"id": number.to_string(), "path": uri("root")})).collect();
    let error =
        client.call("capabilityRoots/discoverV1", json!({"roots": many})).await.unwrap_err();
    assert_eq!(error["code"], -32600);
    assert_eq!(error["message"], "capability root discovery accepts at most 128 roots");
}

#[tokio::test]
async fn installed_capabilities_are_found() {
    let home = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder()
        .env("HOME", home.path())
        .env("CODEX_HOME", home.path())
        .start()
        .await;
    let mut client = server.client().await;
    let result = client.call("capabilities/discoverV2", json!({"cwd": "file:///"})).await.unwrap();
    for list in ["plugins", "skills", "warnings"] {
        assert!(result[list].is_array(), "{result}");
    }
}
