//! Resolves the paths of a rootfs spec on the host: every rule under its real path.
//!
//! A link in a directory that a sandbox can write may have been created by a sandbox, so it is *soft*: it can remove
//! access but never grant any, and it cannot hide files that every program needs.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::kernel_mounts::{Interface, KernelMounts};
use super::plan::BaseMount;
use super::walk::{End, Found, Identity, Link, Walk, Walker};
use super::{Base, MountAccess, MountRule, RootfsSpec};
use crate::linux::step::{Step, StepError};
use crate::work_clock::WorkClock;

/// The step that fails when a policy takes too long.
pub const TOO_MUCH: &str = "make what the policy names";

/// All rules by real path.
#[derive(Debug, Default)]
pub struct ResolvedRules {
    pub places: BTreeMap<PathBuf, Rule>,
    pub links: BTreeMap<PathBuf, LinkRule>,
    /// Links that a sandbox may have created, and where they lead.
    untrusted_links: Vec<(PathBuf, PathBuf)>,
}

#[derive(Debug)]
pub struct Rule {
    pub access: Access,
    /// The file to mount, if any.
    pub source: Option<Found>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Writable,
    /// `may_widen`: whether the rule may show files that would be hidden otherwise.
    ReadOnly {
        may_widen: bool,
    },
    Denied,
    Empty,
}

#[derive(Debug)]
pub struct LinkRule {
    pub text: PathBuf,
    /// Whether its target must not change where the sandbox can write.
    pub keep: bool,
    /// Whether it is created in a scaffold.
    pub show: bool,
}

/// Resolves all paths of a spec; mounts nothing.
pub fn look_up(
    host: &OwnedFd,
    view: &RootfsSpec,
    kernel: &KernelMounts,
    clock: &WorkClock,
) -> Result<(BaseMount, ResolvedRules), StepError> {
    let mut walker = Walker::new(host).step("look up where sandboxes write")?;
    let soft = SandboxWritable::look_up(&mut walker, view).step("look up where sandboxes write")?;
    let mut rules = ResolvedRules::default();
    let needed = view.needed.iter().map(PathBuf::as_path).collect();
    for place in &view.places {
        clock.check().step(TOO_MUCH)?;
        rules.add_place(&mut walker, place, &needed, &soft, kernel)?;
    }
    for path in &view.masked {
        let found = walker.walk(path).step("look up a masked path")?;
        rules.add_masked(found, &soft);
    }
    for path in &view.links {
        for link in walker.walk(path).step("look up a link")?.links {
            let show = !soft.holds(&link);
            rules.add_link(link, false, show);
        }
    }
    rules.show_harmless_links();
    rules.add_interfaces(&mut walker, kernel).step("look up a mount of the kernel's")?;
    for path in &view.sealed {
        if rules.denies_all_of(path) {
            continue;
        }
        let found = walker.walk(path).step("look up a sealed place")?;
        rules.seal(&found);
    }
    let base_mount = rules.take_root(view.base);
    Ok((base_mount, rules))
}

impl ResolvedRules {
    fn add_place(
        &mut self,
        walker: &mut Walker,
        place: &MountRule,
        needed: &HashSet<&Path>,
        soft: &SandboxWritable,
        kernel: &KernelMounts,
    ) -> Result<(), StepError> {
        match place.access {
            MountAccess::Writable => {
                let found = walker.walk(&place.path).step("look up a writable place")?;
                self.add_writable(found, kernel).step("look up a writable place")
            }
            MountAccess::ReadOnly => {
                let found = walker.walk(&place.path).step("look up a read-only place")?;
                if matches!(found.end, End::Missing) && needed.contains(place.path.as_path()) {
                    return Err(Errno::NOENT).step("look up a needed place");
                }
                self.add_read_only(found, soft, kernel);
                Ok(())
            }
            MountAccess::Denied => {
                let found = walker.walk(&place.path).step("look up a denied place")?;
                if matches!(found.end, End::Missing) && needed.contains(place.path.as_path()) {
                    return Err(Errno::NOENT).step("look up a needed place");
                }
                self.add_denied(found, soft).step("look up a denied place")
            }
        }
    }

    fn add_writable(&mut self, found: Walk, kernel: &KernelMounts) -> io::Result<()> {
        // The server resolved all links and checked their owners, so a link that is found here is new.
        if !found.links.is_empty() || matches!(found.end, End::Magic) {
            return Err(Errno::LOOP.into());
        }
        let End::Found(source) = found.end else { return Ok(()) };
        match kernel.interface(source.identity) {
            None => self.add(found.path, Access::Writable, Some(source)),
            Some(Interface::Frozen) => {
                self.add(found.path, Access::ReadOnly { may_widen: true }, Some(source));
            }
            Some(Interface::Hidden) => {}
        }
        Ok(())
    }

    fn add_read_only(&mut self, found: Walk, soft: &SandboxWritable, kernel: &KernelMounts) {
        let is_soft = found.links.iter().any(|link| soft.holds(link));
        if is_soft {
            let links = found.links.iter().map(|link| (link.at.clone(), found.path.clone()));
            self.untrusted_links.extend(links);
        }
        for link in found.links {
            self.add_link(link, true, !is_soft);
        }
        match found.end {
            End::Found(source) if kernel.interface(source.identity) == Some(Interface::Hidden) => {}
            End::Found(source) => {
                self.add(found.path, Access::ReadOnly { may_widen: !is_soft }, Some(source));
            }
            // The owner could make the directory searchable, so it becomes read-only.
            End::Hidden => self.add(found.path, Access::ReadOnly { may_widen: false }, None),
            End::Missing | End::Magic => {}
        }
    }

    fn add_denied(&mut self, found: Walk, soft: &SandboxWritable) -> io::Result<()> {
        let first_soft = found.links.iter().find(|link| soft.holds(link)).map(|link| &link.at);
        let is_found = matches!(found.end, End::Found(_));
        if let Some(link) = first_soft
            && !(is_found && soft.contains(&found.path))
        {
            // The link leads out of sandbox-writable paths: deny only its name; its target has its own rule.
            self.add(link.clone(), Access::Denied, None);
            return Ok(());
        }
        for link in found.links {
            self.add_link(link, true, false);
        }
        match found.end {
            End::Found(_) | End::Hidden => self.add(found.path, Access::Denied, None),
            End::Missing => {}
            End::Magic => return Err(Errno::LOOP.into()),
        }
        Ok(())
    }

    fn add_masked(&mut self, found: Walk, soft: &SandboxWritable) {
        let is_soft = found.links.iter().any(|link| soft.holds(link));
        let is_there = matches!(found.end, End::Found(_) | End::Hidden);
        if is_there && (!is_soft || soft.contains(&found.path)) {
            self.add(found.path, Access::Empty, None);
        }
    }

    /// Keeps kernel interfaces read-only or hidden also below writable paths.
    fn add_interfaces(&mut self, walker: &mut Walker, kernel: &KernelMounts) -> io::Result<()> {
        for (path, interface) in &kernel.mounts {
            // Elsewhere it is read-only already.
            if *interface == Interface::Frozen && !self.is_in_writable(path) {
                continue;
            }
            let found = walker.walk(path)?;
            if !found.links.is_empty() {
                continue;
            }
            let frozen = Access::ReadOnly { may_widen: false };
            match (found.end, interface) {
                // Another file system may be mounted over it.
                (End::Found(top), _) if kernel.interface(top.identity) != Some(*interface) => {}
                (End::Found(_), Interface::Hidden) => self.add(found.path, Access::Denied, None),
                (End::Found(_), Interface::Frozen) => self.add(found.path, frozen, None),
                (End::Hidden, _) => self.add(found.path, frozen, None),
                (End::Missing | End::Magic, _) => {}
            }
        }
        Ok(())
    }

    /// Denies the path and removes all rules below.
    fn seal(&mut self, found: &Walk) {
        let is_there = matches!(found.end, End::Found(_) | End::Hidden);
        if is_there && found.path != Path::new("/") {
            self.places.retain(|path, _| !path.starts_with(&found.path));
            self.links.retain(|path, _| !path.starts_with(&found.path));
            self.add(found.path.clone(), Access::Denied, None);
        }
    }

    /// Whether the path is inside a denied one and no rule applies below it.
    fn denies_all_of(&self, path: &Path) -> bool {
        let is_shown = self.places.range(path.to_owned()..).next();
        let around = path.ancestors().skip(1).find_map(|around| self.places.get(around));
        !is_shown.is_some_and(|(inner, _)| inner.starts_with(path))
            && around.is_some_and(|rule| rule.access == Access::Denied)
    }

    fn is_in_writable(&self, path: &Path) -> bool {
        let is_writable = |rule: &Rule| rule.access == Access::Writable;
        path.ancestors().any(|around| self.places.get(around).is_some_and(is_writable))
    }

    fn add(&mut self, path: PathBuf, access: Access, source: Option<Found>) {
        let rule = Rule { access, source };
        match self.places.get_mut(&path) {
            Some(other) if rank(other.access) >= rank(access) => {}
            Some(other) => *other = rule,
            None => drop(self.places.insert(path, rule)),
        }
    }

    fn add_link(&mut self, link: Link, keep: bool, show: bool) {
        let rule = self.links.entry(link.at).or_insert(LinkRule { text: link.text, keep, show });
        rule.keep |= keep;
        rule.show |= show;
    }

    /// Shows the links that a sandbox may have created where their target is visible anyway, such as `/bin` beside `/usr`.
    fn show_harmless_links(&mut self) {
        for (link, target) in std::mem::take(&mut self.untrusted_links) {
            if self.is_visible(&target)
                && let Some(rule) = self.links.get_mut(&link)
            {
                rule.show = true;
            }
        }
    }

    /// Whether the policy itself shows a real path, without any link that a sandbox may have created.
    fn is_visible(&self, path: &Path) -> bool {
        let decides = |rule: &&Rule| rule.access != Access::ReadOnly { may_widen: false };
        let around = path.ancestors().find_map(|path| self.places.get(path).filter(decides));
        let visible = [Access::ReadOnly { may_widen: true }, Access::Writable];
        around.is_some_and(|rule| visible.contains(&rule.access))
    }

    /// Removes the rule of `/` and applies it to the base.
    fn take_root(&mut self, base: Base) -> BaseMount {
        match (self.places.remove(Path::new("/")).map(|rule| rule.access), base) {
            (Some(Access::Denied), _) => BaseMount::Scaffold,
            (Some(Access::Writable), _) => BaseMount::Writable,
            (Some(Access::ReadOnly { may_widen: true }), _) | (_, Base::Everything) => {
                BaseMount::ReadOnly
            }
            (_, Base::Nothing) => BaseMount::Scaffold,
        }
    }
}

/// The precedence of rules at the same path.
fn rank(access: Access) -> u8 {
    match access {
        Access::ReadOnly { may_widen: false } => 0,
        Access::ReadOnly { may_widen: true } => 1,
        Access::Empty => 2,
        Access::Writable => 3,
        Access::Denied => 4,
    }
}

/// The paths that sandboxes can write, this one included.
pub struct SandboxWritable {
    paths: Vec<PathBuf>,
    identities: Vec<Identity>,
    me: u32,
}

impl SandboxWritable {
    fn look_up(walker: &mut Walker, view: &RootfsSpec) -> io::Result<Self> {
        let own = view.places.iter().filter(|place| place.access == MountAccess::Writable);
        let own: Vec<_> = own.map(|place| &place.path).collect();
        // Most often a sandbox writes where one before it did.
        let others = view.handed_out.iter().filter(|path| !own.contains(path));
        Self::new(walker, own.iter().copied().chain(others).cloned().collect())
    }

    pub fn new(walker: &mut Walker, paths: Vec<PathBuf>) -> io::Result<Self> {
        let mut identities = Vec::new();
        for path in &paths {
            identities.extend(walker.identity_at(path)?);
        }
        Ok(Self { paths, identities, me: rustix::process::geteuid().as_raw() })
    }

    /// Whether a sandbox or another user may have created the link.
    fn holds(&self, link: &Link) -> bool {
        self.encloses(link) || (link.in_shared_directory && link.owner != self.me)
    }

    /// Whether the link is in a sandbox-writable directory, under any name.
    pub fn encloses(&self, link: &Link) -> bool {
        self.contains(&link.at) || link.inside.iter().any(|dir| self.identities.contains(dir))
    }

    fn contains(&self, path: &Path) -> bool {
        self.paths.iter().any(|soft| path.starts_with(soft))
    }
}
