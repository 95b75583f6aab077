use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

struct Pieces {
    starts: Vec<SegmentStart>,
    segments: Vec<Vec<OutputRecord>>,
}

impl OutputSource for Pieces {
    type Error = Infallible;

    fn segments(&self) -> &[SegmentStart] {
        &self.starts
    }

    fn load(&mut self, index: usize) -> Result<Vec<OutputRecord>, Infallible> {
        Ok(self.segments[index].clone())
    }
}

/// Output from this offset on; `2` before a piece means stderr.
fn pieces(first: u64, texts: &[&str], per_segment: usize) -> Pieces {
    let mut offset = first;
    let mut records = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let (stream, text) = match text.strip_prefix('2') {
            Some(text) => (OutputStream::Stderr, text),
            None => (OutputStream::Stdout, *text),
        };
        let bytes = text.as_bytes().to_vec();
        records.push(OutputRecord { seq: number as u64 + 1, at_ms: 0, stream, offset, bytes });
        offset += text.len() as u64;
    }
    let segments: Vec<Vec<_>> = records.chunks(per_segment).map(<[_]>::to_vec).collect();
    let start = |records: &Vec<OutputRecord>| SegmentStart {
        seq: records[0].seq,
        offset: records[0].offset,
    };
    Pieces { starts: segments.iter().map(start).collect(), segments }
}

const ALL: Page = Page { bytes: u64::MAX, records: usize::MAX };

fn text(selected: &Selected) -> String {
    let bytes = selected.records.iter().flat_map(|record| record.bytes.clone()).collect();
    String::from_utf8(bytes).unwrap()
}

fn show(texts: &[&str], wanted: fn() -> Wanted<'static>) -> String {
    let shown: Vec<String> = [1, 2, 9]
        .map(|per_segment| {
            text(&select(&mut pieces(100, texts, per_segment), wanted(), ALL).unwrap())
        })
        .to_vec();
    assert!(shown.iter().all(|it| *it == shown[0]), "{shown:?}");
    shown[0].clone()
}

#[test]
fn parts_are_cut_at_bytes_and_lines() {
    let texts = ["a\nbb", "b\ncc", "c\n"];
    assert_eq!(show(&texts, || Wanted::Offset(0)), "a\nbbb\nccc\n");
    assert_eq!(show(&texts, || Wanted::Offset(103)), "bb\nccc\n");
    assert_eq!(show(&texts, || Wanted::Offset(500)), "");
    assert_eq!(show(&texts, || Wanted::HeadBytes(5)), "a\nbbb");
    assert_eq!(show(&texts, || Wanted::HeadBytes(0)), "");
    assert_eq!(show(&texts, || Wanted::HeadLines(2)), "a\nbbb\n");
    assert_eq!(show(&texts, || Wanted::HeadLines(0)), "");
    assert_eq!(show(&texts, || Wanted::HeadLines(9)), "a\nbbb\nccc\n");
    assert_eq!(show(&texts, || Wanted::TailLines(1)), "ccc\n");
    assert_eq!(show(&texts, || Wanted::TailLines(2)), "bbb\nccc\n");
    assert_eq!(show(&texts, || Wanted::TailLines(9)), "a\nbbb\nccc\n");
    assert_eq!(show(&texts, || Wanted::TailLines(0)), "");
    assert_eq!(show(&["a\nno end"], || Wanted::TailLines(1)), "no end");
    assert_eq!(show(&[], || Wanted::TailLines(1)), "");
    assert_eq!(show(&texts, || Wanted::AfterSeq(1)), "b\nccc\n");
    assert_eq!(show(&texts, || Wanted::AfterSeq(3)), "");
}

#[test]
fn pages_continue_where_the_last_one_ended() {
    let texts = ["one", "two", "three"];
    let page = Page { bytes: 4, records: 9 };
    let (mut offset, mut all, mut count) = (0, String::new(), 0);
    loop {
        let got = select(&mut pieces(7, &texts, 2), Wanted::Offset(offset), page).unwrap();
        if got.records.is_empty() {
            break;
        }
        count += 1;
        all += &text(&got);
        offset = got.next_offset;
    }
    assert_eq!((all.as_str(), count, offset), ("onetwothree", 3, 18));
}

#[test]
fn a_search_finds_lines_of_each_stream() {
    let is_a = |line: &[u8]| line.contains(&b'a');
    let texts = ["ba", "2err a", "r\nno\n", "2\nlast a"];
    for per_segment in [1, 9] {
        let mut source = pieces(10, &texts, per_segment);
        let got = select(&mut source, Wanted::Lines(0, &is_a), ALL).unwrap();
        let lines: Vec<_> = got
            .records
            .iter()
            .map(|it| (it.seq, it.offset, String::from_utf8_lossy(&it.bytes).into_owned()))
            .collect();
        let expected = [(1, 10, "bar\n"), (2, 12, "err a\n"), (4, 23, "last a")];
        assert_eq!(lines, expected.map(|(seq, offset, text)| (seq, offset, text.to_owned())));
        let one = Page { bytes: u64::MAX, records: 1 };
        let first = select(&mut source, Wanted::Lines(0, &is_a), one).unwrap();
        assert_eq!((first.records.len(), first.next_offset), (1, 12));
        let rest = select(&mut source, Wanted::Lines(first.next_offset, &is_a), ALL).unwrap();
        assert_eq!(rest.records.len(), 2);
    }
}

proptest! {
    #[test]
    fn lines_are_those_of_the_whole_text(
        texts in prop::collection::vec("[ab\n]{1,6}", 0..12), per_segment in 1..4_usize, count in 0..6_u64,
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let whole = texts.concat();
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        let count_usize = count as usize;
        let head = select(&mut pieces(3, &texts, per_segment), Wanted::HeadLines(count), ALL).unwrap();
        prop_assert_eq!(text(&head), lines[..count_usize.min(lines.len())].concat());
        let tail = select(&mut pieces(3, &texts, per_segment), Wanted::TailLines(count), ALL).unwrap();
        prop_assert_eq!(text(&tail), lines[lines.len().saturating_sub(count_usize)..].concat());
        let has_a = |line: &[u8]| line.contains(&b'a');
        let found = select(&mut pieces(3, &texts, per_segment), Wanted::Lines(0, &has_a), ALL).unwrap();
        let expected: String = lines.iter().filter(|line| line.contains('a')).copied().collect();
        prop_assert_eq!(text(&found), expected);
    }
}
