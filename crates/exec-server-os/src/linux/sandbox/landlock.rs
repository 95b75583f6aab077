//! A second lock on what the mount view already decides: if one of its rules is wrong, this one still holds.
//!
//! Landlock only allows: there is no rule against something below an allowed directory, and nothing about modes,
//! owners, times or attributes. It takes what the running kernel knows and says what that was.
//!
//! A rule is about an inode, not about a name: `/` is the root of the view that this is called in, and a descriptor
//! may name what the view does not show, such as the terminal that a command was given.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Erratum, Errno,
    PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno as KernelError;
use serde::Serialize;

use super::step::{Step, StepError};

/// What a rule allows on a file, or on everything beneath a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Listing directories, which gives names away and nothing else.
    List,
    /// Reading, listing and executing.
    Read,
    /// Also writing, making, moving and removing, controlling a device, and connecting to a socket.
    Write,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Looked up when the rules are applied. A writable one must not lead over symbolic links, which somebody
    /// could have turned since the policy was judged; resolve it before.
    Path(&'a Path),
    /// Anything opened before, also with `O_PATH`; not a pipe or a socket, which Landlock does not restrict.
    Fd(BorrowedFd<'a>),
}

/// One place and what is allowed there.
#[derive(Clone, Copy, Debug)]
pub struct LandlockRule<'a> {
    /// The file or directory.
    pub place: Place<'a>,
    /// What is allowed there and beneath.
    pub access: Access,
}

/// All that is allowed; everything else is not.
#[derive(Clone, Debug, Default)]
pub struct LandlockRules<'a> {
    /// Everything in the view can be read and executed.
    pub read_root: bool,
    /// What else is allowed.
    pub rules: Vec<LandlockRule<'a>>,
    /// No address can be connected to or listened on by TCP.
    pub no_tcp: bool,
}

/// What Landlock can restrict, each since its own version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LandlockPart {
    /// Opening, making and removing files.
    Files,
    /// Moves and links between directories can be allowed; without it they all fail.
    Moves,
    /// Truncating files without opening them for writing.
    Truncation,
    /// Control of devices that are opened inside.
    DeviceControl,
    /// Abstract sockets of processes outside.
    AbstractSockets,
    /// Signals to processes outside.
    Signals,
    /// Connecting to sockets in the file system.
    SocketPaths,
}

impl LandlockPart {
    /// Every part, the oldest first, and the version that brought it.
    pub const ALL: [(Self, u32); 7] = [
        (Self::Files, 1),
        (Self::Moves, 2),
        (Self::Truncation, 3),
        (Self::DeviceControl, 5),
        (Self::AbstractSockets, 6),
        (Self::Signals, 6),
        (Self::SocketPaths, 9),
    ];

    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "landlockFiles",
            Self::Moves => "landlockMoves",
            Self::Truncation => "landlockTruncation",
            Self::DeviceControl => "landlockDeviceControl",
            Self::AbstractSockets => "landlockAbstractSockets",
            Self::Signals => "landlockSignals",
            Self::SocketPaths => "landlockSocketPaths",
        }
    }
}

/// What came of applying the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LandlockStatus {
    /// The version of the interface that was used; 0 if the kernel has none, and then nothing is restricted.
    pub abi: u32,
    /// The parts that hold.
    pub holds: Vec<LandlockPart>,
    /// The parts that this kernel does not have.
    pub missing: Vec<LandlockPart>,
    /// Bits of the errors in the kernel's implementation that are known to be fixed here.
    pub fixed_errata: u32,
    /// Places that do not exist or cannot be reached, so that there was nothing to allow.
    pub skipped: Vec<PathBuf>,
}

/// Restricts the calling thread, and all that it starts, as far as the kernel can.
pub fn restrict(rules: &LandlockRules) -> Result<LandlockStatus, StepError> {
    restrict_up_to(NEWEST, rules)
}

/// The version of the interface that the kernel has.
pub fn kernel_abi() -> io::Result<u32> {
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION) };
    u32::try_from(abi).map_err(|_| io::Error::last_os_error())
}

/// The oldest version that can be the only lock: it knows truncation.
pub const ALONE_ABI: u32 = 3;

/// The newest version that the rules below were written for.
const NEWEST: u32 = 9;

fn restrict_up_to(newest: u32, rules: &LandlockRules) -> Result<LandlockStatus, StepError> {
    let abi = kernel_abi().unwrap_or(0).min(newest);
    let (holds, missing) = LandlockPart::ALL.into_iter().partition(|(_, since)| *since <= abi);
    let names = |parts: Vec<(LandlockPart, u32)>| parts.into_iter().map(|(part, _)| part).collect();
    let mut status = LandlockStatus {
        abi,
        holds: names(holds),
        missing: names(missing),
        fixed_errata: Erratum::current().bits(),
        skipped: Vec::new(),
    };
    if abi > 0 {
        let abi = ABI::from(abi as i32);
        let mut ruleset =
            create(abi, rules.no_tcp).map_err(kernel_error).step("landlock ruleset")?;
        if rules.read_root {
            let root = LandlockRule { place: Place::Path(Path::new("/")), access: Access::Read };
            add(&mut ruleset, abi, &root, &mut status.skipped).step("landlock root rule")?;
        }
        for rule in &rules.rules {
            add(&mut ruleset, abi, rule, &mut status.skipped).step("landlock rule")?;
        }
        ruleset.restrict_self().map_err(kernel_error).step("landlock")?;
    }
    Ok(status)
}

fn create(abi: ABI, no_tcp: bool) -> Result<RulesetCreated, RulesetError> {
    // The kernel has this version, so whatever it refuses is an error and must not be left out in silence.
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset.handle_access(AccessFs::from_all(abi))?;
    let tcp = if no_tcp { AccessNet::from_all(abi) } else { BitFlags::empty() };
    let ruleset = if tcp.is_empty() { ruleset } else { ruleset.handle_access(tcp)? };
    let scopes = Scope::from_all(abi);
    if scopes.is_empty() { ruleset } else { ruleset.scope(scopes)? }.create()
}

fn add(
    ruleset: &mut RulesetCreated,
    abi: ABI,
    rule: &LandlockRule,
    skipped: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let mut add = |fd: BorrowedFd| {
        let access = rights(abi, rule.access, fd)?;
        ruleset.add_rule(PathBeneath::new(fd, access)).map(drop).map_err(kernel_error)
    };
    match rule.place {
        Place::Fd(fd) => add(fd),
        Place::Path(path) => match open(path, rule.access) {
            Ok(fd) => add(fd.as_fd()),
            Err(KernelError::NOENT | KernelError::NOTDIR | KernelError::ACCESS) => {
                skipped.push(path.to_owned());
                Ok(())
            }
            Err(error) => Err(error.into()),
        },
    }
}

fn open(path: &Path, access: Access) -> rustix::io::Result<OwnedFd> {
    let resolve = match access {
        Access::List | Access::Read => ResolveFlags::NO_MAGICLINKS,
        Access::Write => ResolveFlags::NO_SYMLINKS,
    };
    openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The rights that the rule gives; on a file only those that a file can have, or the kernel takes none of them.
fn rights(abi: ABI, access: Access, fd: BorrowedFd) -> io::Result<BitFlags<AccessFs>> {
    let rights = match access {
        Access::List => AccessFs::ReadDir.into(),
        Access::Read => AccessFs::from_read(abi),
        Access::Write => AccessFs::from_all(abi),
    };
    let is_directory = FileType::from_raw_mode(fstat(fd)?.st_mode).is_dir();
    Ok(if is_directory { rights } else { rights & AccessFs::from_file(abi) })
}

fn kernel_error(error: RulesetError) -> io::Error {
    io::Error::from_raw_os_error(*Errno::from(error))
}

#[cfg(test)]
mod tests;
