use std::process::Command;

use super::*;

#[test]
fn a_dropped_cgroup_is_removed_after_its_last_member() {
    let Some(place) = Place::make() else { return };
    let parent = CgroupParent::divide(&place.0).unwrap();
    let group = parent.make_child(TreeTag::new(7), &CgroupLimits::default()).unwrap();
    let path = group.path.clone();
    let mut daemon = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    fs::write(path.join("cgroup.procs"), daemon.id().to_string()).unwrap();
    fs::create_dir(path.join("inner")).unwrap();
    assert_eq!(group.population(), 1);
    drop(group);
    parent.sweep();
    assert!(path.exists(), "the cgroup has a member");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    parent.sweep();
    assert!(!path.exists());
}

#[test]
fn a_cgroup_that_cannot_be_limited_is_removed() {
    let Some(place) = Place::make() else { return };
    let parent = CgroupParent::divide(&place.0).unwrap();
    // The kernel rejects a quota this large.
    let limits = CgroupLimits { cpu_percent: Some(u64::MAX / 100_000), ..CgroupLimits::default() };
    parent.make_child(TreeTag::new(8), &limits).unwrap_err();
    assert!(!place.0.join(remains::child_name(8)).exists());
}

/// A cgroup for one test, removed on drop.
struct Place(PathBuf);

impl Place {
    fn make() -> Option<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("exec-server-unit-test-{}-{count}", std::process::id());
        let path = mount_point().map(|root| root.join(name));
        let Some(path) = path.filter(|path| fs::create_dir(path).is_ok()) else {
            eprintln!("skipped, no cgroup (version 2) can be made here");
            return None;
        };
        Some(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        assert!(remains::remove(&self.0), "something is left");
    }
}
