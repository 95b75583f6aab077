//! What a view asks for, looked up on the host: every place under its real path.
//!
//! A link that lies where a sandbox can write may have been made by one, so it is *soft*: it can take access away, but
//! never give any, and it cannot make us hide what every program needs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::kernel_mounts::{Interface, KernelMounts};
use super::plan::Ground;
use super::walk::{self, End, Found, Identity, Link, Walk, walk};
use super::{Base, Place, PlaceAccess, View};
use crate::linux::sandbox::step::{Step, StepError};

/// Everything that a view asks for, by real path.
#[derive(Debug, Default)]
pub struct Wishes {
    pub places: BTreeMap<PathBuf, Wish>,
    pub links: BTreeMap<PathBuf, LinkWish>,
}

#[derive(Debug)]
pub struct Wish {
    pub want: Want,
    /// What to mount, if something is to be mounted.
    pub source: Option<Found>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    Writable,
    /// `may_widen` is whether it may show what would be hidden otherwise.
    ReadOnly {
        may_widen: bool,
    },
    Denied,
    Empty,
}

#[derive(Debug)]
pub struct LinkWish {
    pub text: PathBuf,
    /// It shall keep its meaning where the sandbox can write.
    pub keep: bool,
    /// It shall be there where only places are.
    pub show: bool,
}

/// Looks up all paths of a view; mounts nothing.
pub fn look_up(
    host: &OwnedFd,
    view: &View,
    kernel: &KernelMounts,
) -> Result<(Ground, Wishes), StepError> {
    let soft = SoftGround::look_up(host, view).step("look up where sandboxes write")?;
    let mut wishes = Wishes::default();
    for place in &view.places {
        wishes.add_place(host, place, view, &soft, kernel)?;
    }
    for path in &view.masked {
        let found = walk(host, path).step("look up a masked path")?;
        wishes.add_masked(found, &soft);
    }
    for path in &view.links {
        for link in walk(host, path).step("look up a link")?.links {
            let show = !soft.holds(&link);
            wishes.add_link(link, false, show);
        }
    }
    wishes.add_interfaces(host, kernel).step("look up a mount of the kernel's")?;
    let ground = wishes.take_root(view.base);
    Ok((ground, wishes))
}

impl Wishes {
    fn add_place(
        &mut self,
        host: &OwnedFd,
        place: &Place,
        view: &View,
        soft: &SoftGround,
        kernel: &KernelMounts,
    ) -> Result<(), StepError> {
        match place.access {
            PlaceAccess::Writable => {
                let found = walk(host, &place.path).step("look up a writable place")?;
                self.add_writable(found, kernel).step("look up a writable place")
            }
            PlaceAccess::ReadOnly => {
                let found = walk(host, &place.path).step("look up a read-only place")?;
                if matches!(found.end, End::Missing) && view.needed.contains(&place.path) {
                    return Err(Errno::NOENT).step("look up a needed place");
                }
                self.add_read_only(found, soft, kernel);
                Ok(())
            }
            PlaceAccess::Denied => {
                let found = walk(host, &place.path).step("look up a denied place")?;
                if matches!(found.end, End::Missing) && view.needed.contains(&place.path) {
                    return Err(Errno::NOENT).step("look up a needed place");
                }
                self.add_denied(found, soft).step("look up a denied place")
            }
        }
    }

    fn add_writable(&mut self, found: Walk, kernel: &KernelMounts) -> io::Result<()> {
        // Its links were followed and judged where owners can be told apart; one that is here now is new.
        if !found.links.is_empty() || matches!(found.end, End::Magic) {
            return Err(Errno::LOOP.into());
        }
        let End::Found(source) = found.end else { return Ok(()) };
        match kernel.interface(source.identity) {
            None => self.add(found.path, Want::Writable, Some(source)),
            Some(Interface::Frozen) => {
                self.add(found.path, Want::ReadOnly { may_widen: true }, Some(source));
            }
            Some(Interface::Hidden) => {}
        }
        Ok(())
    }

    fn add_read_only(&mut self, found: Walk, soft: &SoftGround, kernel: &KernelMounts) {
        let is_soft = found.links.iter().any(|link| soft.holds(link));
        for link in found.links {
            self.add_link(link, true, !is_soft);
        }
        match found.end {
            End::Found(source) if kernel.interface(source.identity) == Some(Interface::Hidden) => {}
            End::Found(source) => {
                self.add(found.path, Want::ReadOnly { may_widen: !is_soft }, Some(source));
            }
            // Whoever can make the directory searchable must not be able to.
            End::Hidden => self.add(found.path, Want::ReadOnly { may_widen: false }, None),
            End::Missing | End::Magic => {}
        }
    }

    fn add_denied(&mut self, found: Walk, soft: &SoftGround) -> io::Result<()> {
        let first_soft = found.links.iter().find(|link| soft.holds(link)).map(|link| &link.at);
        let is_found = matches!(found.end, End::Found(_));
        if let Some(link) = first_soft
            && !(is_found && soft.contains(&found.path))
        {
            // It leads out of where sandboxes write: its name is denied, and what it names has a policy of its own.
            self.add(link.clone(), Want::Denied, None);
            return Ok(());
        }
        for link in found.links {
            self.add_link(link, true, false);
        }
        match found.end {
            End::Found(_) | End::Hidden => self.add(found.path, Want::Denied, None),
            End::Missing => {}
            End::Magic => return Err(Errno::LOOP.into()),
        }
        Ok(())
    }

    fn add_masked(&mut self, found: Walk, soft: &SoftGround) {
        let is_soft = found.links.iter().any(|link| soft.holds(link));
        let is_there = matches!(found.end, End::Found(_) | End::Hidden);
        if is_there && (!is_soft || soft.contains(&found.path)) {
            self.add(found.path, Want::Empty, None);
        }
    }

    /// Files of the kernel's stay as they are even where everything is writable.
    fn add_interfaces(&mut self, host: &OwnedFd, kernel: &KernelMounts) -> io::Result<()> {
        for (path, interface) in &kernel.mounts {
            // Elsewhere it is read-only anyway.
            if *interface == Interface::Frozen && !self.is_in_writable(path) {
                continue;
            }
            let found = walk(host, path)?;
            if !found.links.is_empty() {
                continue;
            }
            let frozen = Want::ReadOnly { may_widen: false };
            match (found.end, interface) {
                // Something else may be mounted over it.
                (End::Found(top), _) if kernel.interface(top.identity) != Some(*interface) => {}
                (End::Found(_), Interface::Hidden) => self.add(found.path, Want::Denied, None),
                (End::Found(_), Interface::Frozen) => self.add(found.path, frozen, None),
                (End::Hidden, _) => self.add(found.path, frozen, None),
                (End::Missing | End::Magic, _) => {}
            }
        }
        Ok(())
    }

    fn is_in_writable(&self, path: &Path) -> bool {
        let is_writable = |wish: &Wish| wish.want == Want::Writable;
        path.ancestors().any(|around| self.places.get(around).is_some_and(is_writable))
    }

    fn add(&mut self, path: PathBuf, want: Want, source: Option<Found>) {
        let wish = Wish { want, source };
        match self.places.get_mut(&path) {
            Some(other) if rank(other.want) >= rank(want) => {}
            Some(other) => *other = wish,
            None => drop(self.places.insert(path, wish)),
        }
    }

    fn add_link(&mut self, link: Link, keep: bool, show: bool) {
        let wish = self.links.entry(link.at).or_insert(LinkWish { text: link.text, keep, show });
        wish.keep |= keep;
        wish.show |= show;
    }

    /// What is said of the root itself is said of the base.
    fn take_root(&mut self, base: Base) -> Ground {
        match (self.places.remove(Path::new("/")).map(|wish| wish.want), base) {
            (Some(Want::Denied), _) => Ground::Scaffold,
            (Some(Want::Writable), _) => Ground::Writable,
            (Some(Want::ReadOnly { may_widen: true }), _) | (_, Base::Everything) => {
                Ground::ReadOnly
            }
            (_, Base::Nothing) => Ground::Scaffold,
        }
    }
}

/// Which wish wins at the same path.
fn rank(want: Want) -> u8 {
    match want {
        Want::ReadOnly { may_widen: false } => 0,
        Want::ReadOnly { may_widen: true } => 1,
        Want::Empty => 2,
        Want::Writable => 3,
        Want::Denied => 4,
    }
}

/// Where sandboxes can write, this one included.
pub struct SoftGround {
    paths: Vec<PathBuf>,
    identities: Vec<Identity>,
    me: u32,
}

impl SoftGround {
    fn look_up(host: &OwnedFd, view: &View) -> io::Result<Self> {
        let own = view.places.iter().filter(|place| place.access == PlaceAccess::Writable);
        let paths = own.map(|place| &place.path).chain(&view.handed_out).cloned().collect();
        Self::new(host, paths)
    }

    pub fn new(host: &OwnedFd, paths: Vec<PathBuf>) -> io::Result<Self> {
        let mut identities = Vec::new();
        for path in &paths {
            identities.extend(walk::identity_at(host, path)?);
        }
        Ok(Self { paths, identities, me: rustix::process::geteuid().as_raw() })
    }

    /// Whether somebody else may have made the link.
    fn holds(&self, link: &Link) -> bool {
        self.encloses(link) || (link.in_shared_directory && link.owner != self.me)
    }

    /// Whether the link lies where sandboxes can write, under whatever name that is reached.
    pub fn encloses(&self, link: &Link) -> bool {
        self.contains(&link.at) || link.inside.iter().any(|dir| self.identities.contains(dir))
    }

    fn contains(&self, path: &Path) -> bool {
        self.paths.iter().any(|soft| path.starts_with(soft))
    }
}
