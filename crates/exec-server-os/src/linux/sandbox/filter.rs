//! The system call filter of a sandboxed command, and the stricter one of the file worker.
//!
//! Only registers are judged, never what a pointer leads to, so there is nothing that another thread could change
//! between the check and the use. Calls that hide what matters behind a pointer (`clone3`, `openat2`) are said not
//! to exist, and every runtime then uses the older call. Calls that no rule looks into are decided by their number
//! alone, which the kernel remembers in a bitmap: they cost nothing.
//!
//! The rule for a number is found by halving. To fill its bitmap the kernel tries every number when the program is
//! installed, which happens with every start, so a long row of comparisons would be paid for hundreds of times.

mod alone;
mod calls;
mod no_filters;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use super::bpf::{Action, Assembler, Label, Passage, SockFilter, Test};
use super::step::{Step, StepError};
use crate::linux::check;
use crate::sandbox::Allowances;

/// What a sandboxed command may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Nothing: only pairs of connected sockets work.
    Restricted,
    /// Internet addresses and streams to local sockets.
    Enabled,
}

/// What the filter lets pass beyond the usual. The default lets out nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterOptions {
    /// What the operator of the server wants.
    pub allow: Allowances,
    /// Files may be made setuid or setgid; then `openat2` needs no hiding.
    pub allow_set_id_modes: bool,
    /// `openat2` exists although its mode cannot be judged: for programs of our own.
    pub allow_openat2: bool,
    /// There are no mounts and no namespaces, so that what Landlock does not know must be refused here.
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

/// The filter for the file worker, which starts nothing and talks only over what it was given.
///
/// What it has opened was judged when it was opened, so the attributes of that may be changed also where it is alone.
pub fn file_worker(alone: bool) -> Vec<SockFilter> {
    let options = FilterOptions { allow_openat2: true, alone, ..FilterOptions::default() };
    let mut filter = Filter::start(Action::Errno(libc::EPERM));
    if alone {
        filter.deny_attributes_of_names();
        filter.deny_times_of_names();
        filter.deny_what_namespaces_keep();
    }
    filter.deny_all(calls::NOT_FOR_FILES);
    filter.deny_all(calls::NOT_FOR_FILES_HERE);
    filter.judge_arguments(&options);
    filter.judge_sockets(NetworkMode::Restricted);
    filter.judge_filters(&options);
    filter.deny_by_number(&options);
    filter.finish()
}

/// Puts the calling thread, and all that it starts, under the program; needs `no_new_privs`.
pub fn install(program: &[SockFilter]) -> Result<(), StepError> {
    install_with(program, 0).map(drop).step("seccomp")
}

/// Does the same with the filter for a command, and returns where its refusals of the network wait to be answered.
///
/// There is nothing to answer where the kernel cannot tell, or tells somebody else already: it allows one listener per
/// process. It forgets ours when the launcher has ended, and would then take one from inside, and believe it. That is why
/// nobody under this filter can make another one that asks; see [`no_filters`].
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
    // A signal would make a call that waits start over, and be counted twice; Linux 5.19 can hold signals back.
    for flags in [NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER] {
        match install_with(counted, flags) {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(listener) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) })),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => break,
            Err(error) => return Err(error).step("seccomp"),
        }
    }
    install(&program(mode, options)).map(|()| None)
}

/// Programs that were built ahead.
static READY: OnceLock<Vec<Ready>> = OnceLock::new();

struct Ready {
    mode: NetworkMode,
    options: FilterOptions,
    program: Vec<SockFilter>,
}

/// Builds the usual filters for commands, for this process and all that are copied from it.
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

/// Makes a filter that lets everything pass and yet has a listener, as somebody else may.
#[cfg(test)]
pub fn listen_to_nothing() -> io::Result<OwnedFd> {
    let mut open = Assembler::default();
    open.answer(Action::Allow);
    // SAFETY: the kernel has just made this descriptor for us.
    install_with(&open.finish(), NEW_LISTENER).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Numbers from here on are calls of the x32 ABI, which a filter by number would not recognise.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

const NEW_NAMESPACE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Both make `open` look at its mode; `O_TMPFILE` also contains `O_DIRECTORY`, which does not.
const MAKES_A_FILE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// The usual personality, 32-bit and old kernel names, no address randomisation, and the question for the present one.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x4_0000, 0xffff_ffff];

/// The families that a program asks for if it wants to talk to somebody; libraries try others on their own.
const LEAVES_THE_MACHINE: [libc::c_int; 4] =
    [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET, libc::AF_VSOCK];

/// As many numbers are compared one after the other; to halve them again would take as long.
const FEW: usize = 3;

/// The part of a socket's type that is not a flag.
const SOCKET_TYPE: u32 = 0xf;

/// Rules by the number of the call; the first one for a number stands.
struct Filter {
    assembler: Assembler,
    rules: BTreeMap<u32, Rule>,
    allow: Label,
    deny: Label,
    deny_network: Label,
    absent: Label,
    unknown: Label,
    kill: Label,
    /// How the network is refused.
    network: Action,
}

/// What becomes of a call.
enum Rule {
    /// Always the same.
    End(Label),
    /// Its arguments decide.
    Judge(Passage),
}

impl Filter {
    fn start(network: Action) -> Self {
        let mut assembler = Assembler::default();
        let mut label = || assembler.label();
        let (allow, deny, deny_network) = (label(), label(), label());
        let (absent, unknown, kill) = (label(), label(), label());
        assembler.load_arch();
        assembler.jump_unless(Test::Equal(ARCH), kill);
        assembler.load_number();
        #[cfg(target_arch = "x86_64")]
        assembler.jump_if(Test::AtLeast(X32), deny);
        let rules = BTreeMap::new();
        Self { assembler, rules, allow, deny, deny_network, absent, unknown, kill, network }
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
        self.assembler.mark(self.kill);
        self.assembler.answer(Action::KillProcess);
        self.assembler.finish()
    }

    /// Goes to where the number that is loaded leads.
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
                // Where no file is made the mode may be anything that was left in the register.
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

    /// Every call with this number ends at the label.
    fn number(&mut self, call: libc::c_long, end: Label) {
        self.rules.entry(call as u32).or_insert(Rule::End(end));
    }

    /// A call with this number is judged by `body`, which always ends the program.
    fn rule(&mut self, call: libc::c_long, body: impl FnOnce(&mut Assembler, Ends)) {
        let Self { allow, deny, deny_network, unknown, .. } = *self;
        let ends = Ends { allow, deny, deny_network, unknown };
        let passage = self.assembler.aside(|assembler| body(assembler, ends));
        self.rules.entry(call as u32).or_insert(Rule::Judge(passage));
    }
}

/// Where a rule may end.
#[derive(Clone, Copy)]
struct Ends {
    allow: Label,
    deny: Label,
    deny_network: Label,
    unknown: Label,
}

/// Keeps anything from being typed into a terminal, and goes on with the request loaded.
fn typing(rule: &mut Assembler, ends: Ends) {
    rule.load_low(1);
    rule.jump_if(Test::Equal(libc::TIOCSTI as u32), ends.deny);
    rule.jump_if(Test::Equal(libc::TIOCLINUX as u32), ends.deny);
}

/// Lets internet sockets pass, and goes on with the family loaded.
fn internet(rule: &mut Assembler, ends: Ends) {
    rule.load_low(0);
    rule.jump_if(Test::Equal(libc::AF_INET as u32), ends.allow);
    rule.jump_if(Test::Equal(libc::AF_INET6 as u32), ends.allow);
}

/// Datagrams are out, and raw ones, which the kernel makes datagrams: each message could name another receiver.
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
