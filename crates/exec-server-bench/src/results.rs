//! Collects the results of all rounds by row and contestant, and compares them with the bars.

use std::collections::BTreeMap;

use super::contestant::Seat;
use super::failure::Failure;
use super::row::Row;
use super::rows::Group;
use super::scene::Readings;
use super::stats::median;
use super::websocket::QuickAck;

/// Results of one row and contestant.
#[derive(Default)]
pub struct Cell {
    /// One value per round that succeeded.
    pub values: Vec<f64>,
    /// One reason per round that failed.
    pub failures: Vec<String>,
}

/// All results.
pub struct Results {
    /// The groups that were measured.
    pub groups: Vec<&'static Group>,
    quickack: QuickAck,
    cells: BTreeMap<(&'static str, Seat), Cell>,
    faults: BTreeMap<(Seat, &'static str), Faults>,
}

/// Failures of one contestant in one group, over all rounds.
#[derive(Default)]
struct Faults {
    failures: BTreeMap<String, usize>,
    misordered: u64,
}

/// Result of a bar.
pub struct Judgement {
    /// Text of the bar.
    pub bar: String,
    /// Whether the bar is met; `None` if it cannot be decided.
    pub cleared: Option<bool>,
}

impl Results {
    /// Nothing found yet.
    pub fn new(groups: Vec<&'static Group>, quickack: QuickAck) -> Results {
        Results { groups, quickack, cells: BTreeMap::new(), faults: BTreeMap::new() }
    }

    /// Adds the readings of one turn; rows without a value get the failure as their reason.
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

    /// Results of one row and contestant.
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

    /// Compares our figure with each bar of the row; a missing figure meets none.
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

    /// Descriptions of all failures.
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
