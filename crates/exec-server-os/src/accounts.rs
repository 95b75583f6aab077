//! Accounts of this machine, from `/etc/passwd` and `/etc/group`.
//!
//! The files are read for every lookup, so that a new account can be used at once.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A user with groups, home and shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name in `/etc/passwd`.
    pub name: String,
    /// User and groups of its processes.
    pub credentials: Credentials,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: PathBuf,
}

/// User and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective and saved user id.
    pub uid: u32,
    /// Real, effective and saved group id.
    pub gid: u32,
    /// The supplementary groups, with `gid` among them.
    pub groups: Vec<u32>,
}

impl Account {
    /// The account with this name, or else with this number as its user id. May block.
    pub fn find(user: &str) -> io::Result<Option<Self>> {
        Self::find_in(user, Path::new("/etc/passwd"), Path::new("/etc/group"))
    }

    fn find_in(user: &str, users: &Path, groups: &Path) -> io::Result<Option<Self>> {
        let users = read(users)?;
        let Some(mut account) = parse_user(&users, user) else { return Ok(None) };
        add_groups(&mut account, &read(groups)?);
        Ok(Some(account))
    }

    /// The variables that describe a user to its programs.
    pub fn variables(&self) -> [(&'static str, &std::ffi::OsStr); 4] {
        let name = self.name.as_ref();
        [
            ("HOME", self.home.as_os_str()),
            ("USER", name),
            ("LOGNAME", name),
            ("SHELL", self.shell.as_os_str()),
        ]
    }
}

/// The text of a file; a machine without the file has no accounts.
fn read(file: &Path) -> io::Result<String> {
    match std::fs::read(file) {
        Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Lines of `NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL`; a name wins over a number.
fn parse_user(text: &str, wanted: &str) -> Option<Account> {
    let number = wanted.parse::<u32>().ok().filter(|_| wanted.bytes().all(|b| b.is_ascii_digit()));
    let accounts = || text.lines().filter_map(parse_line);
    let by_name = accounts().find(|account| account.name == wanted);
    by_name.or_else(|| accounts().find(|account| Some(account.credentials.uid) == number))
}

fn parse_line(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
    let or =
        |text: &str, default: &str| PathBuf::from(if text.is_empty() { default } else { text });
    let is_name = !name.is_empty() && !name.starts_with(['#', '+', '-']);
    let (uid, gid) = (id(uid)?, id(gid)?);
    is_name.then(|| Account {
        name: name.to_owned(),
        credentials: Credentials { uid, gid, groups: vec![gid] },
        home: or(home, "/"),
        shell: or(shell, "/bin/sh"),
    })
}

/// The largest number stands for no id in system calls.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

/// Lines of `NAME:PASSWORD:GID:MEMBER,MEMBER…`.
fn add_groups(account: &mut Account, text: &str) {
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else { continue };
        if let Some(gid) = id(gid)
            && members.split(',').any(|member| member == account.name)
            && !account.credentials.groups.contains(&gid)
        {
            account.credentials.groups.push(gid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:,,,:/home/ann:\n\
                         # comment\nbad:x:y:1:::\nshort:x:5:5\n+nis:x:7:7:::\n1000:x:2000:2000::/n:/bin/sh\n\
                         nogroup:x:4294967295:1:::\nbob:x:1001:100::/home/bob:/bin/zsh\n";
    const GROUPS: &str = "root:x:0:\nann:x:1000:\nvideo:x:44:bob,ann\ndocker:x:999:bob\nbroken:x\nodd:x:z:ann\n\
                          again:x:44:ann\nusers:x:100:bob\n";

    fn find(user: &str) -> Option<Account> {
        let dir = tempfile::tempdir().unwrap();
        let (users, groups) = (dir.path().join("passwd"), dir.path().join("group"));
        std::fs::write(&users, USERS).unwrap();
        std::fs::write(&groups, GROUPS).unwrap();
        Account::find_in(user, &users, &groups).unwrap()
    }

    #[test]
    fn an_account_has_its_groups_home_and_shell() {
        let ann = find("ann").unwrap();
        assert_eq!(ann.credentials, Credentials { uid: 1000, gid: 1000, groups: vec![1000, 44] });
        assert_eq!((ann.home, ann.shell), ("/home/ann".into(), "/bin/sh".into()));
        let bob = find("1001").unwrap();
        assert_eq!(bob.name, "bob");
        assert_eq!(bob.credentials.groups, [100, 44, 999]);
        assert_eq!(bob.shell, PathBuf::from("/bin/zsh"));
    }

    #[test]
    fn a_name_wins_over_a_number() {
        assert_eq!(find("1000").unwrap().credentials.uid, 2000);
    }

    #[test]
    fn other_lines_and_names_are_no_accounts() {
        for user in
            ["", "Ann", "bad", "short", "+nis", "nogroup", "#", "# comment", "+0", "7", "-1"]
        {
            assert_eq!(find(user), None, "{user}");
        }
    }

    #[test]
    fn a_machine_without_the_files_has_no_accounts() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("passwd");
        assert_eq!(Account::find_in("root", &missing, &missing).unwrap(), None);
    }
}
