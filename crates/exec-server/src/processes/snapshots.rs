//! Runs each login shell's profile once per scope and remembers its effect for the session.
//!
//! Owner: the session holds the cache; whoever comes first captures, and everyone else waits for that one capture.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_os::env_policy::may_come_from_profile;
use exec_server_os::spawn::{SpawnRequest, Spawned, StdinKind, Stdio};
use exec_server_os::{ChildOutput, SandboxNetwork, TreeTag};
use exec_server_protocol::process::ProcessStartParams;
use tokio::sync::OnceCell;

use crate::server::Server;
use crate::shell_snapshot::{
    MAX_SNAPSHOT_BYTES, ShellKind, Snapshot, applies, capture_argv, parse_capture, restore_argv,
    validate,
};

/// Snapshots kept per session; the oldest makes room.
const MAX_SNAPSHOTS: usize = 16;
/// A profile that takes longer is not worth waiting for.
const CAPTURE_TIME: Duration = Duration::from_secs(10);
/// Noise that a profile may print before the snapshot begins.
const MAX_NOISE_BYTES: usize = 1024 * 1024;

/// The snapshots of one session.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// Oldest first; few enough to be searched one by one.
    entries: Mutex<VecDeque<(String, Captured)>>,
}

/// The one capture that everyone waits for; none if it failed.
type Captured = Arc<OnceCell<Option<Snapshot>>>;

/// A command that takes the profile's effect from a snapshot.
pub(super) struct Restored {
    pub argv: Vec<String>,
    pub input: Vec<u8>,
}

impl Snapshots {
    /// The command to run instead, or none when the plain one is to be run.
    pub(super) async fn restore(
        &self,
        server: &Server,
        params: &ProcessStartParams,
        cwd: &Path,
        env: &[(OsString, OsString)],
        capture_tag: TreeTag,
    ) -> Option<Restored> {
        let wanted = params.shell_snapshot.as_ref()?;
        let kind = validate(wanted).ok()?;
        if !applies(&params.argv, wanted) {
            return None;
        }
        let cell = self.entry(key(params, cwd));
        let snapshot = cell
            .get_or_init(|| capture(server, kind, &wanted.shell.path, cwd, env, capture_tag))
            .await
            .as_ref()?;
        let may_restore = |name: &str| may_come_from_profile(params.env_policy.as_ref(), name);
        let (argv, input) = restore_argv(kind, &params.argv, snapshot, may_restore, &params.env);
        Some(Restored { argv, input })
    }

    fn entry(&self, key: String) -> Captured {
        let mut entries = self.entries.lock().expect("no holder panics");
        if let Some((_, cell)) = entries.iter().find(|(known, _)| *known == key) {
            return cell.clone();
        }
        if entries.len() == MAX_SNAPSHOTS {
            entries.pop_front();
        }
        let cell = Arc::new(OnceCell::new());
        entries.push_back((key, cell.clone()));
        cell
    }
}

/// Everything that can make a profile behave differently.
fn key(params: &ProcessStartParams, cwd: &Path) -> String {
    let parts = (&params.shell_snapshot, cwd, &params.env_policy, &params.sandbox);
    serde_json::to_string(&parts).unwrap_or_else(|_| format!("{parts:?}"))
}

async fn capture(
    server: &Server,
    kind: ShellKind,
    shell: &str,
    cwd: &Path,
    env: &[(OsString, OsString)],
    tag: TreeTag,
) -> Option<Snapshot> {
    let argv: Vec<OsString> = capture_argv(kind, shell).into_iter().map(Into::into).collect();
    let request = SpawnRequest {
        program: argv[0].clone(),
        argv,
        env: env.to_vec(),
        cwd: cwd.to_owned(),
        stdio: Stdio::Pipes { stdin: StdinKind::Null },
        tag,
        sandbox: None,
        network: SandboxNetwork::default(),
        extra_input: None,
        limits: server.least_limits,
    };
    let mut spawned = server.spawner.spawn(request).await.ok()?;
    let captured = tokio::time::timeout(CAPTURE_TIME, read_output(&mut spawned)).await;
    end(spawned).await;
    let snapshot = captured.ok().and_then(|bytes| parse_capture(&bytes));
    if snapshot.is_none() {
        tracing::info!(
            "a shell profile could not be captured; its commands run as plain login commands"
        );
    }
    snapshot.map(|snapshot| snapshot.relative_to(env))
}

/// Reads stdout to its end; stderr is read too, so that a talkative profile does not get stuck.
async fn read_output(spawned: &mut Spawned) -> Vec<u8> {
    let mut captured = Vec::new();
    let errors = spawned.error_output.take();
    let discard = async {
        if let Some(mut errors) = errors {
            read_to_end(&mut errors, |_| {}).await;
        }
    };
    let keep = read_to_end(&mut spawned.output, |bytes| {
        let room = (MAX_SNAPSHOT_BYTES + MAX_NOISE_BYTES).saturating_sub(captured.len());
        captured.extend_from_slice(&bytes[..bytes.len().min(room)]);
    });
    tokio::join!(keep, discard);
    captured
}

async fn read_to_end(output: &mut ChildOutput, mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if poll_fn(|cx| output.poll_readable(cx)).await.is_err() {
            return;
        }
        match output.read_now(&mut buffer) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => return,
            Ok(Some(count)) => take(&buffer[..count]),
        }
    }
}

/// Nothing that a profile started may stay behind.
async fn end(mut spawned: Spawned) {
    spawned.tree.kill_pass();
    // Reaped in any case; how it ended does not matter.
    let _ = poll_fn(|cx| spawned.exit.poll_exit(cx)).await;
    spawned.tree.handle_root_reaped();
    while spawned.tree.kill_pass() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
