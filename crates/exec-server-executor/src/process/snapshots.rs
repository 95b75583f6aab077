//! Runs each login shell's profile once per scope and caches its effect for the session.
//!
//! Owner: the session. The first start of a scope captures the profile; concurrent starts wait for the same capture.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_os::env_policy::may_come_from_profile;
use exec_server_os::spawn::{SpawnRequest, Spawned, StdinKind, Stdio};
use exec_server_os::{ChildOutput, TreeTag};
use exec_server_protocol::process::ProcessStartParams;
use tokio::sync::OnceCell;

use crate::server::Server;
use crate::shell_snapshot::{
    MAX_SNAPSHOT_BYTES, ShellKind, Snapshot, applies, capture_argv, parse_capture, restore_argv,
    validate,
};

/// Snapshots per session; a new one evicts the oldest.
const MAX_SNAPSHOTS: usize = 16;
/// A slower profile is not captured, and its commands run as plain login commands.
const CAPTURE_TIME: Duration = Duration::from_secs(10);
/// Output that a profile may print before the snapshot begins.
const MAX_NOISE_BYTES: usize = 1024 * 1024;

/// The snapshots of one session.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// Oldest first; small enough for a linear search.
    entries: Mutex<VecDeque<(String, Captured)>>,
}

/// The shared result of one capture; `None` if it failed.
type Captured = Arc<OnceCell<Option<Snapshot>>>;

/// A command that takes the profile's effect from a snapshot.
pub(super) struct Restored {
    pub argv: Vec<String>,
    pub input: Vec<u8>,
}

impl Snapshots {
    /// Returns the command that restores the snapshot, or `None` if the original command must run.
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

/// The inputs that can change the effect of a profile.
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
        extra_input: None,
        limits: server.least_limits,
        user: None,
    };
    let mut spawned = server.spawner.spawn(request).await.ok()?;
    let captured = tokio::time::timeout(CAPTURE_TIME, read_output(&mut spawned)).await;
    end(spawned).await;
    let snapshot = captured.ok().and_then(|bytes| parse_capture(&bytes));
    if snapshot.is_none() {
        tracing::info!("cannot capture the shell profile; commands run as plain login commands");
    }
    snapshot.map(|snapshot| snapshot.relative_to(env))
}

/// Reads stdout to its end. Stderr is drained too, so that the profile does not block on a full pipe.
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

/// Ends the shell and every process that the profile started.
async fn end(mut spawned: Spawned) {
    spawned.tree.kill_pass();
    // The child is reaped either way; its status is not needed.
    let _ = poll_fn(|cx| spawned.exit.poll_exit(cx)).await;
    spawned.tree.handle_root_reaped();
    while spawned.tree.kill_pass() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
