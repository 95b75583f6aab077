//! The lists of paths that the enforcement uses.

use super::*;
use crate::policy::ProtectedName;

const POLICY: &str = "
    read root
    write /ws/sub/deep
    write /ws
    read /ws/docs
    read /opt
    deny /ws/private
    deny /home
    read /home/me
    write /ws/.git/hooks
    read glob:*
";

fn paths(names: &[&'static str]) -> Vec<&'static Path> {
    names.iter().map(|name| Path::new(*name)).collect()
}

#[test]
fn writable_roots_come_by_depth() {
    assert_eq!(rules(POLICY).writable_roots(), paths(&["/ws", "/ws/.git/hooks", "/ws/sub/deep"]));
}

#[test]
fn carve_outs_are_what_is_read_only_inside_of_writable_roots() {
    let rules = rules(POLICY);
    let carved: Vec<_> = rules.read_only_carve_outs();
    let first = ["/ws/.agents", "/ws/.aws", "/ws/.codex", "/ws/.git", "/ws/docs"];
    assert_eq!(carved[..5], paths(&first));
    assert_eq!(carved[5..].len(), 2 * 4, "the names below the two other roots");
    assert!(carved.contains(&Path::new("/ws/sub/deep/.aws")));
}

#[test]
fn readable_roots_are_what_is_read_only_elsewhere() {
    // The entry for `/opt` has the access of the root already.
    assert_eq!(rules(POLICY).readable_roots(), paths(&["/", "/home/me"]));
}

#[test]
fn denied_paths_come_by_depth() {
    assert_eq!(rules(POLICY).denied_paths(), paths(&["/home", "/ws/private"]));
}

#[test]
fn protected_names_know_their_root() {
    let rules = rules("write /ws\n write /ws/.git\n deny /ws/.aws");
    let held = rules.protected_names();
    let of = |root: &'static str| {
        let root = Path::new(root);
        let names = held.iter().filter(|protected| protected.root == root);
        names.map(|protected| protected.name).collect::<Vec<_>>()
    };
    assert_eq!(of("/ws"), [".agents", ".codex"]);
    assert!(of("/ws/.git").is_empty(), "a name that an entry opens is part of its root");
    assert_eq!(held[0], ProtectedName { root: Path::new("/ws"), name: ".agents" });
}

#[test]
fn the_full_disk_is_what_the_special_root_says() {
    for (script, access) in [
        ("read root", Access::Read),
        ("write root\n deny /x", Access::Write),
        ("write /", Access::None),
        ("read root\n deny /", Access::None),
    ] {
        assert_eq!(rules(script).full_disk(), access, "{script}");
    }
}

#[test]
fn readable_places_stay_where_a_pattern_could_be_opened_again() {
    let rules = rules("read root\n read /ws/a.env/open\n deny glob:/ws/*.env");
    assert_eq!(rules.readable_roots(), paths(&["/", "/ws/a.env/open"]));
}
