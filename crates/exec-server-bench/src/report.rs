//! Writes the report: the table, and the conditions of the measurement.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::contestant::Contestant;
use super::failure::{Failure, Result};
use super::machine::{self, Machine};
use super::options::Options;
use super::results::Results;
use super::scene::Effort;
use super::table;
use super::websocket::QuickAck;

/// Prints the table and writes the requested files.
pub fn write(
    options: &Options,
    contestants: &[Contestant],
    results: &Results,
    load_before: &str,
) -> Result<()> {
    let machine = Machine::here();
    let load_after = machine::load_average();
    let circumstances = circumstances(options, &machine, load_before, &load_after);
    let commands: Vec<String> = contestants
        .iter()
        .map(|one| format!("{}: {}", one.seat.name(), one.command_line()))
        .collect();
    let (cleared, missed, open) = table::count_bars(results);

    println!("{circumstances}");
    commands.iter().for_each(|line| println!("{line}"));
    println!("\n{}", table::to_text(results));
    results.faults().iter().for_each(|fault| println!("fault: {fault}"));
    println!("bars: {cleared} cleared, {missed} missed, {open} could not be told");

    if let Some(path) = &options.markdown {
        let faults: String = results.faults().iter().map(|fault| format!("- {fault}\n")).collect();
        save(path, &format!("{circumstances}\n\n{}\n{faults}", table::to_markdown(results)))?;
    }
    if let Some(path) = &options.json {
        let everything = json!({
            "machine": {
                "processor": machine.processor,
                "cores": machine.cores,
                "kernel": machine.kernel,
                "loadBefore": load_before,
                "loadAfter": load_after,
            },
            "rounds": options.rounds(),
            "quick": options.effort() == Effort::Quick,
            "quickack": options.quickack() == QuickAck::Yes,
            "commands": commands,
            "rows": table::to_json(results),
            "faults": results.faults(),
        });
        save(path, &format!("{everything:#}\n"))?;
    }
    Ok(())
}

fn circumstances(
    options: &Options,
    machine: &Machine,
    load_before: &str,
    load_after: &str,
) -> String {
    let client = match options.quickack() {
        QuickAck::No => "ordinary client",
        QuickAck::Yes => "client with TCP_QUICKACK",
    };
    let amount = options.effort().pick("", " (quick, with smaller amounts than the table says)");
    format!(
        "{} × {}, Linux {}; load {load_before} before, {load_after} after; \
         {} rounds{amount}; {client}",
        machine.cores,
        machine.processor,
        machine.kernel,
        options.rounds(),
    )
}

fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .map_err(|error| Failure::new(format!("could not write {}: {error}", path.display())))
}
