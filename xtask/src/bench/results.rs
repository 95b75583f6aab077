//! Collects what the rounds have found, per row and contestant, and judges it.

use std::collections::BTreeMap;

use super::contestant::Seat;
use super::failure::Failure;
use super::row::Row;
use super::rows::Group;
use super::scene::Readings;
use super::stats::median;
use super::websocket::QuickAck;

/// What the rounds found for one row and contestant.
#[derive(Default)]
pub struct Cell {
    /// One value per round that succeeded.
    pub values: Vec<f64>,
    /// One reason per round that failed.
    pub failures: Vec<String>,
}

/// Everything that was found.
pub struct Results {
    /// The groups that were measured.
    pub groups: Vec<&'static Group>,
    quickack: QuickAck,
    cells: BTreeMap<(&'static str, Seat), Cell>,
    faults: BTreeMap<(Seat, &'static str), Faults>,
}

/// What went wrong with one contestant in one group, over all rounds.
#[derive(Default)]
struct Faults {
    failures: BTreeMap<String, usize>,
    misordered: u64,
}

/// How our figure stands against a bar.
pub struct Judgement {
    /// The bar in words.
    pub bar: String,
    /// Whether it is cleared; nothing if it could not be told.
    pub cleared: Option<bool>,
}

impl Results {
    /// Nothing found yet.
    pub fn new(groups: Vec<&'static Group>, quickack: QuickAck) -> Results {
        Results { groups, quickack, cells: BTreeMap::new(), faults: BTreeMap::new() }
    }

    /// Adds one turn's readings; rows that a failure left without a value share its reason.
    pub fn add(
        &mut self,
        group: &'static Group,
        seat: Seat,
        readings: Readings,
        failure: Option<Failure>,
    ) {
        for row in group.rows {
            let cell = self.cells.entry((row.id, seat)).or_default();
            match (readings.values.get(row.id), &failure) {
                (Some(value), _) => cell.values.push(*value),
                (None, Some(failure)) => cell.failures.push(failure.to_string()),
                (None, None) => {}
            }
        }
        let faults = self.faults.entry((seat, group.name)).or_default();
        faults.misordered += readings.misordered;
        if let Some(failure) = failure {
            *faults.failures.entry(failure.to_string()).or_default() += 1;
        }
    }

    /// What was found for one row and contestant.
    pub fn cell(&self, row: &str, seat: Seat) -> Option<&Cell> {
        let found = self.cells.iter().find(|((id, of), _)| *id == row && *of == seat);
        found.map(|(_, cell)| cell)
    }

    /// The median over the rounds.
    pub fn figure(&self, row: &str, seat: Seat) -> Option<f64> {
        median(&self.cell(row, seat)?.values)
    }

    /// Our figure as a multiple of the peer's.
    pub fn ratio(&self, row: &Row) -> Option<f64> {
        let (ours, peer) = (self.figure(row.id, Seat::Ours)?, self.figure(row.id, Seat::Peer)?);
        (peer != 0.0).then(|| ours / peer)
    }

    /// How our figure stands against each of the row's bars; a figure that could not be had clears
    /// none.
    pub fn judge(&self, row: &Row) -> Vec<Judgement> {
        let failed = self.cell(row.id, Seat::Ours).is_some_and(|cell| !cell.failures.is_empty());
        let bars = row.bars.iter().filter(|bar| bar.applies(self.quickack));
        let judge = |bar: &super::row::Bar| Judgement {
            bar: bar.describe(row),
            cleared: match (failed, self.figure(row.id, Seat::Ours)) {
                (true, _) => Some(false),
                (false, Some(ours)) => bar.is_cleared(row, ours, |id, seat| self.figure(id, seat)),
                (false, None) => None,
            },
        };
        bars.map(judge).collect()
    }

    /// What went wrong, in sentences.
    pub fn faults(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((seat, group), faults) in &self.faults {
            let seat = seat.name();
            for (failure, count) in &faults.failures {
                lines.push(format!("{seat} failed at {group} in {count} of the rounds: {failure}"));
            }
            if faults.misordered > 0 {
                let count = faults.misordered;
                lines.push(format!(
                    "{seat} sent {count} events of {group} ahead of one with a lower seq"
                ));
            }
        }
        lines
    }
}
