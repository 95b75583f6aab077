//! Classifies escape sequences that make a terminal send a reply.

use super::{ESC, QueryFilter};

/// The kinds of string sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StringKind {
    Osc,
    Dcs,
    Apc,
    /// `DCS tmux;`: sequences for the terminal outside of tmux, with every ESC doubled.
    Passthrough,
    /// PM and SOS, which no terminal answers.
    Other,
}

/// Classification of a string sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Undecided: more bytes are needed.
    Open,
    Query,
    Harmless,
    /// The string has an effect and an answer; these bytes have only the effect.
    Replace(Vec<u8>),
}

/// The parameters of a control sequence.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Csi {
    prefix: Option<u8>,
    first: Option<u32>,
    is_past_first: bool,
    has_parameter: bool,
    intermediate: Option<u8>,
    is_malformed: bool,
    /// The list of modes after `?`.
    modes: Vec<u8>,
}

/// Modes that a terminal answers at once when they are set: focus, and size in band.
const REPORTING_MODES: [u32; 2] = [1004, 2048];

/// The modes of one kind that a replay has set and not reset.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportingModes([bool; REPORTING_MODES.len()]);

impl ReportingModes {
    /// Remembers those of a list, and returns the rest of the list; None if nothing is left of it.
    fn take_from(&mut self, list: &[u8]) -> Option<Vec<u8>> {
        let mut rest = Vec::new();
        for part in list.split(|byte| *byte == b';') {
            match reporting_mode(part) {
                Some(place) => self.0[place] = true,
                None => rest.push(part),
            }
        }
        (!rest.is_empty()).then(|| rest.join(&b';'))
    }

    fn reset(&mut self, list: &[u8]) {
        for place in list.split(|byte| *byte == b';').filter_map(reporting_mode) {
            self.0[place] = false;
        }
    }

    /// The sequences that set them.
    pub(super) fn write(self, to: &mut Vec<u8>) {
        for (mode, _) in REPORTING_MODES.iter().zip(self.0).filter(|(_, is_set)| *is_set) {
            to.extend_from_slice(format!("\x1b[?{mode}h").as_bytes());
        }
    }
}

fn reporting_mode(part: &[u8]) -> Option<usize> {
    let number: u32 = std::str::from_utf8(part).ok()?.parse().ok()?;
    REPORTING_MODES.iter().position(|mode| *mode == number)
}

/// What becomes of a control sequence that sets modes.
pub(super) enum SetModes {
    Unchanged,
    /// Only this list is left.
    Only(Vec<u8>),
    Nothing,
}

impl Csi {
    /// Follows the reporting modes through a sequence that ends with this byte.
    pub(super) fn set_modes(&self, last: u8, modes: &mut ReportingModes) -> SetModes {
        if self.is_malformed || self.prefix != Some(b'?') || self.intermediate.is_some() {
            return SetModes::Unchanged;
        }
        match last {
            b'l' => modes.reset(&self.modes),
            b'h' if self
                .modes
                .split(|byte| *byte == b';')
                .any(|part| reporting_mode(part).is_some()) =>
            {
                return modes.take_from(&self.modes).map_or(SetModes::Nothing, SetModes::Only);
            }
            _ => {}
        }
        SetModes::Unchanged
    }

    /// Handles a byte between the introducer and the final byte.
    pub(super) fn handle(&mut self, byte: u8) {
        match byte {
            b'<'..=b'?' if !self.has_parameter && self.prefix.is_none() => self.prefix = Some(byte),
            b'<'..=b'?' => self.is_malformed = true,
            b'0'..=b';' if self.prefix == Some(b'?') && self.intermediate.is_none() => {
                // Overlong sequences are dropped, whatever is in them.
                if self.modes.len() < super::MAX_HELD_BYTES {
                    self.modes.push(byte);
                }
                self.handle_parameter(byte);
            }
            b'0'..=b';' if self.intermediate.is_some() => self.is_malformed = true,
            b'0'..=b';' => self.handle_parameter(byte),
            0x20..0x30 if self.intermediate.is_some() => self.is_malformed = true,
            0x20..0x30 => self.intermediate = Some(byte),
            // Controls and DEL.
            _ => {}
        }
    }

    fn handle_parameter(&mut self, byte: u8) {
        self.has_parameter = true;
        match byte {
            b'0'..=b'9' if !self.is_past_first => {
                let digit = u32::from(byte - b'0');
                let number = self.first.unwrap_or(0).saturating_mul(10);
                self.first = Some(number.saturating_add(digit));
            }
            b'0'..=b'9' => {}
            _ => self.is_past_first = true,
        }
    }

    /// Whether a terminal answers the sequence if it ends with this byte.
    pub(super) fn is_query(&self, last: u8) -> bool {
        if self.is_malformed {
            return false;
        }
        match (self.prefix, self.intermediate, last) {
            // DSR, DA1, DA2, DA3, DECREQTPARM, XTVERSION, kitty's keyboard flags.
            (None | Some(b'?'), None, b'n') => true,
            (None | Some(b'>' | b'='), None, b'c') => true,
            (None, None, b'x') | (Some(b'>'), None, b'q') | (Some(b'?'), None, b'u') => true,
            // DECRQM.
            (None | Some(b'?'), Some(b'$'), b'p') => true,
            // Reports of XTWINOPS.
            (None, None, b't') => matches!(self.first, Some(11 | 13..=16 | 18..=21)),
            // XTSMGRAPHICS, XTQMODKEYS, XTQFMTKEYS.
            (Some(b'?'), None, b'S' | b'm' | b'f') => true,
            // DECRQUPSS, DECRQTSR, DECRQPSR, DECRQPKFM, DECRQCRA, DECRQDE, DECRQLP.
            (None, Some(b'&' | b'$'), b'u') | (None, Some(b'$'), b'w') => true,
            (None, Some(b'+'), b'x') | (None, Some(b'*'), b'y') => true,
            (None, Some(b'"'), b'v') | (None, Some(b'\''), b'|') => true,
            // XTREPORTSGR, XTREPORTCOLORS.
            (None, Some(b'#'), b'|' | b'R') => true,
            // kitty's extra cursors.
            (Some(b'>'), Some(b' '), b'q') => matches!(self.first, None | Some(0 | 100 | 101)),
            _ => false,
        }
    }
}

/// Classifies a string by its beginning.
pub(super) fn beginning(kind: StringKind, content: &[u8]) -> (StringKind, Verdict) {
    match kind {
        _ if content.is_empty() => (kind, Verdict::Open),
        StringKind::Osc => (kind, osc_beginning(content)),
        StringKind::Dcs => dcs_beginning(content),
        StringKind::Apc => (kind, apc_beginning(content)),
        StringKind::Passthrough => (kind, Verdict::Open),
        StringKind::Other => (kind, Verdict::Harmless),
    }
}

/// Classifies a complete string that its beginning left undecided.
pub(super) fn whole(kind: StringKind, content: &[u8]) -> Verdict {
    let is_query = match kind {
        StringKind::Osc => is_osc_query(content),
        StringKind::Dcs | StringKind::Other => false,
        StringKind::Apc => return graphics(content),
        StringKind::Passthrough => is_passed_query(content),
    };
    if is_query { Verdict::Query } else { Verdict::Harmless }
}

/// The number of an operating system command, and its arguments.
fn osc_parts(content: &[u8]) -> Option<(u32, Option<&[u8]>)> {
    let digits = content.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&content[..digits]).ok()?.parse().ok()?;
    match &content[digits..] {
        [] => Some((number, None)),
        [b';', rest @ ..] => Some((number, Some(rest))),
        _ => None,
    }
}

/// iTerm2 commands that are answered.
const REPORTS: [&[u8]; 4] =
    [b"ReportCellSize", b"ReportVariable=", b"Capabilities", b"RequestUpload="];

fn osc_beginning(content: &[u8]) -> Verdict {
    let Some((number, rest)) = osc_parts(content) else { return Verdict::Harmless };
    let Some(rest) = rest else {
        return if content.len() > 5 { Verdict::Harmless } else { Verdict::Open };
    };
    let open_if = |is_open: bool| if is_open { Verdict::Open } else { Verdict::Harmless };
    let mut fields = rest.split(|byte| *byte == b';');
    match number {
        // Lists of colours, in which any member may be a query.
        4 | 5 | 10..=19 | 21 | 666 => Verdict::Open,
        // One value, or a question mark for a query.
        22 | 39 | 49 | 50 | 176 | 701..=708 | 710..=713 => {
            open_if(rest.first().is_none_or(|byte| *byte == b'?'))
        }
        // Clipboard: selection, then the new content or a query.
        52 => match (fields.next(), fields.next()) {
            (Some(_), Some(data)) => open_if(data.is_empty() || data == b"?"),
            _ => Verdict::Open,
        },
        60 | 61 => Verdict::Query,
        // Metadata, then content of any length.
        99 | 5522 if rest.contains(&b';') => match is_osc_query(content) {
            true => Verdict::Query,
            false => Verdict::Harmless,
        },
        99 | 5522 => Verdict::Open,
        1337 => {
            let may_be = |name: &&[u8]| name.starts_with(rest) || rest.starts_with(name);
            open_if(REPORTS.iter().any(may_be))
        }
        _ => Verdict::Harmless,
    }
}

fn is_osc_query(content: &[u8]) -> bool {
    let Some((number, rest)) = osc_parts(content) else { return false };
    let Some(rest) = rest else { return matches!(number, 60 | 61) };
    let mut fields = rest.split(|byte| *byte == b';');
    match number {
        4 | 5 | 10..=19 => fields.any(|field| field == b"?"),
        21 => fields.any(|field| field.ends_with(b"=?")),
        666 => fields.any(|field| field.ends_with(b"?")),
        22 => rest.starts_with(b"?"),
        39 | 49 | 50 | 176 | 701..=708 | 710..=713 => rest == b"?",
        52 => fields.nth(1) == Some(b"?"),
        60 | 61 => true,
        99 => has_pair(fields.next(), b"p=?"),
        5522 => has_pair(fields.next(), b"type=read"),
        1337 => REPORTS.iter().any(|name| rest.starts_with(name)),
        _ => false,
    }
}

fn has_pair(metadata: Option<&[u8]>, pair: &[u8]) -> bool {
    metadata.is_some_and(|text| text.split(|byte| *byte == b':').any(|part| part == pair))
}

fn dcs_beginning(content: &[u8]) -> (StringKind, Verdict) {
    const TMUX: &[u8] = b"tmux;";
    const KITTY: &[u8] = b"@kitty-cmd";
    if content == TMUX {
        return (StringKind::Passthrough, Verdict::Open);
    }
    if content == KITTY {
        return (StringKind::Dcs, Verdict::Query);
    }
    if TMUX.starts_with(content) || KITTY.starts_with(content) {
        return (StringKind::Dcs, Verdict::Open);
    }
    let is_parameter = |byte: &&u8| (0x30..0x40).contains(*byte);
    let is_intermediate = |byte: &&u8| (0x20..0x30).contains(*byte);
    let parameters = content.iter().take_while(is_parameter).count();
    let rest = &content[parameters..];
    let intermediates = rest.iter().take_while(is_intermediate).count();
    let verdict = match (&rest[..intermediates], rest.get(intermediates)) {
        (_, None) => Verdict::Open,
        // DECRQSS, XTGETTCAP, XTGETXRES.
        (b"$", Some(b'q')) | (b"+", Some(b'q' | b'Q')) => Verdict::Query,
        _ => Verdict::Harmless,
    };
    (StringKind::Dcs, verdict)
}

fn apc_beginning(content: &[u8]) -> Verdict {
    match content {
        [b'G', rest @ ..] if !rest.contains(&b';') => Verdict::Open,
        [b'G', ..] => graphics(content),
        _ => Verdict::Harmless,
    }
}

/// kitty graphics: `G`, keys and values, then a semicolon and the payload. A command with an image id is answered
/// unless it has `q=2`.
fn graphics(content: &[u8]) -> Verdict {
    let Some(content) = content.strip_prefix(b"G") else { return Verdict::Harmless };
    let (control, payload) = match content.iter().position(|byte| *byte == b';') {
        Some(place) => content.split_at(place),
        None => (content, &[][..]),
    };
    let pairs = || control.split(|byte| *byte == b',');
    if pairs().any(|pair| pair == b"a=q") {
        return Verdict::Query;
    }
    let is_answered = pairs().any(|pair| pair.starts_with(b"i=") || pair.starts_with(b"I="));
    if !is_answered || pairs().any(|pair| pair == b"q=2") {
        return Verdict::Harmless;
    }
    let mut quiet = b"\x1b_Gq=2".to_vec();
    for pair in pairs().filter(|pair| !pair.is_empty() && !pair.starts_with(b"q=")) {
        quiet.push(b',');
        quiet.extend_from_slice(pair);
    }
    quiet.extend_from_slice(payload);
    Verdict::Replace(quiet)
}

fn is_passed_query(content: &[u8]) -> bool {
    let content = content.strip_prefix(b"tmux;").unwrap_or(content);
    let mut inner = Vec::with_capacity(content.len());
    let mut bytes = content.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        inner.push(byte);
        if byte == ESC && bytes.peek() == Some(&ESC) {
            bytes.next();
        }
    }
    let mut filter = QueryFilter::default();
    let mut shown = Vec::with_capacity(inner.len());
    filter.filter(&inner, &mut shown);
    filter.finish(&mut shown);
    shown != inner
}
