//! A server that may not do everything: root reads and removes whatever it wants.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use exec_server_testkit::TestExecutor;
use exec_server_testkit::desk::Desk;
use exec_server_testkit::executor::binary;

/// Becomes nobody, if it can.
const AS_NOBODY: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];

/// Gives the desk a server of an ordinary user, which may use the desk's directory; `preparation` is run first.
///
/// Says so and returns false where that cannot be.
pub async fn serve_as_ordinary_user(desk: &mut Desk, preparation: &str) -> bool {
    let Some(prefix) = prefix() else {
        eprintln!("skipped: root cannot become an ordinary user here");
        return false;
    };
    std::fs::set_permissions(desk.root(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let preparation = format!("{preparation}\nexec {prefix} \"$0\" \"$@\"");
    desk.server = TestExecutor::builder().after(&preparation).start().await;
    desk.client = desk.server.client().await;
    true
}

/// What a shell puts before the server's program; nothing if it is an ordinary user's already.
fn prefix() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some(String::new());
    }
    let mut probe = Command::new(AS_NOBODY[0]);
    probe.args(&AS_NOBODY[1..]).arg(binary()).arg("--version");
    let status = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then(|| AS_NOBODY.join(" "))
}
