//! Formats the results: a table for the terminal, Markdown and JSON.

use serde_json::{Value, json};

use super::contestant::Seat;
use super::results::Results;
use super::row::{Better, Row, digits};

const HEADINGS: [&str; 7] = ["figure", "ours", "peer", "bare", "ours ÷ peer", "bar", ""];

/// The table for the terminal.
pub fn to_text(results: &Results) -> String {
    let lines = lines(results);
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.chain([HEADINGS[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let mut text = String::new();
    for line in std::iter::once(&HEADINGS.map(str::to_owned)).chain(&lines) {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            // Numbers are right-aligned, words left-aligned.
            match (1..=4).contains(&column) {
                true => shown.extend([&gap, cell, "  "]),
                false => shown.extend([cell, &gap, "  "]),
            }
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

/// The table in markdown.
pub fn to_markdown(results: &Results) -> String {
    let mut text = format!("| {} |\n|---|---:|---:|---:|---:|---|---|\n", HEADINGS.join(" | "));
    for line in lines(results) {
        text.push_str(&format!("| {} |\n", line.join(" | ")));
    }
    text
}

/// All results as JSON.
pub fn to_json(results: &Results) -> Value {
    let rows = results.groups.iter().flat_map(|group| group.rows).map(|row| {
        let judgements = results.judge(row).into_iter();
        let bars = judgements.map(|one| json!({"bar": one.bar, "cleared": one.cleared}));
        json!({
            "id": row.id,
            "label": row.label,
            "unit": row.unit.name(),
            "better": match row.better {
                Better::Lower => "lower",
                Better::Higher => "higher",
                Better::Neither => "neither",
            },
            "ours": cell_to_json(results, row, Seat::Ours),
            "peer": cell_to_json(results, row, Seat::Peer),
            "bare": cell_to_json(results, row, Seat::Bare),
            "ratio": results.ratio(row),
            "bars": bars.collect::<Vec<_>>(),
        })
    });
    rows.collect()
}

/// Number of bars that are met, missed and undecided.
pub fn count_bars(results: &Results) -> (usize, usize, usize) {
    let rows = results.groups.iter().flat_map(|group| group.rows);
    let judgements: Vec<_> =
        rows.flat_map(|row| results.judge(row)).map(|one| one.cleared).collect();
    let count = |wanted| judgements.iter().filter(|cleared| **cleared == wanted).count();
    (count(Some(true)), count(Some(false)), count(None))
}

fn lines(results: &Results) -> Vec<[String; 7]> {
    let rows = results.groups.iter().flat_map(|group| group.rows);
    rows.map(|row| line(results, row)).collect()
}

fn line(results: &Results, row: &Row) -> [String; 7] {
    let judgements = results.judge(row);
    let verdict = match () {
        () if judgements.is_empty() => "",
        () if judgements.iter().any(|one| one.cleared == Some(false)) => "MISS",
        () if judgements.iter().all(|one| one.cleared == Some(true)) => "pass",
        () => "?",
    };
    let bars: Vec<String> = judgements.iter().map(|one| one.bar.clone()).collect();
    [
        row.label.to_owned(),
        show(results, row, Seat::Ours),
        show(results, row, Seat::Peer),
        show(results, row, Seat::Bare),
        results.ratio(row).map_or(String::new(), |ratio| format!("{}×", digits(ratio))),
        bars.join(", "),
        verdict.to_owned(),
    ]
}

/// A figure with its unit; an exclamation mark means that some rounds failed.
fn show(results: &Results, row: &Row, seat: Seat) -> String {
    let Some(cell) = results.cell(row.id, seat) else {
        return "–".to_owned();
    };
    match (results.figure(row.id, seat), cell.failures.is_empty()) {
        (Some(value), true) => row.unit.show(value),
        (Some(value), false) => format!("{} !", row.unit.show(value)),
        (None, false) => "failed".to_owned(),
        (None, true) => "–".to_owned(),
    }
}

fn cell_to_json(results: &Results, row: &Row, seat: Seat) -> Value {
    match results.cell(row.id, seat) {
        Some(cell) => json!({
            "median": results.figure(row.id, seat),
            "rounds": cell.values,
            "failures": cell.failures,
        }),
        None => Value::Null,
    }
}
