//! Websocket framing for the measuring client and the bare server.

use std::ops::Range;

/// Opcode of a text message.
pub const TEXT: u8 = 1;

/// A complete frame at the start of some bytes.
pub struct Frame {
    /// Opcode.
    pub opcode: u8,
    /// Whether this is the last frame of its message.
    pub last: bool,
    /// Mask of the payload.
    pub mask: Option<[u8; 4]>,
    /// Range of the payload; the frame ends with it.
    pub payload: Range<usize>,
}

/// Parses the first frame, if it is complete.
pub fn parse(bytes: &[u8]) -> Option<Frame> {
    let [first, second, ..] = *bytes else {
        return None;
    };
    let (length, mut start) = match second & 0x7f {
        126 => (u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?), 10),
        short => (u64::from(short), 2),
    };
    let mut mask = None;
    if second & 0x80 != 0 {
        mask = Some(bytes.get(start..start + 4)?.try_into().ok()?);
        start += 4;
    }
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (bytes.len() >= end).then_some(Frame {
        opcode: first & 0x0f,
        last: first & 0x80 != 0,
        mask,
        payload: start..end,
    })
}

/// Appends the header of a frame that is a whole message.
pub fn push_header(out: &mut Vec<u8>, opcode: u8, length: usize, mask: Option<[u8; 4]>) {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    out.push(0x80 | opcode);
    match length {
        0..=125 => out.push(masked | length as u8),
        126..=0xffff => {
            out.push(masked | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(mask.as_ref().map_or(&[], |key| key.as_slice()));
}

/// Masks or unmasks a payload.
pub fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = payload.chunks_exact_mut(8);
    for word in &mut words {
        let value = u64::from_ne_bytes((&*word).try_into().expect("the chunk has eight bytes"));
        word.copy_from_slice(&(value ^ wide).to_ne_bytes());
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(wide.to_ne_bytes()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_frame_of_every_length_form_comes_back_as_it_was() {
        for length in [0, 1, 125, 126, 65535, 65536, 100_003] {
            let original: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
            let mut bytes = Vec::new();
            let mask = [1, 2, 3, 4];
            push_header(&mut bytes, TEXT, length, Some(mask));
            let start = bytes.len();
            bytes.extend_from_slice(&original);
            apply_mask(&mut bytes[start..], mask);

            assert!(parse(&bytes[..bytes.len() - 1]).is_none());
            let frame = parse(&bytes).unwrap();
            let payload = &mut bytes[frame.payload];
            apply_mask(payload, frame.mask.unwrap());
            assert_eq!(payload, original);
        }
    }
}
