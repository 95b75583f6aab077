//! `process/start`: accepted and rejected params.

use exec_server_testkit::client::start_params;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

#[tokio::test]
async fn the_reply_has_the_pid_if_it_is_asked_for() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let started = client.start("p", &["cat"], json!({"pipeStdin": true, "detailed": true})).await;
    let pid = started.unwrap()["pid"].clone();
    let list = client.call("process/list", json!({})).await.unwrap();
    assert_eq!(list["processes"][0]["pid"], pid);
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm.trim(), "cat");
}

#[tokio::test]
async fn output_exit_and_close_arrive_in_order() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "echo out; echo err >&2; exit 7";
    let result = client.start("p", &["/bin/sh", "-c", script], json!({})).await;
    assert_eq!(result.unwrap(), json!({"processId": "p", "sandboxType": "none"}));
    let output = |seq, stream, chunk| {
        json!({
            "method": "process/output",
            "params": {"processId": "p", "seq": seq, "stream": stream, "chunk": chunk},
        })
    };
    assert_eq!(client.process_event("p").await, output(1, "stdout", "b3V0Cg=="));
    assert_eq!(client.process_event("p").await, output(2, "stderr", "ZXJyCg=="));
    let exited = client.process_event("p").await;
    assert_eq!(exited["method"], "process/exited");
    let params = &exited["params"];
    assert_eq!((&params["processId"], &params["seq"]), (&json!("p"), &json!(3)));
    assert_eq!((&params["exitCode"], &params["sandboxDenied"]), (&json!(7), &json!(false)));
    let closed = json!({"method": "process/closed", "params": {"processId": "p", "seq": 4}});
    assert_eq!(client.process_event("p").await, closed);
}

#[tokio::test]
async fn the_reply_to_a_start_comes_before_its_first_event() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for round in 0..50 {
        let id = format!("p{round}");
        client.start(&id, &["/bin/echo", "quick"], json!({})).await.unwrap();
        assert_eq!(client.pending_notifications(), 0, "an event overtook the reply");
        assert_eq!(client.finish(&id).await.text(), "quick\n");
    }
}

/// Name, argv, more params, expected kind and errno.
type FailingStart<'a> = (&'a str, &'a [&'a str], Value, &'a str, Option<&'a str>);

#[tokio::test]
async fn each_failed_start_has_its_error() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plain"), "not a program").unwrap();
    let plain = folder.path().join("plain").to_str().unwrap().to_owned();
    let run_plain = [plain.as_str()];
    let below_plain = format!("file://{plain}/below");
    let in_missing = json!({"cwd": "file:///no/such/folder"});
    let nul_in_env = json!({"env": {"A": "a\0b"}});
    let missing = Some("ENOENT");
    let cases: Vec<FailingStart> = vec![
        ("missing", &["/no/such/program"], json!({}), "program_not_found", missing),
        ("not in PATH", &["no-such-program"], json!({}), "program_not_found", missing),
        ("missing cwd", &["/bin/true"], in_missing.clone(), "cwd_not_found", missing),
        ("both missing", &["/no/such"], in_missing, "cwd_not_found", missing),
        (
            "cwd is a file",
            &["/bin/true"],
            json!({"cwd": format!("file://{plain}")}),
            "cwd_unusable",
            Some("ENOTDIR"),
        ),
        (
            "cwd below a file",
            &["/bin/true"],
            json!({"cwd": below_plain}),
            "cwd_unusable",
            Some("ENOTDIR"),
        ),
        ("not executable", &run_plain, json!({}), "program_not_executable", Some("EACCES")),
        ("a directory", &["/usr"], json!({}), "program_not_executable", Some("EACCES")),
        ("empty", &[""], json!({}), "missing_program", None),
        ("NUL in the program", &["/bin/tr\0ue"], json!({}), "nul_byte", None),
        ("NUL in an argument", &["/bin/true", "\0"], json!({}), "nul_byte", None),
        ("NUL in arg0", &["/bin/true"], json!({"arg0": "\0"}), "nul_byte", None),
        ("NUL in the environment", &["/bin/true"], nul_in_env, "nul_byte", None),
    ];
    for tty in [false, true] {
        for (case, argv, more, kind, errno) in &cases {
            let mut more = more.clone();
            more["tty"] = json!(tty);
            let error = client.start("p", argv, more).await.expect_err(case);
            let mut data = json!({"kind": kind});
            if let Some(errno) = errno {
                data["errno"] = json!(errno);
            }
            assert_eq!(
                (&error["code"], &error["data"]),
                (&json!(-32603), &data),
                "{case}: {error}"
            );
        }
    }
    // A failed start frees the id.
    assert_eq!(client.sh("p", "echo at last").await.text(), "at last\n");
}

#[tokio::test]
async fn the_error_text_has_the_system_error() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (argv, cwd, text) in [
        ("/no/such/program", "file:///", "No such file or directory (os error 2)"),
        (
            "/bin/true",
            "file:///no/such/folder",
            "`/no/such/folder`: No such file or directory (os error 2)",
        ),
        ("/usr", "file:///", "Permission denied (os error 13)"),
        ("/bin/true", "file:///etc/passwd", "`/etc/passwd`: Not a directory (os error 20)"),
    ] {
        let error = client.start("p", &[argv], json!({"cwd": cwd})).await.unwrap_err();
        assert!(error["message"].as_str().unwrap().ends_with(text), "{error}");
    }
}

#[tokio::test]
async fn params_that_make_no_sense_are_refused() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let error = client.start("p", &[], json!({})).await.unwrap_err();
    assert_eq!(error["code"], -32602);
    assert_eq!(error["message"], "argv must not be empty");
    for more in [
        json!({"pipeStdin": null}),
        json!({"tty": null}),
        json!({"env": {"A": 1}}),
        json!({"env": null}),
        json!({"argv": "true"}),
        json!({"processId": 5}),
        json!({"metadata": {"threadId": "not a uuid"}}),
        json!({"envPolicy": {"inherit": "all"}}),
        json!({"tty": true, "size": {"rows": 70000, "cols": 80}}),
        json!({"timeoutMs": -1}),
    ] {
        let error = client.start("p", &["/bin/true"], more.clone()).await.expect_err("a refusal");
        assert_eq!(error["code"], -32602, "{more}: {error}");
        assert_eq!(error["data"]["kind"], "invalid_params", "{more}: {error}");
    }
    for missing in ["processId", "argv", "cwd", "env", "tty"] {
        let mut params = start_params("p", &["/bin/true"], json!({}));
        params.as_object_mut().unwrap().remove(missing);
        let error = client.call("process/start", params).await.expect_err("a refusal");
        assert_eq!(error["message"], format!("missing field `{missing}`"));
    }
}

#[tokio::test]
async fn unenforceable_requests_are_rejected() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let unknown = json!({
        "permissions": {"type": "managed", "file_system": {"type": "maybe"}, "network": "enabled"},
        "windowsSandboxLevel": "disabled",
    });
    for sandbox in [unknown, json!({}), json!("read-only")] {
        let more = json!({"sandbox": sandbox});
        let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!("invalid_params"))
        );
    }
    let more = json!({"networkProxy": {"proxy": {"enabled": true}}});
    let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32602), &json!("unsupported")));

    let disabled = json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"});
    let more = json!({"sandbox": disabled, "enforceManagedNetwork": true, "managedNetwork": null});
    let result = client.start("p", &["/bin/true"], more).await.unwrap();
    assert_eq!(result["sandboxType"], "none");
    assert_eq!(client.finish("p").await.exit_code, 0);
}

#[tokio::test]
async fn an_id_is_taken_while_its_process_runs_and_while_it_can_be_read() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    assert_taken(&mut client).await;
    client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    client.finish("p").await;
    assert_taken(&mut client).await;
    let error = client.start("p", &[], json!({})).await.unwrap_err();
    assert_eq!(error["message"], "argv must not be empty");
    // Ids are separate for each session.
    assert_eq!(server.client().await.sh("p", "echo mine").await.text(), "mine\n");
}

async fn assert_taken(client: &mut TestClient) {
    for program in ["/bin/true", "/no/such/program"] {
        let error = client.start("p", &[program], json!({})).await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!(ALREADY_EXISTS)));
        assert_eq!(error["data"]["kind"], "process_exists");
    }
}

const ALREADY_EXISTS: &str = "process p already exists";

#[tokio::test]
async fn of_two_starts_with_one_id_exactly_one_wins() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let params = |word: &str| start_params("p", &["/bin/echo", word], json!({}));
    let first = client.send("process/start", params("first")).await;
    let second = client.send("process/start", params("second")).await;
    client.reply(first).await.unwrap();
    assert_eq!(client.reply(second).await.unwrap_err()["message"], ALREADY_EXISTS);
    assert_eq!(client.finish("p").await.text(), "first\n");
}

#[tokio::test]
async fn any_text_is_an_id() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for id in ["", "\0", "\"\\\n", "päth/ü\u{1F600}", &"x".repeat(1000)] {
        let result = client.start(id, &["/bin/echo", "hi"], json!({})).await.unwrap();
        assert_eq!(result["processId"], id);
        assert_eq!(client.finish(id).await.text(), "hi\n");
    }
}

#[tokio::test]
async fn a_bare_name_is_looked_up_in_the_path_of_the_child() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    make_script(&mut client, &format!("{here}/tool"), "#!/bin/sh\necho found").await;

    let path = json!({"env": {"PATH": format!("/no/such:{here}")}});
    assert_eq!(client.run("ours", &["tool"], path).await.text(), "found\n");
    // The server's own PATH finds `sh`; it does not count.
    let path = json!({"env": {"PATH": here}});
    let error = client.start("p", &["sh"], path).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "program_not_found");
    // Without any PATH there is a default, with a terminal too.
    for tty in [false, true] {
        let more = json!({"env": {}, "tty": tty});
        let finished = client.run(&format!("{tty}"), &["sh", "-c", "exit 4"], more).await;
        assert_eq!(finished.exit_code, 4);
    }
    // A non-executable match in PATH is reported only if no other match exists.
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("sub/tool"), "").unwrap();
    let path = json!({"env": {"PATH": format!("{here}/sub:{here}")}});
    assert_eq!(client.run("later", &["tool"], path).await.text(), "found\n");
    let path = json!({"env": {"PATH": format!("{here}/sub:/no/such")}});
    let error = client.start("p", &["tool"], path).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "program_not_executable");
}

#[tokio::test]
async fn a_relative_program_is_relative_to_the_cwd() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    make_script(&mut client, &format!("{here}/sub/tool"), "#!/bin/sh\npwd -P").await;
    let cwd = json!({"cwd": format!("file://{here}")});
    let real = folder.path().canonicalize().unwrap();
    for (id, program) in [("a", "./sub/tool"), ("b", "sub/tool"), ("c", "../sub/tool")] {
        let cwd =
            if id == "c" { json!({"cwd": format!("file://{here}/sub")}) } else { cwd.clone() };
        let finished = client.run(id, &[program], cwd).await;
        assert!(finished.text().starts_with(real.to_str().unwrap()), "{finished:?}");
    }
    let error = client.start("p", &["./tool"], cwd).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "program_not_found");
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    let tool = format!("{here}/tool");
    make_script(&mut client, &tool, "echo $0 $# $1").await;
    let finished = client.run("slash", &[&tool, "a b", "c"], json!({"arg0": "ignored"})).await;
    assert_eq!(finished.text(), format!("{tool} 2 a b\n"));
    let path = json!({"env": {"PATH": here}, "tty": true});
    let finished = client.run("path", &["tool"], path).await;
    assert_eq!(finished.pty_text(), format!("{tool} 0\r\n"));
}

#[tokio::test]
async fn arg0_is_what_the_program_sees_as_its_name() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (id, arg0) in [("named", "another name"), ("empty", ""), ("missing", "/no/such/program")] {
        let argv = ["/bin/cat", "/proc/self/cmdline"];
        let finished = client.run(id, &argv, json!({"arg0": arg0})).await;
        assert_eq!(finished.text(), format!("{arg0}\0/proc/self/cmdline\0"));
    }
}

#[tokio::test]
async fn a_process_leads_a_session_of_its_own_without_a_terminal() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let stat = client.run("p", &["/bin/cat", "/proc/self/stat"], json!({})).await.text();
    let (start, rest) = stat.rsplit_once(')').unwrap();
    let pid = start.split(' ').next().unwrap();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let (group, session, terminal) = (fields[2], fields[3], fields[4]);
    assert_eq!((group, session, terminal), (pid, pid, "0"));
}

#[tokio::test]
async fn a_cwd_is_any_spelling_of_a_file_uri() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (number, cwd) in [
        "file:///usr",
        "file:/usr",
        "file://localhost/usr",
        "file:///usr/",
        "file:///bin/../usr",
        "file:///%75sr",
        "FILE:///usr",
    ]
    .into_iter()
    .enumerate()
    {
        let id = number.to_string();
        let finished = client.run(&id, &["/bin/pwd"], json!({"cwd": cwd, "env": {}})).await;
        assert_eq!(finished.text(), "/usr\n", "{cwd}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("mit Ümlaut %41")).unwrap();
    let cwd = format!("file://{}/mit%20%C3%9Cmlaut%20%2541", folder.path().to_str().unwrap());
    let finished = client.run("odd", &["/bin/pwd"], json!({"cwd": cwd, "env": {}})).await;
    assert!(finished.text().ends_with("/mit Ümlaut %41\n"), "{finished:?}");
}

#[tokio::test]
async fn a_cwd_that_is_no_file_uri_of_this_machine_is_refused() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let relative = "invalid URI: relative URL without a base";
    for (cwd, message) in [
        (
            "/usr",
            "invalid URI: relative URL without a base: `/usr` is a native path; send `file:///usr`, or start the server \
             with --accept-native-paths",
        ),
        ("usr", relative),
        ("", relative),
        ("http://host/usr", "unsupported path URI scheme `http`"),
        ("file:///usr?a=b", "query parameters are not allowed in path URIs"),
        (
            "file:///C:/x",
            "cwd URI `file:///C:/x` is not valid on this exec-server host: 'file:///C:/x' is invalid on 'linux'",
        ),
        (
            "file://host/usr",
            "cwd URI `file://host/usr` is not valid on this exec-server host: 'file://host/usr' is invalid on 'linux'",
        ),
    ] {
        let error = client.start("p", &["/bin/pwd"], json!({"cwd": cwd})).await.expect_err(cwd);
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(message)));
    }
    for cwd in ["file:///usr%00", "file:///usr#part"] {
        let error = client.start("p", &["/bin/pwd"], json!({"cwd": cwd})).await.expect_err(cwd);
        assert_eq!(error["code"], -32602);
    }
}

#[tokio::test]
async fn native_paths_are_accepted_with_the_option() {
    let server = TestExecutor::start_with(&["--accept-native-paths"]).await;
    let mut client = server.client().await;
    for (id, cwd) in [("a", "/usr"), ("b", "/bin/../usr/"), ("c", "/usr/."), ("d", "file:///usr")] {
        let finished = client.run(id, &["/bin/pwd"], json!({"cwd": cwd, "env": {}})).await;
        assert_eq!(finished.text(), "/usr\n", "{cwd}");
    }
    let error = client.start("p", &["/bin/pwd"], json!({"cwd": "usr"})).await.unwrap_err();
    assert_eq!(error["message"], "invalid URI: relative URL without a base");
}

#[tokio::test]
async fn the_list_has_running_and_exited_processes() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let empty = client.call("process/list", json!({})).await.unwrap();
    assert_eq!(empty, json!({"processes": []}));
    client.start("b", &["/bin/cat"], json!({"tty": true, "cwd": "file:///usr"})).await.unwrap();
    client.sh("a", "echo $$; exit 3").await;
    let list = client.call("process/list", Value::Null).await.unwrap();
    let [ended, running] = list["processes"].as_array().unwrap().as_slice() else {
        panic!("not two processes: {list}");
    };
    assert_eq!((&ended["processId"], &running["processId"]), (&json!("a"), &json!("b")));
    assert_eq!(ended["argv"], json!(["/bin/sh", "-c", "echo $$; exit 3"]));
    assert_eq!((&ended["exited"], &ended["closed"]), (&json!(true), &json!(true)));
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(3), &json!("exited")));
    assert_eq!((&ended["nextSeq"], &ended["tty"]), (&json!(4), &json!(false)));
    assert_eq!((&running["tty"], &running["cwd"]), (&json!(true), &json!("file:///usr")));
    assert_eq!((&running["exited"], &running["exitCode"]), (&json!(false), &Value::Null));
    let pid = running["pid"].as_u64().unwrap();
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(command, "/bin/cat\0");
    assert!(running["startedAtMs"].as_u64().unwrap() > 1_600_000_000_000);
    // Processes of other sessions do not matter.
    let other = server.client().await.call("process/list", json!({})).await.unwrap();
    assert_eq!(other, json!({"processes": []}));
}

/// A child of the server writes the program: a test that has it open for writing could not execute it.
async fn make_script(client: &mut TestClient, path: &str, text: &str) {
    let argv =
        ["/bin/sh", "-c", "printf '%s\\n' \"$2\" >\"$1\" && chmod +x \"$1\"", "sh", path, text];
    let made = client.run(&format!("make {path}"), &argv, json!({})).await;
    assert_eq!(made.exit_code, 0, "{made:?}");
}
