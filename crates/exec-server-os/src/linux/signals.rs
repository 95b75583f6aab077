//! Names and numbers of signals and errors, and the signals that this process ignores.

use std::sync::OnceLock;

use exec_server_protocol::process::ProcessSignal;

/// Requests termination; a process may handle or ignore it.
pub const SIGTERM: i32 = libc::SIGTERM;
/// Kills a process; it cannot be handled or ignored.
pub const SIGKILL: i32 = libc::SIGKILL;

/// The number of a signal that a client may send.
pub fn number(signal: ProcessSignal) -> i32 {
    match signal {
        ProcessSignal::Interrupt => libc::SIGINT,
        ProcessSignal::Terminate => libc::SIGTERM,
        ProcessSignal::Kill => libc::SIGKILL,
        ProcessSignal::Hangup => libc::SIGHUP,
        ProcessSignal::Quit => libc::SIGQUIT,
        ProcessSignal::Usr1 => libc::SIGUSR1,
        ProcessSignal::Usr2 => libc::SIGUSR2,
        ProcessSignal::Stop => libc::SIGSTOP,
        ProcessSignal::Continue => libc::SIGCONT,
        ProcessSignal::Winch => libc::SIGWINCH,
    }
}

/// The name of a signal, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        other => return format!("SIG{other}"),
    };
    name.to_owned()
}

/// The name of a system error, such as `ENOENT`.
pub fn errno_name(error: &std::io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ENXIO => "ENXIO",
        libc::EIO => "EIO",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ETXTBSY => "ETXTBSY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::ESPIPE => "ESPIPE",
        libc::EMLINK => "EMLINK",
        libc::EPIPE => "EPIPE",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ESTALE => "ESTALE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EDQUOT => "EDQUOT",
        libc::ETIME => "ETIME",
        libc::ETOOMANYREFS => "ETOOMANYREFS",
        libc::ENOSYS => "ENOSYS",
        _ => return None,
    })
}

/// `EACCES` as an error.
pub fn access_denied() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::EACCES)
}

/// Signals that this process ignores and a child would inherit as ignored; determined at the first call.
pub fn ignored() -> &'static [libc::c_int] {
    static IGNORED: OnceLock<Vec<libc::c_int>> = OnceLock::new();
    IGNORED.get_or_init(|| (1..=64).filter(|signal| is_ignored(*signal)).collect())
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a null new action changes nothing; the old one is written to a live local.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
