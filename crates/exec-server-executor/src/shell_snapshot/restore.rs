//! Turns a login command into a command that restores a snapshot instead of running the profile.

use exec_server_protocol::process::Env;

use super::variables::{is_proxy, is_restorable};
use super::{ShellKind, Snapshot};

/// Returns the command to run instead of `argv`, and the bytes for descriptor 3.
///
/// `argv` is a command that [`super::applies`] accepts. `may_restore` tells which variables the request's policy allows.
/// Variables of `request_env` are not restored, and a proxy variable only if the command's environment does not set it.
pub fn restore_argv(
    kind: ShellKind,
    argv: &[String],
    snapshot: &Snapshot,
    may_restore: impl Fn(&str) -> bool,
    request_env: &Env,
) -> (Vec<String>, Vec<u8>) {
    let is_wanted = |name: &str| {
        is_restorable(kind, name) && !request_env.contains_key(name) && may_restore(name)
    };
    (restoring_argv(kind, argv), restore_script(snapshot, is_wanted))
}

fn restoring_argv(kind: ShellKind, argv: &[String]) -> Vec<String> {
    let [path, _, command, arguments @ ..] = argv else { return argv.to_vec() };
    let (flags, script): (&[&str], String) = match kind {
        // Without `--norc`, a bash whose stdin is a socket acts as a remote shell and reads ~/.bashrc.
        ShellKind::Bash => {
            (&["--norc", "-c"], format!("builtin . /dev/fd/3 >/dev/null 2>&1 || :\n{command}"))
        }
        // zsh parses the whole script before it runs, so aliases apply only to text that `eval` parses later.
        ShellKind::Zsh => {
            let quoted = String::from_utf8_lossy(&quoted(command.as_bytes())).into_owned();
            (&["-fc"], format!("builtin . /dev/fd/3 >/dev/null 2>&1 || :\nbuiltin eval {quoted}"))
        }
        // A failing `.` exits the shell; a failing `command .` does not.
        ShellKind::Sh => (&["-c"], format!("command . /dev/fd/3 >/dev/null 2>&1 || :\n{command}")),
    };
    let mut restoring = vec![path.clone()];
    restoring.extend(flags.iter().map(|flag| (*flag).to_owned()));
    restoring.push(script);
    restoring.extend_from_slice(arguments);
    restoring
}

/// Aliases follow the functions, so that they are not expanded in function bodies. Exports such as `POSIXLY_CORRECT`
/// change how the shell parses, so they follow both. Options come last.
fn restore_script(snapshot: &Snapshot, is_wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut script = b"exec 3<&-\n".to_vec();
    for part in [&snapshot.shopts, &snapshot.functions, &snapshot.aliases] {
        script.extend_from_slice(part);
        script.push(b'\n');
    }
    for name in snapshot.removed.iter().filter(|name| is_wanted(name) && !is_proxy(name)) {
        script.extend_from_slice(format!("unset {name}\n").as_bytes());
    }
    for (name, value) in snapshot.exports.iter().filter(|(name, _)| is_wanted(name)) {
        if is_proxy(name) {
            script.extend_from_slice(format!("[ -n \"${{{name}+set}}\" ] || ").as_bytes());
        }
        script.extend_from_slice(format!("export {name}=").as_bytes());
        script.extend_from_slice(&quoted(value));
        script.push(b'\n');
    }
    script.extend_from_slice(&snapshot.options);
    script
}

/// Quotes bytes as one word for any of the shells.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in value {
        match byte {
            b'\'' => word.extend_from_slice(br"'\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}
