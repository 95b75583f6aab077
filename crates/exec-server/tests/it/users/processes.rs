//! `user` in `process/start`.

use exec_server_testkit::executor::Signal;
use exec_server_testkit::fs_fixture::uri;
use exec_server_testkit::process_count::state;
use exec_server_testkit::{TestClient, TestExecutor, eventually};
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};

use super::fixture::{ANN, Accounts};
use crate::files::host::{NOBODY, is_root, server_as_nobody};

/// Params of a process of `ann` in a directory of every user.
fn as_ann(more: Value) -> Value {
    let mut params = json!({"user": "ann", "cwd": "file:///", "env": {"PATH": "/usr/bin:/bin"}});
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    params
}

fn inherit(set: &str) -> Value {
    json!({"inherit": set, "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []})
}

async fn run_sh(client: &mut TestClient, id: &str, script: &str, more: Value) -> String {
    let finished = client.run(id, &["/bin/sh", "-c", script], more).await;
    assert_eq!(finished.error_text(), "", "{script}");
    finished.text()
}

#[tokio::test]
async fn a_process_has_the_user_and_the_groups_of_its_account_and_no_capability() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let info = client.call("environment/info", json!({})).await.unwrap();
    assert_eq!(info["capabilities"]["processUser"], true);
    let script =
        "id -u; id -g; id -G; grep -E 'Uid|Gid|CapPrm|CapEff|CapAmb|NoNewPrivs' /proc/self/status";
    let expected = format!(
        "{ANN}\n{ANN}\n{ANN} 54400 54500\nUid:\t{ANN}\t{ANN}\t{ANN}\t{ANN}\nGid:\t{ANN}\t{ANN}\t{ANN}\t{ANN}\n\
         CapPrm:\t{zero}\nCapEff:\t{zero}\nCapAmb:\t{zero}\nNoNewPrivs:\t0\n",
        zero = "0000000000000000"
    );
    for (number, user) in [json!("ann"), json!(ANN), json!(ANN.to_string())].into_iter().enumerate()
    {
        let id = format!("p{number}");
        let text = run_sh(&mut client, &id, script, as_ann(json!({"user": user}))).await;
        assert_eq!(text, expected, "{user}");
    }
    // Other processes keep the server's user, and root can be named as well.
    assert_eq!(run_sh(&mut client, "own", "id -u", json!({"cwd": "file:///"})).await, "0\n");
    let root = as_ann(json!({"user": "root"}));
    assert_eq!(run_sh(&mut client, "root", "id -u; id -G", root).await, "0\n0\n");
}

#[tokio::test]
async fn what_is_inherited_describes_the_user_unless_the_request_says_otherwise() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().env("XDG_RUNTIME_DIR", "/run/user/0").env("EXTRA", "e");
    let server = server.start().await;
    let mut client = server.client().await;
    let script = "echo $HOME $USER $LOGNAME $SHELL $EXTRA $XDG_RUNTIME_DIR";
    let home = accounts.home();
    let own = format!("{} ann ann /bin/sh", home.display());
    for (id, policy, env, expected) in [
        ("all", inherit("all"), json!({}), format!("{own} e\n")),
        ("core", inherit("core"), json!({}), format!("{own}\n")),
        ("none", inherit("none"), json!({}), "\n".to_owned()),
        ("exact", Value::Null, json!({"USER": "me"}), "me\n".to_owned()),
        ("set", inherit("core"), json!({"HOME": "/h"}), "/h ann ann /bin/sh\n".to_owned()),
    ] {
        let more = as_ann(json!({"envPolicy": policy, "env": env}));
        let text = run_sh(&mut client, id, &script.replace("echo", "/bin/echo"), more).await;
        assert_eq!(text, expected, "{id}");
    }
}

#[tokio::test]
async fn the_standard_streams_belong_to_the_user_and_no_other_descriptor_is_there() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let script = "echo out >/dev/stdout; echo err >/dev/stderr; exec ls -1 /proc/self/fd";
    let more = as_ann(json!({"pipeStdin": true}));
    let finished = client.run("pipes", &["/bin/sh", "-c", script], more).await;
    // ls itself opens the directory.
    assert_eq!(
        (finished.text(), finished.error_text()),
        ("out\n0\n1\n2\n3\n".into(), "err\n".into())
    );
    let script = "stat -c '%u %a' \"$(tty)\"; echo seen >/dev/tty; exec ls -1 /proc/self/fd";
    let finished =
        client.run("tty", &["/bin/sh", "-c", script], as_ann(json!({"tty": true}))).await;
    let text = finished.pty_text().replace("\r\n", "\n");
    let (owner, rest) = text.split_once('\n').unwrap();
    assert!(owner.starts_with(&format!("{ANN} 6")), "{text}");
    assert_eq!(rest, "seen\n0\n1\n2\n3\n");
}

#[tokio::test]
async fn files_are_opened_with_the_rights_of_the_user() {
    let Some(accounts) = Accounts::new() else { return };
    let closed = accounts.make_dir("closed", 0o700);
    std::fs::write(closed.join("secret"), "s").unwrap();
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let script = format!(
        "cat {}/secret || echo denied; touch {home}/new; stat -c '%u %g' {home}/new",
        closed.display(),
        home = accounts.home().display()
    );
    let finished = client.run("p", &["/bin/sh", "-c", &script], as_ann(json!({}))).await;
    assert_eq!(finished.text(), format!("denied\n{ANN} {ANN}\n"), "{}", finished.error_text());
    let error = client.start("q", &["/bin/true"], as_ann(json!({"cwd": uri(&closed)}))).await;
    let error = error.unwrap_err();
    assert_eq!(
        (&error["data"]["kind"], &error["data"]["errno"]),
        (&json!("cwd_unusable"), &json!("EACCES"))
    );
    assert!(error["message"].as_str().unwrap().contains(&closed.display().to_string()), "{error}");
    let program = closed.join("secret").display().to_string();
    let error = client.start("q", &[&program], as_ann(json!({}))).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "program_not_executable", "{error}");
    let error = client.start("q", &["/no/such"], as_ann(json!({}))).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "program_not_found", "{error}");
    // The failed starts left the id free and no process behind.
    assert_eq!(
        run_sh(&mut client, "q", "id -un", as_ann(json!({"cwd": uri(&accounts.home())}))).await,
        "ann\n"
    );
}

#[tokio::test]
async fn limits_apply_to_a_process_of_another_user() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let more = as_ann(json!({"limits": {"openFiles": 50, "fileSizeBytes": 1000}}));
    let script =
        format!("ulimit -n; cd {}; head -c 5000 /dev/zero >f; wc -c <f", accounts.home().display());
    let finished = client.run("p", &["/bin/sh", "-c", &script], more).await;
    assert_eq!(finished.text(), "50\n1000\n", "{}", finished.error_text());
}

#[tokio::test]
async fn an_unknown_user_is_invalid() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for user in ["no-such-user", "", "4294967295", "-1", "root:x", "a\nb"] {
        let error = client.start("p", &["/bin/true"], json!({"user": user})).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!("unknown_user")),
            "{error}"
        );
    }
    for user in [json!(-1), json!(1.5), json!(u64::MAX), json!(true), json!({"name": "root"})] {
        let error = client.start("p", &["/bin/true"], json!({"user": user})).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!("invalid_params")),
            "{error}"
        );
    }
    assert_eq!(client.sh("p", "echo free").await.text(), "free\n");
}

#[tokio::test]
async fn a_server_without_the_right_refuses_other_users_and_accepts_its_own() {
    let Some(server) = server_as_nobody().await else { return };
    let mut client = server.client().await;
    let info = client.call("environment/info", json!({})).await.unwrap();
    assert_ne!(info["capabilities"]["processUser"], true);
    let other = json!({"user": "root", "cwd": "file:///"});
    let error = client.start("p", &["/bin/true"], other).await.unwrap_err();
    assert_eq!(error["code"], -32600);
    assert_eq!(error["data"]["kind"], "user_unavailable", "{error}");
    if is_root() {
        let own = json!({"user": NOBODY, "cwd": "file:///"});
        assert_eq!(client.run("p", &["/usr/bin/id", "-u"], own).await.text(), "65534\n");
    }
}

/// A server that is not root and has the capabilities can change users; nothing of them is passed on.
#[tokio::test]
async fn ambient_capabilities_of_the_server_are_not_passed_to_other_users() {
    let Some(accounts) = Accounts::new() else { return };
    let state = accounts.path("state");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::lchown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
    let sets = "+setuid,+setgid,+kill,+chown";
    let through = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps {sets} --ambient-caps {sets} --"
    );
    let program = exec_server_testkit::executor::binary();
    if !program.ancestors().all(|path| crate::files::host::mode(path) & 0o005 == 0o005) {
        return;
    }
    let server = accounts.server_through(&through).env("XDG_STATE_HOME", &state).start().await;
    let mut client = server.client().await;
    let script = "id -u; id -G; grep -E 'CapInh|CapPrm|CapEff|CapAmb' /proc/self/status | cut -f2";
    let text = run_sh(&mut client, "p", script, as_ann(json!({}))).await;
    let zero = "0000000000000000\n".repeat(4);
    assert_eq!(text, format!("{ANN}\n{ANN} 54400 54500\n{zero}"));
    client.start("q", &["/bin/sleep", "1000"], as_ann(json!({"detailed": true}))).await.unwrap();
    assert!(client.terminate("q", None).await);
    assert_eq!(client.finish("q").await.exit_code, 137);
}

/// Starts a process of `ann` with a daemon that has left its session, and returns the pid of the daemon.
async fn start_daemon(client: &mut TestClient, accounts: &Accounts) -> i32 {
    let pid_file = accounts.home().join("pid");
    let script = format!(
        "(setsid sh -c 'trap \"\" TERM HUP USR1; echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000' </dev/null \
         >/dev/null 2>&1 &); exec sleep 1000",
        pid_file.display()
    );
    client.start("p", &["/bin/sh", "-c", &script], as_ann(json!({}))).await.unwrap();
    eventually("the daemon runs", || pid_file.exists()).await;
    std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap()
}

fn is_gone(pid: i32) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
}

#[tokio::test]
async fn the_whole_tree_of_another_user_is_ended() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let daemon = start_daemon(&mut client, &accounts).await;
    client.signal("p", "usr1").await;
    assert_eq!(client.finish("p").await.exit_code, 128 + 10);
    assert!(!is_gone(daemon), "a daemon survives its starter");
    client.terminate("p", Some(1)).await;
    eventually("the daemon is ended", || is_gone(daemon)).await;
}

#[tokio::test]
async fn the_guardian_and_the_next_server_end_processes_of_other_users() {
    let Some(accounts) = Accounts::new() else { return };
    let state_dir = accounts.path("state");
    let start = || {
        let mut builder = accounts.server();
        builder.command().arg("--state-dir").arg(&state_dir);
        builder
    };
    let server = start().start().await;
    let daemon = start_daemon(&mut server.client().await, &accounts).await;
    kill_process(Pid::from_raw(server.serving_pid().cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the guardian ends the daemon", || is_gone(daemon)).await;
    std::fs::remove_file(accounts.home().join("pid")).unwrap();

    let mut gone = start().start().await;
    let daemon = start_daemon(&mut gone.client().await, &accounts).await;
    gone.cut_power().await;
    assert!(!is_gone(daemon), "the daemon outlives both");
    let _next = start().start().await;
    eventually("the next server ends the daemon", || is_gone(daemon)).await;
}

#[tokio::test]
async fn lists_tell_the_user_of_a_process() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    client.start("a", &["/bin/sleep", "1000"], as_ann(json!({"user": ANN}))).await.unwrap();
    client.start("b", &["/bin/sleep", "1000"], json!({"cwd": "file:///"})).await.unwrap();
    let list = client.call("process/list", json!({})).await.unwrap();
    let users: Vec<_> =
        list["processes"].as_array().unwrap().iter().map(|it| &it["user"]).collect();
    assert_eq!(users, [&json!("ann"), &json!("root")]);
}
