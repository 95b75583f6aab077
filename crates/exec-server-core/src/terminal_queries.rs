//! Removes terminal queries from output that is shown again.
//!
//! A terminal answers a query such as `CSI 6 n` as if the answer were typed. In a replay the program that asked is no
//! longer waiting, so the answer would become its input. Modes that are answered when they are set (focus, size in band)
//! are left out too, and set after the replay if they are still on: the program has then asked for these reports.
//!
//! Owner: the command that writes a replay to a terminal (`exec-server/src/cli/replay.rs`).
//! Invariants: the result does not depend on how the output is split. Bytes keep their order, only queries are removed,
//! and the remaining bytes form no query. A sequence that is undecided after [`MAX_HELD_BYTES`] is dropped.
//!
//! ```text
//! ground ─ESC▶ escape ─[▶ csi ─final▶ ground        csi: held, judged at its final byte
//!                │  └─]  P  _  ^  X▶ string ─ST▶ ground    string: held until its beginning decides, else until its end
//!                └─other▶ ground
//! ```
//!
//! C1 controls (`0x9b` for `ESC [`) count as a single byte outside of a UTF-8 character, and as U+0080 to U+009F.

mod judge;

use judge::{Csi, ReportingModes, SetModes, StringKind, Verdict};

/// Longer than any query, and than a sequence that sets a palette of 256 colours.
pub const MAX_HELD_BYTES: usize = 16 * 1024;

const BEL: u8 = 0x07;
const ENQ: u8 = 0x05;
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;
const ESC: u8 = 0x1b;
/// The C1 forms of the string terminator and of a request for the terminal's identity.
const ST: u8 = 0x9c;
const DECID: u8 = 0x9a;

/// Filter for one output stream.
#[derive(Debug, Default)]
pub struct QueryFilter {
    state: State,
    characters: Characters,
    /// Bytes of the undecided sequence.
    held: Vec<u8>,
    is_overlong: bool,
    /// Whether the output ends with a sequence that only the next, still held, sequence cancels.
    is_broken_off: bool,
    modes: ReportingModes,
}

#[derive(Debug, Default, PartialEq)]
enum State {
    #[default]
    Ground,
    Escape,
    Csi(Csi),
    String(Text),
    /// An ESC in a string, which ends the string unless it is a tmux passthrough.
    StringEscape(Text),
}

/// A string sequence: OSC, DCS, APC, PM or SOS.
#[derive(Debug, PartialEq)]
struct Text {
    kind: StringKind,
    verdict: Verdict,
    /// Bytes after the introducer, as far as they are needed to decide.
    content: Vec<u8>,
}

impl QueryFilter {
    /// Filters a piece of output and appends the remaining bytes to `shown`.
    pub fn filter(&mut self, piece: &[u8], shown: &mut Vec<u8>) {
        shown.reserve(piece.len());
        // ENQ requests the answerback message, also in the middle of a sequence.
        for &byte in piece.iter().filter(|byte| **byte != ENQ) {
            for unit in self.characters.take(byte).into_iter().flatten() {
                self.handle_unit(unit, shown);
            }
        }
    }

    /// Whether a sequence or a character is incomplete.
    pub fn is_within_sequence(&self) -> bool {
        self.state != State::Ground || self.characters.has_lead
    }

    /// Appends the sequences that set the reporting modes which the replay has left on.
    pub fn set_modes(&mut self, shown: &mut Vec<u8>) {
        std::mem::take(&mut self.modes).write(shown);
    }

    /// The output has ended: an incomplete sequence is never answered, so it is shown.
    pub fn finish(&mut self, shown: &mut Vec<u8>) {
        if std::mem::take(&mut self.characters.has_lead) {
            self.handle_unit(Unit::Text(LEAD), shown);
        }
        match std::mem::take(&mut self.state) {
            State::String(text) => {
                self.end_string(text, None, shown);
            }
            State::StringEscape(text) => {
                self.end_string(text, Some(Unit::Byte(ESC)), shown);
            }
            State::Csi(_) | State::Escape if self.is_overlong => self.drop_held(shown),
            State::Csi(_) | State::Escape | State::Ground => self.show_held(shown),
        }
        *self = Self::default();
    }

    fn handle_unit(&mut self, unit: Unit, shown: &mut Vec<u8>) {
        match std::mem::take(&mut self.state) {
            State::Ground => self.handle_ground(unit, shown),
            State::Escape => self.handle_escape(unit, shown),
            State::Csi(csi) => self.handle_csi(csi, unit, shown),
            State::String(text) => self.handle_string(text, unit, shown),
            State::StringEscape(text) => self.handle_string_escape(text, unit, shown),
        }
    }

    fn handle_ground(&mut self, unit: Unit, shown: &mut Vec<u8>) {
        match unit {
            Unit::Byte(ESC) => {
                self.hold(unit);
                self.state = State::Escape;
            }
            Unit::Control { code: 0x9b | 0x9d | 0x90 | 0x9f | 0x9e | 0x98, .. } => {
                self.hold(unit);
                self.begin_sequence(unit.seven_bit());
            }
            Unit::Control { code: DECID, .. } => self.drop_held(shown),
            _ => self.show(unit, shown),
        }
    }

    fn handle_escape(&mut self, unit: Unit, shown: &mut Vec<u8>) {
        match unit {
            Unit::Byte(byte @ (b'[' | b']' | b'P' | b'_' | b'^' | b'X')) => {
                self.hold(unit);
                self.begin_sequence(byte);
            }
            // RIS resets every mode.
            Unit::Byte(b'c') => {
                self.modes = ReportingModes::default();
                self.show_held(shown);
                self.show(unit, shown);
            }
            // DECID, an old form of DA.
            Unit::Byte(b'Z') => self.drop_sequence(shown),
            // A terminal executes these and continues with the sequence.
            Unit::Byte(0..=0x17 | 0x19 | 0x1c..=0x1f) => {
                self.hold(unit);
                self.state = State::Escape;
            }
            Unit::Byte(ESC) | Unit::Control { .. } => {
                self.break_off(shown);
                self.handle_ground(unit, shown);
            }
            _ => {
                self.show_held(shown);
                self.show(unit, shown);
            }
        }
    }

    fn begin_sequence(&mut self, introducer: u8) {
        let kind = match introducer {
            b'[' => return self.state = State::Csi(Csi::default()),
            b']' => StringKind::Osc,
            b'P' => StringKind::Dcs,
            b'_' => StringKind::Apc,
            _ => StringKind::Other,
        };
        let verdict = if kind == StringKind::Other { Verdict::Harmless } else { Verdict::Open };
        self.state = State::String(Text { kind, verdict, content: Vec::new() });
    }

    fn handle_csi(&mut self, mut csi: Csi, unit: Unit, shown: &mut Vec<u8>) {
        match unit {
            Unit::Byte(byte @ 0x40..0x7f) => {
                self.hold(unit);
                if csi.is_query(byte) || self.is_overlong {
                    return self.drop_sequence(shown);
                }
                match csi.set_modes(byte, &mut self.modes) {
                    SetModes::Unchanged => self.show_held(shown),
                    SetModes::Nothing => self.drop_sequence(shown),
                    SetModes::Only(list) => self.replace_modes(&list, shown),
                }
                return;
            }
            // A cancelled sequence is never answered.
            Unit::Byte(CAN | SUB) => {
                self.show_held(shown);
                return self.show(unit, shown);
            }
            Unit::Byte(ESC) | Unit::Control { .. } => {
                self.break_off(shown);
                return self.handle_ground(unit, shown);
            }
            Unit::Byte(byte) => csi.handle(byte),
            Unit::Text(_) => {}
        }
        self.hold(unit);
        self.state = State::Csi(csi);
    }

    fn handle_string(&mut self, mut text: Text, unit: Unit, shown: &mut Vec<u8>) {
        match unit {
            Unit::Byte(ESC) => self.state = State::StringEscape(text),
            Unit::Byte(BEL) if text.kind == StringKind::Osc => {
                self.end_string(text, Some(unit), shown);
            }
            Unit::Control { code: ST, .. } => {
                self.end_string(text, Some(unit), shown);
            }
            // Some terminals act on a cancelled string, so it is judged like a complete one.
            Unit::Byte(CAN | SUB) => {
                self.end_string(text, None, shown);
                self.show(unit, shown);
            }
            Unit::Control { .. } => {
                self.break_off_string(text, shown);
                self.handle_ground(unit, shown);
            }
            _ => {
                self.handle_content(&mut text, unit, shown);
                self.state = State::String(text);
            }
        }
    }

    fn handle_string_escape(&mut self, mut text: Text, unit: Unit, shown: &mut Vec<u8>) {
        let escape = Unit::Byte(ESC);
        match unit {
            Unit::Byte(b'\\') => {
                let is_shown = self.end_string(text, Some(escape), shown);
                if is_shown {
                    self.show(unit, shown);
                }
            }
            _ if text.kind == StringKind::Passthrough => {
                self.handle_content(&mut text, escape, shown);
                self.handle_content(&mut text, unit, shown);
                self.state = State::String(text);
            }
            _ => {
                self.break_off_string(text, shown);
                self.handle_ground(escape, shown);
                self.handle_unit(unit, shown);
            }
        }
    }

    /// Shows, holds or drops one unit of a string.
    fn handle_content(&mut self, text: &mut Text, unit: Unit, shown: &mut Vec<u8>) {
        let was_open = text.verdict == Verdict::Open;
        text.push(unit);
        if was_open {
            self.hold(unit);
        }
        if std::mem::take(&mut self.is_overlong) {
            text.verdict = Verdict::Query;
        }
        match &text.verdict {
            Verdict::Open => {}
            Verdict::Harmless => {
                self.show_held(shown);
                if !was_open {
                    self.show(unit, shown);
                }
            }
            Verdict::Query => self.drop_held(shown),
            Verdict::Replace(bytes) => {
                self.held.clone_from(bytes);
                self.show_held(shown);
                text.verdict = Verdict::Harmless;
            }
        }
    }

    /// Handles the end of a string: shows or drops it with its terminator.
    fn end_string(&mut self, text: Text, terminator: Option<Unit>, shown: &mut Vec<u8>) -> bool {
        match text.judge() {
            Verdict::Query => {
                self.drop_held(shown);
                return false;
            }
            Verdict::Replace(bytes) => self.held = bytes,
            Verdict::Harmless | Verdict::Open => {}
        }
        self.show_held(shown);
        if let Some(unit) = terminator {
            self.show(unit, shown);
        }
        true
    }

    fn break_off_string(&mut self, text: Text, shown: &mut Vec<u8>) {
        self.is_broken_off |= self.end_string(text, None, shown);
    }

    fn break_off(&mut self, shown: &mut Vec<u8>) {
        if self.is_overlong {
            self.drop_held(shown);
        } else {
            self.show_held(shown);
            self.is_broken_off = true;
        }
    }

    fn show(&mut self, unit: Unit, shown: &mut Vec<u8>) {
        self.is_broken_off = false;
        unit.write(shown);
    }

    fn show_held(&mut self, shown: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.is_broken_off = false;
        }
        shown.append(&mut self.held);
        self.is_overlong = false;
    }

    fn drop_held(&mut self, shown: &mut Vec<u8>) {
        // Otherwise the following bytes would complete the sequence that this one cancels.
        if std::mem::take(&mut self.is_broken_off) {
            shown.push(CAN);
        }
        self.held.clear();
        self.is_overlong = false;
    }

    /// Drops a sequence that is no string; controls inside it are still executed.
    fn drop_sequence(&mut self, shown: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.drop_held(shown);
        shown.extend(held.into_iter().filter(|byte| *byte < 0x20 && *byte != ESC));
    }

    /// Shows a sequence that sets modes with another list; the controls inside it are executed all the same.
    fn replace_modes(&mut self, list: &[u8], shown: &mut Vec<u8>) {
        let is_broken_off = self.is_broken_off;
        self.held.retain(|byte| *byte < 0x20 && *byte != ESC);
        if is_broken_off && !self.held.is_empty() {
            shown.push(CAN);
        }
        self.held.extend([b"\x1b[?", list, b"h"].concat());
        self.show_held(shown);
    }

    fn hold(&mut self, unit: Unit) {
        if self.held.len() < MAX_HELD_BYTES && !self.is_overlong {
            unit.write(&mut self.held);
        } else {
            self.held.clear();
            self.is_overlong = true;
        }
    }
}

impl Text {
    fn push(&mut self, unit: Unit) {
        if self.verdict != Verdict::Open {
            return;
        }
        // Terminals ignore controls in a string.
        let is_content = !matches!(unit, Unit::Byte(0..0x20 | 0x7f));
        if is_content || self.kind == StringKind::Passthrough {
            unit.write(&mut self.content);
        }
        (self.kind, self.verdict) = judge::beginning(self.kind, &self.content);
    }

    fn judge(self) -> Verdict {
        match self.verdict {
            Verdict::Open => judge::whole(self.kind, &self.content),
            decided => decided,
        }
    }
}

/// One unit of output: an ASCII byte, a C1 control, or a byte of other text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Byte(u8),
    Control { code: u8, is_encoded: bool },
    Text(u8),
}

impl Unit {
    fn write(self, to: &mut Vec<u8>) {
        match self {
            Self::Byte(byte) | Self::Text(byte) => to.push(byte),
            Self::Control { code, is_encoded: false } => to.push(code),
            Self::Control { code, is_encoded: true } => to.extend([LEAD, code]),
        }
    }

    /// The byte that follows ESC in the seven-bit form of a control.
    fn seven_bit(self) -> u8 {
        match self {
            Self::Byte(byte) | Self::Text(byte) => byte,
            Self::Control { code, .. } => code - 0x40,
        }
    }
}

/// The first byte of U+0080 to U+00BF, which may be a control.
const LEAD: u8 = 0xc2;

/// Distinguishes C1 controls from continuation bytes of UTF-8 characters.
#[derive(Debug, Default)]
struct Characters {
    has_lead: bool,
    /// Continuation bytes that are still expected.
    inner: u8,
}

impl Characters {
    fn take(&mut self, byte: u8) -> [Option<Unit>; 2] {
        let lead = std::mem::take(&mut self.has_lead).then_some(Unit::Text(LEAD));
        match byte {
            0x80..0xa0 if lead.is_some() => {
                [Some(Unit::Control { code: byte, is_encoded: true }), None]
            }
            0xa0..0xc0 if lead.is_some() => [lead, Some(Unit::Text(byte))],
            _ => [lead, self.take_one(byte)],
        }
    }

    fn take_one(&mut self, byte: u8) -> Option<Unit> {
        if let 0x80..0xc0 = byte
            && self.inner > 0
        {
            self.inner -= 1;
            return Some(Unit::Text(byte));
        }
        self.inner = match byte {
            0xc3..0xe0 => 1,
            0xe0..0xf0 => 2,
            0xf0..0xf5 => 3,
            _ => 0,
        };
        match byte {
            0..0x80 => Some(Unit::Byte(byte)),
            0x80..0xa0 => Some(Unit::Control { code: byte, is_encoded: false }),
            LEAD => {
                self.has_lead = true;
                None
            }
            _ => Some(Unit::Text(byte)),
        }
    }
}

#[cfg(test)]
mod tests;
