//! Runs the rounds of the benchmark.
//!
//! Every measurement gets a fresh server. The contestants take turns within each round, in reversed order every other
//! time, so that a changing machine load affects them equally; figures are medians over all turns.

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit};

use crate::contestant::Contestant;
use crate::failure::{Failure, Result};
use crate::options::Options;
use crate::results::Results;
use crate::rows::Group;
use crate::scene::{Readings, Scene};
use crate::scratch::Scratch;
use crate::warden::Warden;
use crate::{machine, report};

/// Enough for 500 processes with three descriptors each, and for the crowds where the hard limit can be raised.
const DESCRIPTORS: u64 = 65_536;

/// Runs the benchmark and reports.
pub fn run(options: &Options) -> ExitCode {
    match measure_and_report(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn measure_and_report(options: &Options) -> Result<()> {
    let groups = options.groups()?;
    let contestants = options.contestants()?;
    raise_descriptor_limit()?;
    let warden = Warden::start()?;
    let scratch = Scratch::create()?;
    let load_before = machine::load_average();
    let mut results = Results::new(groups, options.quickack());
    for round in 0..options.rounds() {
        run_round(options, &contestants, &warden, &scratch, round, &mut results);
    }
    report::write(options, &contestants, &results, &load_before)
}

fn run_round(
    options: &Options,
    contestants: &[Contestant],
    warden: &Warden,
    scratch: &Scratch,
    round: usize,
    results: &mut Results,
) {
    let groups: Vec<&Group> =
        results.groups.iter().copied().filter(|group| round < group.most_rounds).collect();
    for group in groups {
        let turns = (0..group.laps()).flat_map(|lap| in_turn(contestants, round + lap));
        for contestant in turns {
            eprint!(
                "\rround {} of {}: {} {}    ",
                round + 1,
                options.rounds(),
                group.name,
                contestant.seat.name()
            );
            let mut readings = Readings::default();
            let outcome = take_turn(options, contestant, warden, scratch, group, &mut readings);
            results.add(group, contestant.seat, readings, outcome.err());
        }
    }
    eprint!("\r{:60}\r", "");
}

/// The contestants, in reversed order every other time.
fn in_turn(contestants: &[Contestant], time: usize) -> Vec<&Contestant> {
    let mut order: Vec<&Contestant> = contestants.iter().collect();
    if time % 2 == 1 {
        order.reverse();
    }
    order
}

fn take_turn(
    options: &Options,
    contestant: &Contestant,
    warden: &Warden,
    scratch: &Scratch,
    group: &Group,
    readings: &mut Readings,
) -> Result<()> {
    let server = contestant.start(warden)?;
    let scene = Scene {
        contestant,
        server: &server,
        warden,
        scratch,
        quickack: options.quickack(),
        effort: options.effort(),
    };
    (group.measure)(&scene, readings)
}

/// Servers inherit the limit, so all have the same.
fn raise_descriptor_limit() -> Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let set = |current, maximum| {
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
    };
    let most = limit.maximum.unwrap_or(DESCRIPTORS);
    // Only a privileged process may raise the hard limit.
    if most < DESCRIPTORS && set(DESCRIPTORS, Some(DESCRIPTORS)).is_ok() {
        return Ok(());
    }
    let wanted = most.min(DESCRIPTORS);
    if limit.current.is_some_and(|current| current < wanted) {
        set(wanted, limit.maximum).map_err(|error| {
            Failure::new(format!("could not raise the descriptor limit: {error}"))
        })?;
    }
    Ok(())
}
