//! Writes outside of the workspace, by every name and path to it.

use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Stdio;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::client::start_params;
use exec_server_testkit::executor::{binary, copy_program};
use exec_server_testkit::isolation::isolate;

use super::attempt::command;
use super::fixture::{as_each_user, snapshot};
use super::*;
use crate::files::host::as_nobody;

/// Each script changes something in `$OUT` unless it is stopped.
pub const ATTACKS: [(&str, &str); 27] = [
    ("writing", "echo evil > $OUT/file"),
    ("appending", "echo evil >> $OUT/file"),
    ("creating", "echo evil > $OUT/new"),
    ("truncating", "truncate -s 0 $OUT/file"),
    ("unlinking", "rm -f $OUT/file"),
    ("making a directory", "mkdir $OUT/new"),
    ("removing a directory", "rmdir $OUT/dir"),
    ("renaming", "mv $OUT/file $OUT/moved"),
    ("renaming into", "echo evil > mine; mv -f mine $OUT/file"),
    ("renaming out of", "mv $OUT/file mine"),
    ("linking into", "echo evil > mine; ln mine $OUT/new"),
    ("linking out of", "ln $OUT/file mine; echo evil > mine"),
    ("making a link", "ln -s /etc $OUT/new"),
    ("making a pipe", "mkfifo $OUT/new"),
    ("changing a mode", "chmod 777 $OUT/file"),
    ("changing the mode of a directory", "chmod 777 $OUT/dir"),
    ("changing times", "touch -d 2001-01-01 $OUT/file"),
    ("the way up", "echo evil > ../outside/file"),
    ("a link to a directory", "ln -s $OUT link; echo evil > link/file"),
    ("a link to a file", "ln -s ../outside/file link; echo evil > link"),
    ("the root of a process", "echo evil > /proc/self/root$OUT/file"),
    ("the directory of a process", "echo evil > /proc/self/cwd/../outside/file"),
    ("a descriptor", "exec 5<$OUT/file; echo evil > /proc/self/fd/5"),
    ("a directory's descriptor", "exec 5<$OUT; echo evil > /proc/self/fd/5/file"),
    ("a thread", "echo evil > /proc/thread-self/root$OUT/file"),
    (
        "another loader",
        "$(ls /lib*/ld-linux-*.so.* | head -n 1) /bin/sh -c 'echo evil > $OUT/file'",
    ),
    ("the working directory", "cd $OUT && echo evil > file"),
];

/// The same, by unusual system calls.
pub const CALLS: [&str; 9] = [
    "exchange",
    "exchange_outside",
    "set_attribute",
    "fchmod",
    "futimens",
    "link_opened",
    "reopen",
    "memfd_exec",
    "handle",
];

#[tokio::test]
async fn nothing_outside_of_the_workspace_can_be_changed() {
    as_each_user(async |fixture| {
        for network in ["restricted", "enabled"] {
            let policy = fixture.workspace(network);
            for (name, script) in ATTACKS {
                fixture.cannot_change_outside(&policy, name, script).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_at_all_can_be_changed_where_everything_is_read_only() {
    as_each_user(async |fixture| {
        let policy = with_entries(&[&fixture.work()], "restricted", &[special("root", "read")]);
        for (name, script) in ATTACKS {
            fixture.cannot_change_outside(&policy, name, script).await;
        }
        let before = snapshot(&fixture.work());
        let finished = fixture.run(&policy, "echo evil > here; mkdir there; chmod 777 .").await;
        assert_eq!(snapshot(&fixture.work()), before, "{finished:?}");
        assert_eq!(finished.exited["sandboxDenied"], true);
    })
    .await;
}

#[tokio::test]
async fn nothing_outside_can_be_changed_by_rare_calls() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        for call in CALLS.into_iter().filter(|call| *call != "handle") {
            fixture.cannot_change_outside(&policy, call, &command(call)).await;
        }
        fixture.reset();
        let before = snapshot(&fixture.outside());
        let finished = fixture.run(&policy, &command(&CALLS.join(" "))).await;
        assert_eq!(snapshot(&fixture.outside()), before, "{finished:?}");
        assert!(!finished.text().contains(" ok"), "{finished:?}");
    })
    .await;
}

#[tokio::test]
async fn the_root_of_the_host_is_gone_before_anything_runs() {
    as_each_user(async |fixture| {
        let sandbox = fixture.workspace("restricted");
        for _ in 0..20 {
            // Nothing else may be mounted where the root is.
            let script = "while read -r _ _ _ _ at _; do [ \"$at\" = / ] && echo root; done \
                          < /proc/self/mountinfo";
            assert_eq!(fixture.run(&sandbox, script).await.text(), "root\n");
        }
    })
    .await;
}

#[tokio::test]
async fn links_that_were_there_before_lead_nowhere() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        symlink(fixture.outside(), fixture.work().join("found")).unwrap();
        fixture.give(&fixture.work().join("found"));
        let before = snapshot(&fixture.outside());
        let script = "echo evil > found/file; rm -rf found/dir; mkdir found/new; echo $?";
        let finished = fixture.run(&policy, script).await;
        assert_eq!(snapshot(&fixture.outside()), before, "{finished:?}");
    })
    .await;
}

#[tokio::test]
async fn a_writable_root_that_became_a_link_gives_nothing() {
    as_each_user(async |fixture| {
        let (work, sub) = (fixture.work(), fixture.work().join("sub"));
        fixture.make_dir(&sub);
        let both = workspace_write(&[&work, &sub], "restricted");
        assert_eq!(fixture.run(&both, "echo in > sub/f").await.exit_code, 0);
        // A process that holds only the outer root is free to replace the inner one.
        let outer = fixture.workspace("restricted");
        let swapped = fixture.run(&outer, "rm -rf sub; ln -s $OUT sub").await;
        assert_eq!(swapped.exit_code, 0, "{swapped:?}");
        let before = snapshot(&fixture.outside());
        for roots in [&[&*work, &*sub][..], &[&*sub]] {
            let (id, policy) = (fixture.next_id(), workspace_write(roots, "restricted"));
            let script = "echo evil > $OUT/file; echo evil > $WORK/sub/file";
            let argv = ["/bin/sh", "-c", script];
            let params = fixture.params(&policy);
            if fixture.client.start(&id, &argv, params).await.is_ok() {
                fixture.client.finish(&id).await;
            }
            assert_eq!(snapshot(&fixture.outside()), before);
        }
    })
    .await;
}

#[tokio::test]
async fn descriptors_that_a_process_was_given_lead_to_no_file_of_the_host() {
    as_each_user(async |fixture| {
        let null = std::path::Path::new("/dev/null");
        let before = null.metadata().unwrap();
        let policy = fixture.workspace("restricted");
        let finished = fixture.run(&policy, &command("stdin_times stdin_mode")).await;
        let after = null.metadata().unwrap();
        if before.mtime() != after.mtime() {
            std::fs::File::open(null).unwrap().set_modified(before.modified().unwrap()).unwrap();
        }
        assert_eq!(before.mtime(), after.mtime(), "the host's /dev/null changed: {finished:?}");
        assert!(!finished.text().contains(" ok"), "{finished:?}");
    })
    .await;
}

#[tokio::test]
async fn the_program_of_the_server_cannot_be_reached_through_the_launcher() {
    as_each_user(async |fixture| {
        // It belongs to the user, as in a per-user installation.
        let program = fixture.root().join("exec-server");
        copy_program(&binary(), &program);
        fixture.give(&program);
        let mut builder = TestExecutor::builder();
        *builder.command() = tokio::process::Command::new(&program);
        isolate(builder.command().as_std_mut());
        builder.command().stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let builder = if fixture.is_root() { Some(builder) } else { as_nobody(builder) };
        fixture.server = builder.expect("there is such a server already").start().await;
        fixture.client = fixture.server.client().await;
        let policy = fixture.workspace("restricted");
        let (id, argv) = ("p", ["/proc/self/exe", "--listen=stdio"]);
        {
            let before = program.metadata().unwrap();
            let mut params = fixture.params(&policy);
            params["pipeStdin"] = json!(true);
            fixture.client.start(id, &argv, params).await.expect("it starts");
            // The zygote program is a server, which could be asked to run something as its child.
            let inner =
                "chmod 700 /proc/$PPID/exe; touch -d 2001-01-01 /proc/$PPID/exe; echo done >&2";
            let inner = start_params("inner", &["/bin/sh", "-c", inner], json!({}));
            let lines = [
                json!({"id": 1, "method": "initialize", "params": {"clientName": "test"}}),
                json!({"method": "initialized", "params": {}}),
                json!({"id": 2, "method": "process/start", "params": inner}),
            ];
            let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
            fixture.client.write(id, "w", &lines).await.unwrap();
            fixture.client.wait_output(id, "process/exited").await;
            let after = program.metadata().unwrap();
            assert_eq!((before.mode(), before.mtime()), (after.mode(), after.mtime()), "{id}");
            fixture.client.terminate(id, None).await;
            fixture.client.finish(id).await;
        }
    })
    .await;
}
