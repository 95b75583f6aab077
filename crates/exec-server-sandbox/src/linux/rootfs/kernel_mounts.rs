//! Mounts of kernel interfaces such as sysfs and cgroup.
//!
//! Root can write to many of them without any capability, so they stay read-only even below a writable path. Those that
//! show other processes are hidden.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::walk::Identity;

/// The treatment of a kernel interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    Frozen,
    Hidden,
}

/// The kernel interfaces outside of `/dev` and `/proc`, which are replaced.
pub struct KernelMounts {
    pub mounts: Vec<(PathBuf, Interface)>,
    devices: BTreeMap<u64, Interface>,
}

/// About 200 mounts.
const USUAL_BYTES: usize = 32 << 10;

impl KernelMounts {
    pub fn read() -> io::Result<Self> {
        // The kernel lists the mounts again for each read, so one read is to suffice.
        let mut mounts = Vec::with_capacity(USUAL_BYTES);
        File::open("/proc/self/mountinfo")?.read_to_end(&mut mounts)?;
        Ok(Self::parse(&mounts))
    }

    /// The treatment of a file, by its file system.
    pub fn interface(&self, (device, _): Identity) -> Option<Interface> {
        self.devices.get(&device).copied()
    }

    fn parse(mountinfo: &[u8]) -> Self {
        let mut all = Self { mounts: Vec::new(), devices: BTreeMap::new() };
        for line in mountinfo.split(|byte| *byte == b'\n') {
            let Some((device, path, interface)) = parse_line(line) else { continue };
            all.devices.insert(device, interface);
            let replaced = ["/dev", "/proc"].map(Path::new);
            if !replaced.iter().any(|replaced| path.starts_with(replaced)) {
                all.mounts.push((path, interface));
            }
        }
        all
    }
}

fn interface(file_system: &[u8]) -> Option<Interface> {
    match file_system {
        b"proc" | b"mqueue" | b"binder" => Some(Interface::Hidden),
        b"binfmt_misc" | b"bpf" | b"cgroup" | b"cgroup2" | b"configfs" | b"cpuset" | b"debugfs"
        | b"devpts" | b"devtmpfs" | b"efivarfs" | b"functionfs" | b"fusectl" | b"gadgetfs"
        | b"hugetlbfs" | b"nfsd" | b"nsfs" | b"ocfs2_dlmfs" | b"openpromfs" | b"pstore"
        | b"resctrl" | b"rpc_pipefs" | b"s390_hypfs" | b"securityfs" | b"selinuxfs"
        | b"smackfs" | b"spufs" | b"sysfs" | b"tracefs" | b"usbfs" | b"xenfs" => {
            Some(Interface::Frozen)
        }
        _ => None,
    }
}

/// `36 35 98:0 /root /mount/point options [optional …] - type source options`
fn parse_line(line: &[u8]) -> Option<(u64, PathBuf, Interface)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let path = fields.nth(1)?;
    let kind = interface(fields.skip_while(|field| *field != b"-").nth(1)?)?;
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some((device, OsString::from_vec(unescape(path)).into(), kind))
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        rest = after;
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if *first == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => plain.push(*first),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_interfaces_are_distinguished_from_files() {
        let all = KernelMounts::parse(
            b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
              23 27 0:22 / /sys rw shared:7 - sysfs sysfs rw\n\
              27 1 254:0 / / rw - ext4 /dev/vda rw\n\
              28 27 0:21 / /srv/a\\040b\\134/proc rw master:1 shared:2 - proc none rw\n\
              nonsense\n",
        );
        let expected = [
            (PathBuf::from("/sys"), Interface::Frozen),
            (PathBuf::from("/srv/a b\\/proc"), Interface::Hidden),
        ];
        assert_eq!(all.mounts, expected);
        assert_eq!(all.interface((rustix::fs::makedev(0, 21), 1)), Some(Interface::Hidden));
        assert_eq!(all.interface((rustix::fs::makedev(254, 0), 1)), None);
    }
}
