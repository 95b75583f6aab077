//! The system call filter of a sandboxed command, and the stricter one of the file worker.
//!
//! Only registers are checked, never memory behind a pointer, so no other thread can change a value between check and
//! use. Calls that pass their flags by pointer (`clone3`, `openat2`) fail with `ENOSYS`, and every runtime falls back to
//! the older call. Calls that are decided by number alone are cached by the kernel in a bitmap and cost nothing.
//!
//! The rule for a number is found by binary search. To fill its bitmap the kernel runs the program for every number at
//! each installation, and so at each start, where a linear search would be slow.

mod alone;
mod calls;
mod no_filters;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use exec_server_os::linux::check;

use super::bpf::{Action, Assembler, Fragment, Label, SockFilter, Test};
use super::step::{Step, StepError};
use crate::policy::Allowances;

/// The network access of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// None: only connected socket pairs work.
    Restricted,
    /// Internet addresses and stream connections to local sockets.
    Enabled,
}

/// Permissions beyond the default filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterOptions {
    /// Permissions from the server's configuration.
    pub allow: Allowances,
    /// Allows setuid and setgid modes; `openat2` then need not be hidden.
    pub allow_set_id_modes: bool,
    /// Allows `openat2` although its mode cannot be checked; for this program's own processes.
    pub allow_openat2: bool,
    /// There are no mounts or namespaces, so the filter refuses what Landlock does not cover.
    pub alone: bool,
}

/// The filter for a command.
pub fn program(mode: NetworkMode, options: &FilterOptions) -> Vec<SockFilter> {
    program_with(mode, options, Action::Errno(libc::EPERM))
}

fn program_with(mode: NetworkMode, options: &FilterOptions, network: Action) -> Vec<SockFilter> {
    let mut filter = Filter::start(network);
    if options.alone {
        filter.deny_attributes_of_names();
        filter.deny_all(calls::ATTRIBUTES_OF_OPEN_FILES);
        filter.number(libc::SYS_utimensat, filter.deny);
        filter.deny_what_namespaces_keep();
    }
    filter.judge_arguments(options);
    filter.judge_sockets(mode);
    filter.judge_filters(options);
    filter.deny_by_number(options);
    filter.finish()
}

/// The filter for the file worker, which starts threads for a search but no process, and uses only its inherited descriptors.
///
/// Access is checked at open, so attributes of open files may be changed also without namespaces.
pub fn file_worker(alone: bool) -> Vec<SockFilter> {
    let options = FilterOptions { allow_openat2: true, alone, ..FilterOptions::default() };
    let mut filter = Filter::start(Action::Errno(libc::EPERM));
    if alone {
        filter.deny_attributes_of_names();
        filter.deny_times_of_names();
        filter.deny_what_namespaces_keep();
    }
    filter.allow_threads_only();
    filter.deny_all(calls::NOT_FOR_FILES);
    filter.deny_all(calls::NOT_FOR_FILES_HERE);
    filter.judge_arguments(&options);
    filter.judge_sockets(NetworkMode::Restricted);
    filter.judge_filters(&options);
    filter.deny_by_number(&options);
    filter.finish()
}

/// Applies the program to the calling thread and its descendants; requires `no_new_privs`.
pub fn install(program: &[SockFilter]) -> Result<(), StepError> {
    install_with(program, 0).map(drop).step("seccomp")
}

/// Installs the filter for a command, and returns the listener for its network denials.
///
/// Returns `None` if the kernel lacks notifications or another listener exists: it allows one per process. The kernel
/// drops ours when the launcher exits and would then accept one from inside; [`no_filters`] prevents that.
pub fn install_counted(
    mode: NetworkMode,
    options: &FilterOptions,
) -> Result<Option<OwnedFd>, StepError> {
    let ready = READY.get().and_then(|ready| {
        ready.iter().find(|it| it.mode == mode && it.options == *options).map(|it| &it.program)
    });
    let built;
    let counted = match ready {
        Some(program) => program,
        None => {
            built = program_with(mode, options, Action::Notify);
            &built
        }
    };
    // A signal would restart a waiting call, which is then counted twice; Linux 5.19 can hold signals back.
    for flags in [NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER] {
        match install_with(counted, flags) {
            // SAFETY: the kernel has just created this descriptor.
            Ok(listener) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) })),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => break,
            Err(error) => return Err(error).step("seccomp"),
        }
    }
    install(&program(mode, options)).map(|()| None)
}

static READY: OnceLock<Vec<Ready>> = OnceLock::new();

struct Ready {
    mode: NetworkMode,
    options: FilterOptions,
    program: Vec<SockFilter>,
}

/// Assembles the default filters for this process and its forks.
pub fn build_ahead() {
    let options = FilterOptions::default();
    READY.get_or_init(|| {
        [NetworkMode::Restricted, NetworkMode::Enabled]
            .map(|mode| Ready {
                mode,
                options,
                program: program_with(mode, &options, Action::Notify),
            })
            .into()
    });
}

const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
const WAIT_KILLABLE: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

fn install_with(program: &[SockFilter], flags: libc::c_ulong) -> io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: program.len().try_into().expect("the assembler keeps programs short"),
        filter: program.as_ptr().cast_mut(),
    };
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel only reads the program, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    check(result as libc::c_int)
}

/// Installs a filter that allows everything and has a listener.
#[cfg(test)]
pub fn listen_to_nothing() -> io::Result<OwnedFd> {
    let mut open = Assembler::default();
    open.answer(Action::Allow);
    // SAFETY: the kernel has just created this descriptor.
    install_with(&open.finish(), NEW_LISTENER).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Numbers from here on are calls of the x32 ABI, which the rules do not cover.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Either flag makes `open` use its mode; the `O_DIRECTORY` bit of `O_TMPFILE` does not.
const MAKES_A_FILE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// The default personality, 32-bit and old kernel names, no address randomisation, and the query.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x4_0000, 0xffff_ffff];

/// The address families of network traffic; libraries try others on their own.
const LEAVES_THE_MACHINE: [libc::c_int; 4] =
    [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_VSOCK];

/// Up to this many numbers are compared one by one, which is as fast as another bisection.
const FEW: usize = 3;

/// `F_SETLEASE` and `F_SETDELEG`: a lease delays every other open of the file, also outside.
const LEASES: [u32; 2] = [libc::F_SETLEASE as u32, 1040];

/// Masks the flags out of a socket's type.
const SOCKET_TYPE: u32 = 0xf;

/// Rules by call number; the first rule for a number wins.
struct Filter {
    assembler: Assembler,
    rules: BTreeMap<u32, Rule>,
    allow: Label,
    deny: Label,
    deny_network: Label,
    absent: Label,
    unknown: Label,
    /// Skips the call and returns success.
    done: Label,
    kill: Label,
    /// The action for refused network calls.
    network: Action,
}

enum Rule {
    End(Label),
    /// Decided by the arguments.
    Judge(Fragment),
}

impl Filter {
    fn start(network: Action) -> Self {
        let mut assembler = Assembler::default();
        let mut label = || assembler.label();
        let (allow, deny, deny_network) = (label(), label(), label());
        let (absent, unknown, done, kill) = (label(), label(), label(), label());
        assembler.load_arch();
        assembler.jump_unless(Test::Equal(ARCH), kill);
        assembler.load_number();
        #[cfg(target_arch = "x86_64")]
        assembler.jump_if(Test::AtLeast(X32), deny);
        let rules = BTreeMap::new();
        Self { assembler, rules, allow, deny, deny_network, absent, unknown, done, kill, network }
    }

    fn finish(mut self) -> Vec<SockFilter> {
        let mut judges = Vec::new();
        let mut ends = Vec::new();
        for (number, rule) in std::mem::take(&mut self.rules) {
            let end = match rule {
                Rule::End(end) => end,
                Rule::Judge(passage) => {
                    let here = self.assembler.label();
                    judges.push((here, passage));
                    here
                }
            };
            ends.push((number, end));
        }
        self.find(&ends);
        for (here, passage) in judges {
            self.assembler.mark(here);
            self.assembler.append(passage);
        }
        self.assembler.mark(self.allow);
        self.assembler.answer(Action::Allow);
        self.assembler.mark(self.deny);
        self.assembler.answer(Action::Errno(libc::EPERM));
        self.assembler.mark(self.deny_network);
        self.assembler.answer(self.network);
        self.assembler.mark(self.absent);
        self.assembler.answer(Action::Errno(libc::ENOSYS));
        self.assembler.mark(self.unknown);
        self.assembler.answer(Action::Errno(libc::EINVAL));
        self.assembler.mark(self.done);
        self.assembler.answer(Action::Errno(0));
        self.assembler.mark(self.kill);
        self.assembler.answer(Action::KillProcess);
        self.assembler.finish()
    }

    /// Jumps to the rule of the loaded number.
    fn find(&mut self, ends: &[(u32, Label)]) {
        if ends.len() <= FEW {
            for (number, end) in ends {
                self.assembler.jump_if(Test::Equal(*number), *end);
            }
            self.assembler.jump(self.allow);
            return;
        }
        let (low, high) = ends.split_at(ends.len() / 2);
        let not_below = self.assembler.label();
        self.assembler.jump_if(Test::AtLeast(high[0].0), not_below);
        self.find(low);
        self.assembler.mark(not_below);
        self.find(high);
    }

    /// Allows a thread of this process and refuses a new process.
    fn allow_threads_only(&mut self) {
        self.rule(libc::SYS_clone, |rule, ends| {
            rule.load_low(0);
            rule.jump_if(Test::AnyBit(NEW_NAMESPACE), ends.deny);
            rule.jump_if(Test::AnyBit(libc::CLONE_THREAD as u32), ends.allow);
            rule.jump(ends.deny);
        });
        // Its flags are behind a pointer; runtimes fall back to `clone`.
        self.number(libc::SYS_clone3, self.absent);
    }

    fn judge_arguments(&mut self, options: &FilterOptions) {
        if !options.allow_set_id_modes {
            self.deny_set_id_modes();
            if !options.allow_openat2 {
                self.number(libc::SYS_openat2, self.absent);
            }
        }
        self.rule(libc::SYS_ioctl, |rule, ends| {
            typing(rule, ends);
            rule.jump(ends.allow);
        });
        if !options.allow.namespaces {
            self.rule(libc::SYS_clone, |rule, ends| {
                rule.load_low(0);
                rule.jump_if(Test::AnyBit(NEW_NAMESPACE), ends.deny);
                rule.jump(ends.allow);
            });
        }
        self.number(libc::SYS_clone3, self.absent);
        self.rule(libc::SYS_fcntl, |rule, ends| {
            rule.load_low(1);
            for command in LEASES {
                rule.jump_if(Test::Equal(command), ends.deny);
            }
            rule.jump(ends.allow);
        });
        self.rule(libc::SYS_setrlimit, |rule, ends| {
            core_limit_of_setrlimit(rule, ends);
            rule.jump(ends.allow);
        });
        self.rule(libc::SYS_prlimit64, |rule, ends| {
            core_limit_of_prlimit(rule, ends);
            rule.jump(ends.allow);
        });
        self.rule(libc::SYS_personality, |rule, ends| {
            rule.load_low(0);
            for allowed in PERSONALITIES {
                rule.jump_if(Test::Equal(allowed), ends.allow);
            }
            rule.jump(ends.deny);
        });
    }

    fn deny_set_id_modes(&mut self) {
        for (call, flags, mode) in calls::WITH_FLAGS_AND_MODE {
            self.rule(*call, |rule, ends| {
                rule.load_low(*flags);
                // Without file creation, the mode register may hold any value.
                rule.jump_unless(Test::AnyBit(MAKES_A_FILE), ends.allow);
                rule.load_low(*mode);
                rule.jump_if(Test::AnyBit(SET_ID), ends.deny);
                rule.jump(ends.allow);
            });
        }
        for (call, mode) in calls::WITH_MODE {
            self.rule(*call, |rule, ends| {
                rule.load_low(*mode);
                rule.jump_if(Test::AnyBit(SET_ID), ends.deny);
                rule.jump(ends.allow);
            });
        }
    }

    fn judge_sockets(&mut self, mode: NetworkMode) {
        self.rule(libc::SYS_socketpair, local_streams_only);
        match mode {
            NetworkMode::Restricted => {
                self.rule(libc::SYS_socket, local_streams_only);
                for call in calls::CONNECTING {
                    self.number(*call, self.deny_network);
                }
                self.deny_all(calls::LISTENING);
            }
            NetworkMode::Enabled => self.rule(libc::SYS_socket, |rule, ends| {
                internet(rule, ends);
                let not_netlink = rule.label();
                rule.jump_unless(Test::Equal(libc::AF_NETLINK as u32), not_netlink);
                rule.load_low(2);
                rule.jump_if(Test::Equal(libc::NETLINK_ROUTE as u32), ends.allow);
                rule.jump(ends.deny);
                rule.mark(not_netlink);
                local_streams_only(rule, ends);
            }),
        }
    }

    fn deny_by_number(&mut self, options: &FilterOptions) {
        self.deny_all(calls::DENIED);
        self.deny_all(calls::DENIED_HERE);
        if !options.allow.debugging {
            self.deny_all(calls::DEBUGGING);
        }
        if !options.allow.keyrings {
            self.deny_all(calls::KEYRINGS);
        }
        if !options.allow.namespaces {
            self.deny_all(calls::NAMESPACES);
        }
    }

    fn deny_all(&mut self, calls: &[libc::c_long]) {
        for call in calls {
            self.number(*call, self.deny);
        }
    }

    /// Decides a call by its number.
    fn number(&mut self, call: libc::c_long, end: Label) {
        self.rules.entry(call as u32).or_insert(Rule::End(end));
    }

    /// Decides a call by `body`, which must always return.
    fn rule(&mut self, call: libc::c_long, body: impl FnOnce(&mut Assembler, Ends)) {
        let Self { allow, deny, deny_network, unknown, done, .. } = *self;
        let ends = Ends { allow, deny, deny_network, unknown, done };
        let passage = self.assembler.aside(|assembler| body(assembler, ends));
        self.rules.entry(call as u32).or_insert(Rule::Judge(passage));
    }
}

/// The possible outcomes of a rule.
#[derive(Clone, Copy)]
struct Ends {
    allow: Label,
    deny: Label,
    deny_network: Label,
    unknown: Label,
    done: Label,
}

/// Refuses input injection into a terminal; leaves the request loaded.
fn typing(rule: &mut Assembler, ends: Ends) {
    rule.load_low(1);
    rule.jump_if(Test::Equal(libc::TIOCSTI as u32), ends.deny);
    rule.jump_if(Test::Equal(libc::TIOCLINUX as u32), ends.deny);
}

/// The constant is signed in musl and unsigned in glibc.
#[allow(clippy::unnecessary_cast)]
const CORE_LIMIT: u32 = libc::RLIMIT_CORE as u32;

/// Keeps the core limit and reports success: programs set it to 0, which would make the kernel run the machine's crash
/// handler.
fn core_limit_of_setrlimit(rule: &mut Assembler, ends: Ends) {
    rule.load_low(0);
    rule.jump_if(Test::Equal(CORE_LIMIT), ends.done);
}

/// The same for `prlimit`; refused if the old limit is requested as well, because it would not be filled in.
fn core_limit_of_prlimit(rule: &mut Assembler, ends: Ends) {
    let elsewhere = rule.label();
    let changes = rule.label();
    rule.load_low(1);
    rule.jump_unless(Test::Equal(CORE_LIMIT), elsewhere);
    rule.load_low(2);
    rule.jump_unless(Test::Equal(0), changes);
    rule.load_high(2);
    rule.jump_if(Test::Equal(0), elsewhere);
    rule.mark(changes);
    rule.load_low(3);
    rule.jump_unless(Test::Equal(0), ends.deny);
    rule.load_high(3);
    rule.jump_unless(Test::Equal(0), ends.deny);
    rule.jump(ends.done);
    rule.mark(elsewhere);
}

/// Allows internet sockets; leaves the family loaded.
fn internet(rule: &mut Assembler, ends: Ends) {
    rule.load_low(0);
    rule.jump_if(Test::Equal(libc::AF_INET as u32), ends.allow);
    rule.jump_if(Test::Equal(libc::AF_INET6 as u32), ends.allow);
}

/// Refuses datagram and raw sockets, which become datagram sockets: each message could name another receiver.
fn local_streams_only(rule: &mut Assembler, ends: Ends) {
    let elsewhere = rule.label();
    rule.load_low(0);
    rule.jump_unless(Test::Equal(libc::AF_UNIX as u32), elsewhere);
    rule.load_low(1);
    rule.keep_bits(SOCKET_TYPE);
    rule.jump_if(Test::Equal(libc::SOCK_STREAM as u32), ends.allow);
    rule.jump_if(Test::Equal(libc::SOCK_SEQPACKET as u32), ends.allow);
    rule.jump(ends.deny);
    rule.mark(elsewhere);
    for family in LEAVES_THE_MACHINE {
        rule.jump_if(Test::Equal(family as u32), ends.deny_network);
    }
    rule.jump(ends.deny);
}

#[cfg(test)]
mod real_tests;
#[cfg(test)]
mod tests;
