//! Names of users and groups, from `/etc/passwd` and `/etc/group`.
//!
//! Invariant: a lookup is a map access; each file is checked at most once per second and read again only if it changed.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// A listing looks up one name per entry, so a change of the file is noticed only after this time.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The name of a user; none if `/etc/passwd` has no such user.
pub fn user_name(uid: u32) -> Option<String> {
    static USERS: Mutex<Option<Names>> = Mutex::new(None);
    look_up(&USERS, Path::new("/etc/passwd"), uid)
}

/// The name of a group; none if `/etc/group` has no such group.
pub fn group_name(gid: u32) -> Option<String> {
    static GROUPS: Mutex<Option<Names>> = Mutex::new(None);
    look_up(&GROUPS, Path::new("/etc/group"), gid)
}

struct Names {
    by_id: HashMap<u32, String>,
    checked: Instant,
    modified: Option<SystemTime>,
}

fn look_up(names: &Mutex<Option<Names>>, file: &Path, id: u32) -> Option<String> {
    let mut names = names.lock().expect("no holder panics");
    let is_fresh = names.as_ref().is_some_and(|names| names.checked.elapsed() < CHECK_EVERY);
    if !is_fresh {
        let modified = fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        match names.as_mut().filter(|names| names.modified == modified) {
            Some(names) => names.checked = Instant::now(),
            None => {
                let text = fs::read(file).unwrap_or_default();
                let by_id = parse(&String::from_utf8_lossy(&text));
                *names = Some(Names { by_id, checked: Instant::now(), modified });
            }
        }
    }
    names.as_ref()?.by_id.get(&id).cloned()
}

/// Lines of `NAME:PASSWORD:ID:…`; the first line with an id wins.
fn parse(text: &str) -> HashMap<u32, String> {
    let mut by_id = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next())
            && let Ok(id) = id.parse()
            && !name.is_empty()
        {
            by_id.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    by_id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_with_an_id_gives_its_name() {
        let names = parse(
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:\n\n#c\nbad\n:x:7:\na:x:b:\nu:x:1000:\n",
        );
        assert_eq!(names.get(&0).map(String::as_str), Some("root"));
        assert_eq!(names.get(&1000).map(String::as_str), Some("u"));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwd");
        let names = Mutex::new(None);
        assert_eq!(look_up(&names, &file, 5), None);
        fs::write(&file, "five:x:5:5::/:/bin/sh\n").unwrap();
        names.lock().unwrap().as_mut().unwrap().checked = Instant::now() - 2 * CHECK_EVERY;
        assert_eq!(look_up(&names, &file, 5).as_deref(), Some("five"));
    }
}
