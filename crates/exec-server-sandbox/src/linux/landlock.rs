//! Landlock rules: a second layer behind the mounts, which holds if a mount rule is wrong.
//!
//! Landlock can only allow: it cannot exclude a path below an allowed directory, and it does not cover modes, owners,
//! times or attributes. The rules use what the running kernel supports, and the status reports it.
//!
//! A rule applies to an inode, not to a name. `/` is the root of the calling process, and a descriptor may refer to a
//! file outside of the rootfs, such as the terminal of a command.

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

/// The access to a file, or to everything beneath a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Listing directories, which reveals names only.
    List,
    /// Reading, listing and executing.
    Read,
    /// Also writing, creating, renaming and removing, ioctls on devices, and connecting to sockets.
    Write,
}

/// The file or directory of a rule.
#[derive(Clone, Copy, Debug)]
pub enum RuleTarget<'a> {
    /// Resolved when the rules are applied. A writable path must not contain symbolic links, which could have been changed
    /// since the policy was compiled.
    Path(&'a Path),
    /// An open descriptor, also with `O_PATH`; not a pipe or socket, which Landlock does not restrict.
    Fd(BorrowedFd<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct LandlockRule<'a> {
    pub target: RuleTarget<'a>,
    pub access: Access,
}

/// The complete allow list.
#[derive(Clone, Debug, Default)]
pub struct LandlockRules<'a> {
    /// Allows reading and executing everything.
    pub read_root: bool,
    pub rules: Vec<LandlockRule<'a>>,
    /// Denies connect and bind over TCP.
    pub no_tcp: bool,
}

/// The features of Landlock, each with the ABI version that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LandlockPart {
    /// Opening, making and removing files.
    Files,
    /// Renames and links between directories; without it they always fail.
    Moves,
    /// Truncating files without opening them for writing.
    Truncation,
    /// Ioctls on devices that are opened inside.
    DeviceControl,
    /// Abstract sockets of outside processes.
    AbstractSockets,
    /// Signals to outside processes.
    Signals,
    /// Connecting to sockets in the file system.
    SocketPaths,
}

impl LandlockPart {
    /// Every feature with its ABI version, oldest first.
    pub const ALL: [(Self, u32); 7] = [
        (Self::Files, 1),
        (Self::Moves, 2),
        (Self::Truncation, 3),
        (Self::DeviceControl, 5),
        (Self::AbstractSockets, 6),
        (Self::Signals, 6),
        (Self::SocketPaths, 9),
    ];

    /// The name in reports.
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

/// The result of applying the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LandlockStatus {
    /// The ABI version in use; 0 without Landlock, and then nothing is restricted.
    pub abi: u32,
    /// The features that are enforced.
    pub holds: Vec<LandlockPart>,
    /// The features that this kernel lacks.
    pub missing: Vec<LandlockPart>,
    /// Bits of the kernel errata that are known to be fixed.
    pub fixed_errata: u32,
    /// Paths that do not exist or cannot be reached.
    pub skipped: Vec<PathBuf>,
}

/// Restricts the calling thread and its descendants, as far as the kernel supports it.
pub fn restrict(rules: &LandlockRules) -> Result<LandlockStatus, StepError> {
    restrict_up_to(NEWEST, rules)
}

/// The ABI version of the kernel.
pub fn kernel_abi() -> io::Result<u32> {
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION) };
    u32::try_from(abi).map_err(|_| io::Error::last_os_error())
}

/// The oldest ABI that can be the only layer: it covers truncation.
pub const ALONE_ABI: u32 = 3;

/// The newest ABI that the rules below were written for.
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
            let root =
                LandlockRule { target: RuleTarget::Path(Path::new("/")), access: Access::Read };
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
    // The kernel has this version, so a refusal is an error and must not be ignored.
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
    match rule.target {
        RuleTarget::Fd(fd) => add(fd),
        RuleTarget::Path(path) => match open(path, rule.access) {
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

/// The access rights of the rule. The kernel rejects directory rights on a file.
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
