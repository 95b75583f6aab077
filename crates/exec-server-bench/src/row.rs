//! A row of the table: a figure, its unit, its better direction, and its bars.

use super::contestant::Seat;
use super::websocket::QuickAck;

/// Declares the rows of a group: `ROWS`, and for each row a constant with its id, to enter values and to name it in bars.
///
/// `NAME = "id": "label", Lower "unit", AtMost(1.0, Peer);` where `YesNo` stands for a unit, and bars may be missing.
macro_rules! rows {
    ($($vis:vis $name:ident = $id:literal: $label:literal, $better:ident $unit:tt $(, $bar:expr)*;)*) => {
        $($vis const $name: &str = $id;)*

        const ROWS: &[$crate::row::Row] = {
            #[allow(unused_imports, reason = "not every group has bars")]
            use $crate::row::{Bar::*, Better::*, Of::*};
            &[$($crate::row::Row {
                id: $name,
                label: $label,
                unit: $crate::row::unit!($unit),
                better: $better,
                bars: &[$($bar),*],
            },)*]
        };
    };
}
pub(crate) use rows;

macro_rules! unit {
    (YesNo) => {
        $crate::row::Unit::YesNo
    };
    ($name:literal) => {
        $crate::row::Unit::Named($name)
    };
}
pub(crate) use unit;

/// One figure that is measured for every contestant.
pub struct Row {
    /// A stable name.
    pub id: &'static str,
    /// Text in the table.
    pub label: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Better direction.
    pub better: Better,
    /// Required values; all of them must be met.
    pub bars: &'static [Bar],
}

/// The unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A quantity in the named unit.
    Named(&'static str),
    /// One for yes, zero for no.
    YesNo,
}

/// Better direction of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// Informative only.
    Neither,
}

/// A requirement on our figure.
pub enum Bar {
    /// At most this many times the measure.
    AtMost(f64, Of),
    /// At least this many times the measure.
    AtLeast(f64, Of),
}

/// Reference value of a bar.
pub enum Of {
    /// The row's own unit.
    Unit,
    /// The peer's figure.
    Peer,
    /// The peer's figure with an ordinary client: a quick one hides the peer's cost of Nagle's algorithm.
    NaglingPeer,
    /// The peer's figure in another row.
    PeerRow(&'static str),
    /// The bare server's figure.
    Bare,
    /// Our own figure in another row.
    OurRow(&'static str),
}

impl Bar {
    /// Whether the bar applies to this kind of client.
    pub fn applies(&self, quickack: QuickAck) -> bool {
        let (Bar::AtMost(_, of) | Bar::AtLeast(_, of)) = self;
        !matches!(of, Of::NaglingPeer) || quickack == QuickAck::No
    }

    /// Whether our figure meets the bar; `None` if the reference value is missing.
    pub fn is_cleared(
        &self,
        row: &Row,
        ours: f64,
        figure: impl Fn(&str, Seat) -> Option<f64>,
    ) -> Option<bool> {
        let (Bar::AtMost(times, of) | Bar::AtLeast(times, of)) = self;
        let measure = match of {
            Of::Unit => 1.0,
            Of::Peer | Of::NaglingPeer => figure(row.id, Seat::Peer)?,
            Of::PeerRow(other) => figure(other, Seat::Peer)?,
            Of::Bare => figure(row.id, Seat::Bare)?,
            Of::OurRow(other) => figure(other, Seat::Ours)?,
        };
        Some(match self {
            Bar::AtMost(..) => ours <= times * measure,
            Bar::AtLeast(..) => ours >= times * measure,
        })
    }

    /// Text of the bar.
    pub fn describe(&self, row: &Row) -> String {
        let (sign, times, of) = match self {
            Bar::AtMost(times, of) => ("≤", *times, of),
            Bar::AtLeast(times, of) => ("≥", *times, of),
        };
        match of {
            Of::Unit if row.unit == Unit::YesNo => row.unit.show(times),
            Of::Unit => format!("{sign} {}", row.unit.show(times)),
            Of::Peer | Of::NaglingPeer => format!("{sign} {} peer", share(times)),
            Of::PeerRow(other) => format!("{sign} {} peer {other}", share(times)),
            Of::Bare => format!("{sign} {} bare", share(times)),
            Of::OurRow(other) => format!("{sign} {} our {other}", share(times)),
        }
    }
}

impl Unit {
    /// A value with about three significant digits and its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Named(name) => format!("{} {name}", digits(value)),
            Unit::YesNo if value >= 1.0 => "yes".to_owned(),
            Unit::YesNo if value <= 0.0 => "no".to_owned(),
            Unit::YesNo => "sometimes".to_owned(),
        }
    }

    /// The unit's name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Named(name) => name,
            Unit::YesNo => "yes/no",
        }
    }
}

/// A number with about three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        small if small >= 0.9995 => format!("{value:.2}"),
        tiny if tiny >= 0.0995 => format!("{value:.3}"),
        zero if zero < 0.00005 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
}

fn share(times: f64) -> String {
    let inverse = 1.0 / times;
    if times < 0.5 && (inverse - inverse.round()).abs() < 1e-9 {
        format!("1/{inverse:.0} of")
    } else {
        format!("{times}×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row {
        id: "row",
        label: "a row",
        unit: Unit::Named("ms"),
        better: Better::Lower,
        bars: &[],
    };

    #[test]
    fn a_bar_without_its_counterpart_is_neither_cleared_nor_missed() {
        let figure = |id: &str, seat| (id == "row" && seat == Seat::Peer).then_some(40.0);
        assert_eq!(Bar::AtMost(0.05, Of::Peer).is_cleared(&ROW, 2.0, figure), Some(true));
        assert_eq!(Bar::AtMost(0.05, Of::Peer).is_cleared(&ROW, 2.1, figure), Some(false));
        assert_eq!(Bar::AtMost(1.3, Of::Bare).is_cleared(&ROW, 2.0, figure), None);
        assert_eq!(Bar::AtMost(0.2, Of::PeerRow("other")).is_cleared(&ROW, 2.0, figure), None);
        assert_eq!(Bar::AtMost(5.0, Of::OurRow("row")).is_cleared(&ROW, 2.0, figure), None);
        assert_eq!(Bar::AtMost(0.3, Of::Unit).is_cleared(&ROW, 0.3, figure), Some(true));
    }

    #[test]
    fn bars_read_like_the_sentence_that_sets_them() {
        assert_eq!(Bar::AtMost(1.0 / 20.0, Of::Peer).describe(&ROW), "≤ 1/20 of peer");
        assert_eq!(Bar::AtLeast(2.7, Of::Peer).describe(&ROW), "≥ 2.7× peer");
        assert_eq!(Bar::AtMost(0.3, Of::Unit).describe(&ROW), "≤ 0.300 ms");
        assert_eq!(Bar::AtMost(5.0, Of::OurRow("other")).describe(&ROW), "≤ 5× our other");
    }
}
