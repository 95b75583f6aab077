use std::fmt::Write;

use super::*;

/// Runs a script, one step per line, and compares the actions with `expected`.
fn check(script: &str, expected: &str) {
    let start = Instant::now();
    let mut now = start;
    let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut recovery = Recovery::new(RECOVERY_BUDGET, backoff);
    let mut told = String::new();
    for step in script.lines().map(str::trim).filter(|step| !step.is_empty()) {
        match step {
            "wanted" => recovery.handle_wanted(now, Resume::No),
            "wanted for a session" => recovery.handle_wanted(now, Resume::Yes),
            "connected" => recovery.handle_connected(),
            "lost" => recovery.handle_lost(now),
            "lost for good" => recovery.handle_lost_for_good(),
            "unreachable" => recovery.handle_failed(now, DialFailure::Unreachable, 0.0),
            "cut" => recovery.handle_failed(now, DialFailure::Cut, 0.0),
            "progress" => recovery.handle_progress(now),
            "attached" => recovery.handle_failed(now, DialFailure::StillAttached, 0.0),
            "refused" => recovery.handle_failed(now, DialFailure::Refused, 0.0),
            "pause" => {
                now = recovery.poll_timeout().expect("there is a pause");
                recovery.handle_timeout(now);
            }
            "unreachable until the end" => {
                while {
                    recovery.handle_failed(now, DialFailure::Unreachable, 0.5);
                    recovery.poll_timeout().is_some()
                } {
                    now = recovery.poll_timeout().expect("just seen");
                    recovery.handle_timeout(now);
                    recovery.poll_output();
                }
                assert_eq!(now, start + RECOVERY_BUDGET, "the last attempt begins with its end");
            }
            step => panic!("unknown step {step}"),
        }
        while let Some(action) = recovery.poll_output() {
            let at = now.duration_since(start).as_millis();
            match action {
                Action::Dial { resume: Resume::Yes, .. } => write!(told, "{at}:resume "),
                Action::Dial { resume: Resume::No, .. } => write!(told, "{at}:fresh "),
                Action::GiveUp => write!(told, "give-up "),
            }
            .expect("a string takes everything");
        }
    }
    assert_eq!(told.trim_end(), expected);
}

#[test]
fn an_attempt_that_brought_something_gives_the_next_one_all_the_time_again() {
    check(
        "wanted
         connected
         lost
         unreachable
         pause
         unreachable
         pause
         progress
         unreachable
         pause",
        "0:fresh 0:resume 100:resume 300:resume 400:resume",
    );
    let start = Instant::now();
    let mut recovery = Recovery::new(RECOVERY_BUDGET, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
    recovery.handle_lost(start);
    let late = start + RECOVERY_BUDGET;
    recovery.handle_progress(late);
    recovery.handle_failed(late, DialFailure::Unreachable, 0.0);
    assert_eq!(recovery.poll_timeout(), Some(late + FIRST_PAUSE));
}

#[test]
fn a_lost_link_is_dialled_again_at_once_and_then_after_growing_pauses() {
    check(
        "wanted
         connected
         lost
         unreachable
         pause
         unreachable
         pause
         connected
         lost
         unreachable
         pause",
        "0:fresh 0:resume 100:resume 300:resume 300:resume 400:resume",
    );
}

#[test]
fn a_session_that_is_still_attached_is_asked_for_again() {
    check(
        "wanted
         connected
         lost
         attached
         pause
         attached
         pause
         connected",
        "0:fresh 0:resume 100:resume 300:resume",
    );
}

#[test]
fn an_unknown_session_is_final_and_the_next_call_opens_a_fresh_one() {
    check(
        "wanted
         connected
         lost
         refused
         wanted
         connected",
        "0:fresh 0:resume give-up 0:fresh",
    );
}

#[test]
fn a_first_connection_that_cannot_be_made_is_reported_at_once() {
    check("wanted\nunreachable\nwanted", "0:fresh give-up 0:fresh");
}

#[test]
fn a_first_connection_to_a_session_that_another_client_holds_is_refused_at_once() {
    check("wanted for a session\nattached\nwanted for a session", "0:resume give-up 0:resume");
    check("wanted for a session\nunreachable", "0:resume give-up");
}

#[test]
fn recovery_ends_with_its_budget() {
    check("wanted\nconnected\nlost\nunreachable until the end", "0:fresh 0:resume give-up");
}

#[test]
fn a_link_that_cannot_be_resumed_gives_up_without_dialling() {
    check("wanted\nconnected\nlost for good\nwanted", "0:fresh give-up 0:fresh");
}

#[test]
fn concurrent_calls_share_one_connection_attempt() {
    check("wanted\nwanted\nwanted\nconnected\nwanted", "0:fresh");
    check("wanted\nconnected\nlost\nwanted\nunreachable\nwanted", "0:fresh 0:resume");
}

#[test]
fn a_first_connection_that_is_cut_is_made_three_times() {
    check("wanted\n cut\n pause\n cut\n pause\n connected", "0:fresh 100:fresh 300:fresh");
    check("wanted\n cut\n pause\n cut\n pause\n cut", "0:fresh 100:fresh 300:fresh give-up");
    check("wanted\n cut\n pause\n unreachable", "0:fresh 100:fresh give-up");
    check("wanted for a session\n cut\n pause\n connected", "0:resume 100:resume");
}
