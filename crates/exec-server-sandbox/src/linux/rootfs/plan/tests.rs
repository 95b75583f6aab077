use std::fmt::Write;

use super::super::resolved_rules::{LinkRule, Rule};
use super::*;

/// `w /ws` and so on, `l /link` for a link to keep; the answer is one line per action.
fn check(base: BaseMount, script: &str, expected: &str) {
    let mut wishes = ResolvedRules::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (what, path) = line.split_once(' ').unwrap();
        let access = match what {
            "w" => Access::Writable,
            "r" => Access::ReadOnly { may_widen: true },
            "s" => Access::ReadOnly { may_widen: false },
            "d" => Access::Denied,
            "e" => Access::Empty,
            "l" => {
                let link = LinkRule { text: "x".into(), keep: true, show: true };
                wishes.links.insert(path.into(), link);
                continue;
            }
            other => panic!("nothing is called {other}"),
        };
        wishes.places.insert(path.into(), Rule { access, source: None });
    }
    let mut answer = String::new();
    for (path, action) in plan(base, &wishes) {
        let what = match action {
            Action::Open { writable: true, target: Target::Same } => "writable",
            Action::Open { writable: true, target: Target::Made } => "made writable",
            Action::Open { writable: false, .. } => "made read-only",
            Action::Hide(Mask::Closed) => "closed",
            Action::Hide(Mask::Traversable) => "passage",
            Action::Hide(Mask::Empty) => "empty",
            Action::Hide(Mask::EmptyPassage) => "empty passage",
            Action::Pin => "pin",
            Action::PinLink => "pin link",
            Action::ShowLink => "link",
            Action::Freeze => "freeze",
        };
        writeln!(answer, "{} {what}", path.display()).unwrap();
    }
    let expected: Vec<_> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert_eq!(answer.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn carve_outs_are_pinned() {
    check(
        BaseMount::ReadOnly,
        "w /ws\n r /ws/.git\n r /ws/a/b/keep\n d /ws/a/c/key\n w /ws/a/more",
        "/ws writable
         /ws/.git freeze
         /ws/a pin
         /ws/a/b pin
         /ws/a/b/keep freeze
         /ws/a/c pin
         /ws/a/c/key closed",
    );
}

#[test]
fn what_changes_nothing_is_left_out() {
    check(
        BaseMount::ReadOnly,
        "r /usr\n w /a\n w /a/b/c\n d /x\n d /x/y\n e /x/z\n s /etc",
        "/a writable\n /x closed",
    );
}

#[test]
fn hidden_places_can_be_passed_to_open_ones() {
    check(
        BaseMount::ReadOnly,
        "d /x\n w /x/a/b\n r /x/c\n s /x/d\n e /run\n r /run/resolve\n d /xy",
        "/run empty passage
         /run/resolve made read-only
         /x passage
         /x/a/b made writable
         /x/c made read-only
         /xy closed",
    );
}

#[test]
fn nothing_is_made_step_by_step() {
    check(
        BaseMount::Scaffold,
        "r /usr\n r /usr/lib\n d /home\n w /home/u/ws\n r /home/u/ws/.git\n l /bin\n e /run\n s /etc",
        "/bin link
         /home/u/ws made writable
         /home/u/ws/.git freeze
         /usr made read-only",
    );
}

#[test]
fn links_are_pinned_only_where_they_could_be_replaced() {
    check(
        BaseMount::ReadOnly,
        "w /ws\n l /ws/a/link\n l /etc/link\n r /ws/r\n l /ws/r/link",
        "/ws writable
         /ws/a pin
         /ws/a/link pin link
         /ws/r freeze",
    );
}

#[test]
fn dev_and_proc_are_never_those_of_the_host() {
    check(
        BaseMount::Writable,
        "w /dev\n w /dev/kvm\n r /proc\n w /proc/sys\n d /proc/kcore\n w /dev/shm/a\n d /dev/shm/b\n s /sys",
        "/dev/shm/a made writable
         /proc/kcore closed
         /sys freeze",
    );
}
