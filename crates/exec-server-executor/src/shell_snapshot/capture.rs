//! Builds the script that prints a login shell's state, and parses its output, which may contain profile output.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use super::ShellKind;

/// Restoring a larger snapshot would cost more than running the profile.
pub const MAX_SNAPSHOT_BYTES: usize = 512 * 1024;

/// The effect of a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Restored first, because the parser may need them for the functions.
    pub(super) shopts: Vec<u8>,
    pub(super) functions: Vec<u8>,
    pub(super) aliases: Vec<u8>,
    pub(super) exports: BTreeMap<String, Vec<u8>>,
    /// Variables that the profile unset.
    pub(super) removed: BTreeSet<String>,
    /// Restored last, because `errexit` and `nounset` would break the other commands.
    pub(super) options: Vec<u8>,
}

impl Snapshot {
    /// Keeps only the variables that the profile changed, given the environment of the capture.
    ///
    /// Otherwise variables of the first request would leak into all later commands.
    #[must_use]
    pub fn relative_to(mut self, environment: &[(OsString, OsString)]) -> Self {
        for (name, value) in environment {
            let Some(name) = name.to_str() else { continue };
            match self.exports.get(name) {
                Some(exported) if exported == value.as_encoded_bytes() => {
                    self.exports.remove(name);
                }
                Some(_) => {}
                None => {
                    self.removed.insert(name.to_owned());
                }
            }
        }
        self
    }
}

/// The command that runs the profile and then prints the shell's state on stdout.
pub fn capture_argv(kind: ShellKind, path: &str) -> Vec<String> {
    vec![path.to_owned(), "-lc".to_owned(), capture_script(kind)]
}

/// Parses the output of [`capture_argv`]; `None` if it is incomplete or the snapshot is too large.
pub fn parse_capture(stdout: &[u8]) -> Option<Snapshot> {
    let start = rfind(stdout, &marker_line("options"))?;
    let captured = &stdout[start..];
    let end = rfind(captured, &marker_line("end"))?;
    if end > MAX_SNAPSHOT_BYTES {
        return None;
    }
    let rest = &captured[marker_line("options").len()..end];
    let (options, rest) = split_at(rest, &marker_line("functions"))?;
    let (functions, rest) = split_at(rest, &marker_line("aliases"))?;
    let (aliases, exports) = split_at(rest, &marker_line("exports"))?;
    let (shopts, options) = restorable_options(options);
    let exports = parse_exports(exports);
    // Every shell exports some variable, so an empty list means that `env` failed.
    (!exports.is_empty()).then(|| Snapshot {
        shopts,
        functions: functions.to_vec(),
        aliases: alias_commands(aliases),
        exports,
        removed: BTreeSet::new(),
        options,
    })
}

/// The script holds the marker in two halves, so that a profile that prints its command line does not print it.
const MARKER: [&str; 2] = ["__exec_server_snapshot_", "6d1c0f9ab57e__"];

fn marker_line(section: &str) -> Vec<u8> {
    format!("\n{}{} {section}\n", MARKER[0], MARKER[1]).into_bytes()
}

/// The commands that print the state of one kind of shell.
struct Dialect {
    /// Prefix that runs a builtin even if the profile defines a function or an alias of its name.
    builtin: &'static str,
    /// A test that fails in a shell of another kind.
    check: &'static str,
    traps: &'static str,
    options: &'static str,
    functions: &'static str,
    aliases: &'static str,
}

const BASH: Dialect = Dialect {
    builtin: r"\builtin",
    check: r#"[ -n "${BASH_VERSION-}" ]"#,
    traps: "DEBUG RETURN ERR EXIT",
    options: "\\builtin set +o\n\\builtin shopt -p || :",
    functions: "\\builtin declare -f\n\\builtin declare -Fx",
    aliases: r"\builtin alias -p",
};

const ZSH: Dialect = Dialect {
    builtin: r"\builtin",
    check: r#"[ -n "${ZSH_VERSION-}" ]"#,
    traps: "DEBUG ZERR EXIT",
    options: r"\builtin set +o",
    functions: "\\builtin print -r -- 'fpath=(' ${(q)fpath} ')'\n\\builtin typeset -f",
    aliases: r"\builtin alias -L",
};

const SH: Dialect = Dialect {
    builtin: r"\command",
    check: ":",
    traps: "0",
    options: r"\command set +o",
    functions: r"( \command typeset -f ) 2>/dev/null || :",
    aliases: r"\command alias",
};

/// Traps are removed first: a DEBUG trap could print between the sections, and an EXIT trap could delete files that
/// exported variables name. The script sets no variables, because `allexport` would export them.
fn capture_script(kind: ShellKind) -> String {
    let Dialect { builtin, check, traps, options, functions, aliases } = match kind {
        ShellKind::Bash => BASH,
        ShellKind::Zsh => ZSH,
        ShellKind::Sh => SH,
    };
    let [first, second] = MARKER;
    let mark =
        |section: &str| format!(r"{builtin} printf '\n%s%s %s\n' '{first}' '{second}' '{section}'");
    let lines = [
        &format!("{check} || exit 1"),
        &format!("{builtin} trap - {traps}"),
        &mark("options"),
        options,
        &format!("{builtin} set +e +u +v +x"),
        &mark("functions"),
        functions,
        &mark("aliases"),
        aliases,
        &mark("exports"),
        r"\command env -0 || /usr/bin/env -0",
        &mark("end"),
    ];
    lines.join("\n")
}

/// Options that are fixed at the start of a shell; setting them later fails or is harmful.
const FIXED_OPTIONS: [&str; 14] = [
    "exec",
    "extdebug",
    "interactive",
    "login",
    "login_shell",
    "noexec",
    "onecmd",
    "privileged",
    "restricted",
    "restricted_shell",
    "shinstdin",
    "singlecommand",
    "stdin",
    "zle",
];

/// Splits the printed options into those of `shopt` and those of `set`.
fn restorable_options(printed: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut shopts, mut options) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(printed).lines() {
        let mut words = line.split_whitespace();
        let (command, lines) = match words.next() {
            Some("shopt") => ("shopt", &mut shopts),
            Some("set") => ("set", &mut options),
            _ => continue,
        };
        // Korn shells print one line for all options.
        while let (Some(switch), Some(name)) = (words.next(), words.next()) {
            if ["-s", "-u", "-o", "+o"].contains(&switch) && is_changeable(name) {
                lines.extend_from_slice(format!("{command} {switch} {name}\n").as_bytes());
            }
        }
    }
    (shopts, options)
}

fn is_changeable(option: &str) -> bool {
    // zsh prints options that are on by default with the prefix `no`.
    let base = option.strip_prefix("no").unwrap_or(option);
    option.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        && !FIXED_OPTIONS.contains(&option)
        && !FIXED_OPTIONS.contains(&base)
}

/// POSIX shells print `name='value'` without the `alias` command, and a value may span several lines.
fn alias_commands(printed: &[u8]) -> Vec<u8> {
    let mut commands = Vec::new();
    for entry in split_unquoted_lines(printed) {
        if entry.contains(&b'=') {
            if !entry.starts_with(b"alias ") {
                commands.extend_from_slice(b"alias ");
            }
            commands.extend_from_slice(entry);
            commands.push(b'\n');
        }
    }
    commands
}

fn split_unquoted_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let (mut start, mut quote, mut is_escaped) = (0, None, false);
    for (index, byte) in text.iter().copied().enumerate() {
        match (byte, quote) {
            _ if is_escaped => is_escaped = false,
            (b'\\', None | Some(b'"')) => is_escaped = true,
            (b'\'' | b'"', None) => quote = Some(byte),
            (_, Some(open)) if byte == open => quote = None,
            (b'\n', None) => {
                lines.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    if quote.is_none() {
        lines.push(&text[start..]);
    }
    lines
}

fn parse_exports(printed: &[u8]) -> BTreeMap<String, Vec<u8>> {
    printed
        .split(|byte| *byte == 0)
        .filter_map(|entry| {
            let equals = entry.iter().position(|byte| *byte == b'=')?;
            let name = str::from_utf8(&entry[..equals]).ok()?;
            Some((name.to_owned(), entry[equals + 1..].to_vec()))
        })
        .collect()
}

fn split_at<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = text.windows(separator.len()).position(|window| window == separator)?;
    Some((&text[..at], &text[at + separator.len()..]))
}

fn rfind(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).rposition(|window| window == needle)
}
