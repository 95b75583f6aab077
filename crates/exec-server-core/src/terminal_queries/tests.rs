use proptest::prelude::*;

use super::*;

/// Sequences that terminals answer.
const QUERIES: &[&[u8]] = &[
    b"\x1b[5n",
    b"\x1b[6n",
    b"\x1b[?6n",
    b"\x1b[?996n",
    b"\x9b6n",
    b"\xc2\x9b6n",
    b"\x1b[c",
    b"\x1b[0c",
    b"\x1b[>c",
    b"\x1b[>0c",
    b"\x1b[=c",
    b"\x1bZ",
    b"\x9a",
    b"\x05",
    b"\x1b[4$p",
    b"\x1b[?2026$p",
    b"\x1b[x",
    b"\x1b[11t",
    b"\x1b[13;2t",
    b"\x1b[14t",
    b"\x1b[14;2t",
    b"\x1b[15t",
    b"\x1b[16t",
    b"\x1b[18t",
    b"\x1b[019t",
    b"\x1b[20t",
    b"\x1b[21t",
    b"\x1b[>q",
    b"\x1b[>0q",
    b"\x1b[> q",
    b"\x1b[?u",
    b"\x1b[?4m",
    b"\x1b[?1;1;0S",
    b"\x1b[&u",
    b"\x1b[1$w",
    b"\x1b[1;1;1;1;1;1*y",
    b"\x1b[\"v",
    b"\x1b['|",
    b"\x1b[1;1;2;2#|",
    b"\x1b[#R",
    b"\x1b[?1004h",
    b"\x1b[?2048h",
    b"\x1b[?1004;02048h",
    b"\x9b?1004h",
    b"\x1b]4;1;?\x07",
    b"\x1b]4;1;red;2;?\x1b\\",
    b"\x1b]10;?\x07",
    b"\x1b]11;?\x1b\\",
    b"\x1b]11;?\x9c",
    b"\x9d11;?\x9c",
    b"\xc2\x9d12;?\xc2\x9c",
    b"\x1b]10;?;?\x07",
    b"\x1b]1\x007;?\x07",
    b"\x1b]21;foreground=?;background=#fff\x1b\\",
    b"\x1b]22;?__current__\x1b\\",
    b"\x1b]50;?\x07",
    b"\x1b]52;c;?\x07",
    b"\x1b]60\x07",
    b"\x1b]61;allowColorOps\x1b\\",
    b"\x1b]99;i=1:p=?;\x1b\\",
    b"\x1b]5522;type=read;dGV4dA==\x1b\\",
    b"\x1b]702;?\x07",
    b"\x1b]1337;ReportCellSize\x07",
    b"\x1b]1337;ReportVariable=bmFtZQ==\x07",
    b"\x1bP+q544e;436f\x1b\\",
    b"\x1bP$qm\x1b\\",
    b"\x1bP1$qm\x1b\\",
    b"\x90+q544e\x9c",
    b"\x1bP+Q666f\x1b\\",
    b"\x1bP@kitty-cmd{\"cmd\":\"ls\"}\x1b\\",
    b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
    b"\x1bPtmux;\x1b\x1b[6n\x1b\\",
    b"\x1bPtmux;hello\x1b\x1b]11;?\x07\x1b\\",
];

/// Similar sequences without an answer, and other output of programs.
const OTHERS: &[&[u8]] = &[
    b"text, \xc3\xa9\xc4\x9b \xe2\x9c\x9c \xf0\x9f\x98\x80 6n c",
    b"\r\n\t\x08\x07",
    b"\x1b[m",
    b"\x1b[1;31m",
    b"\x1b[38:2::1:2:3m",
    b"\x1b[>4;2m",
    b"\x1b[>4n",
    b"\x1b[H\x1b[2J",
    b"\x1b[3;4f",
    b"\x1b[?25l\x1b[?1049h\x1b[?2004h",
    b"\x1b[?6c",
    b"\x1b[?1004l\x1b[?2048l\x1b[1004h\x1b[?1004$h\x1b[?1004r",
    b"\x1b[2 q",
    b"\x1b[1\"q",
    b"\x1b[22;0t\x1b[23;0t\x1b[8;24;80t",
    b"\x1b[>2t",
    b"\x1b[!p",
    b"\x1b[61\"p",
    b"\x1b[u\x1b[s",
    b"\x1b[>1u\x1b[<u\x1b[=5;1u",
    b"\x1b[1S\x1b[2T",
    b"\x1b[1;1;2;2$x",
    b"\x1b[2*x",
    b"\x1b7\x1b8\x1b=\x1b>\x1bM\x1bc\x1b#8\x1b(B\x1b%G",
    b"\x1b[1?6n",
    b"\x1b[6$5n",
    b"\x1b[6\x18n",
    b"\x1b]0;a title; is it one?\x07",
    b"\x1b]2;\xe2\x9c\x9c\x1b\\",
    b"\x1b]4;1;rgb:00/00/00\x1b\\",
    b"\x1b]11;#ffffff\x07",
    b"\x1b]104\x07\x1b]110\x1b\\",
    b"\x1b]7;file://host/tmp?x\x07",
    b"\x1b]8;;http://example.org/?\x1b\\link\x1b]8;;\x1b\\",
    b"\x1b]9;?\x07",
    b"\x1b]52;c;aGVsbG8=\x07",
    b"\x1b]52;c;\x07",
    b"\x1b]50;fixed\x07",
    b"\x1b]133;A\x07",
    b"\x1b]1337;File=inline=1:AAAA\x07",
    b"\x1b]1337;RemoteHost=a@b\x07",
    b"\x1b]99;i=1:d=0;hello p=?\x1b\\",
    b"\x1bP0;1|17/17\x9c",
    b"\x1bPq#0;2;0;0;0~-\x1b\\",
    b"\x1bP=1s\x1b\\",
    b"\x1bP+p544e\x1b\\",
    b"\x1bPtmux;\x1b\x1b[31mred\x1b\\",
    b"\x1b_Ga=T,f=100;AAAA\x1b\\",
    b"\x1b_Gm=1;AAAA\x1b\\",
    b"\x1b_Gq=2,i=3,a=T;AAAA\x1b\\",
    b"\x1b_something else\x1b\\",
    b"\x1b^a message\x1b\\\x1bXa string\x1b\\",
    b"\x1bkscreen\x1b\\",
];

#[test]
fn a_query_is_dropped() {
    for query in QUERIES {
        let around = [b"before", *query, b"after"].concat();
        assert_eq!(shown(&[&around]), "beforeafter", "{:?}", query.escape_ascii().to_string());
    }
}

#[test]
fn everything_else_is_shown_as_it_is() {
    for other in OTHERS {
        let result = filtered(&[other]);
        assert_eq!(result.escape_ascii().to_string(), other.escape_ascii().to_string());
    }
}

#[test]
fn controls_inside_a_query_are_executed() {
    assert_eq!(shown(&[b"a\x1b[6\r\n\x05nb"]), "a\\r\\nb");
    assert_eq!(shown(&[b"a\x1b\n[6nb"]), "a\\nb");
}

#[test]
fn the_remaining_output_is_no_query() {
    assert_eq!(shown(&[b"\x1b[\x1bZ6n"]), "\\x1b[\\x186n");
    assert_eq!(shown(&[b"\x1b\x1bZc"]), "\\x1b\\x18c");
    assert_eq!(shown(&[b"\x1b]0;title\x1bZtext"]), "\\x1b]0;title\\x18text");
    assert_eq!(shown(&[b"\x1b[\x1b[31m6n"]), "\\x1b[\\x1b[31m6n");
}

#[test]
fn a_string_that_is_broken_off_is_judged_like_a_whole_one() {
    assert_eq!(shown(&[b"\x1b]11;?\x18text"]), "\\x18text");
    assert_eq!(shown(&[b"\x1b]11;?\x1b[31mtext"]), "\\x1b[31mtext");
    assert_eq!(shown(&[b"\x1bP+q54\x1b[31mtext"]), "\\x1b[31mtext");
}

#[test]
fn an_image_keeps_its_effect_without_its_answer() {
    assert_eq!(
        shown(&[b"\x1b_Ga=T,i=7,q=1,f=100;AAAA\x1b\\"]),
        "\\x1b_Gq=2,a=T,i=7,f=100;AAAA\\x1b\\\\"
    );
    assert_eq!(shown(&[b"\x1b_Ga=d,i=7\x1b\\"]), "\\x1b_Gq=2,a=d,i=7\\x1b\\\\");
}

#[test]
fn modes_that_are_answered_leave_the_rest_of_their_list() {
    assert_eq!(shown(&[b"\x1b[?1004;25h"]), "\\x1b[?25h");
    assert_eq!(shown(&[b"\x1b[?1;1004;2048;2004h"]), "\\x1b[?1;2004h");
    assert_eq!(shown(&[b"\x1b[?10\n04;25h"]), "\\n\\x1b[?25h");
    assert_eq!(shown(&[b"\x1b[?\x1b[?10\n04;25h"]), "\\x1b[?\\x18\\n\\x1b[?25h");
}

#[test]
fn modes_that_are_still_on_are_set_after_the_replay() {
    let set = |output: &[u8]| {
        let (mut filter, mut shown) = (QueryFilter::default(), Vec::new());
        filter.filter(output, &mut shown);
        shown.clear();
        filter.set_modes(&mut shown);
        let first = shown.escape_ascii().to_string();
        shown.clear();
        filter.set_modes(&mut shown);
        assert!(shown.is_empty(), "they are set once");
        first
    };
    assert_eq!(set(b"\x1b[?1004h\x1b[?25;2048h"), "\\x1b[?1004h\\x1b[?2048h");
    assert_eq!(set(b"\x1b[?1004;2048h\x1b[?25;1004l"), "\\x1b[?2048h");
    assert_eq!(set(b"\x1b[?1004h\x1b[?1004l"), "");
    assert_eq!(set(b"\x1b[?1004h\x1bc"), "");
    assert_eq!(set(b"\x1b[1004h"), "");
}

#[test]
fn a_decided_sequence_is_shown_before_its_end() {
    let mut filter = QueryFilter::default();
    let mut shown = Vec::new();
    // The Linux console sets a colour without a terminator.
    filter.filter(b"\x1b]P1ff0000text", &mut shown);
    assert_eq!(shown, b"\x1b]P1ff0000text");
    let mut filter = QueryFilter::default();
    filter.filter(b"\x1b]0;a long", &mut shown);
    assert!(shown.ends_with(b"a long") && filter.is_within_sequence());
}

#[test]
fn held_bytes_are_bounded() {
    for (start, is_shown) in [("\x1b[", false), ("\x1b]4;", false), ("\x1b]0;", true)] {
        let mut filter = QueryFilter::default();
        let mut shown = Vec::new();
        filter.filter(start.as_bytes(), &mut shown);
        for _ in 0..100 {
            filter.filter(&[b'1'; 4096], &mut shown);
            assert!(filter.held.len() <= MAX_HELD_BYTES + 2);
        }
        filter.filter(b"n\x07after", &mut shown);
        assert!(shown.ends_with(b"after"), "{start:?}");
        assert_eq!(shown.len() > 100 * 4096, is_shown, "{start:?}");
    }
}

#[test]
fn an_unfinished_sequence_is_shown_at_the_end() {
    for start in ["\x1b", "\x1b[6", "\x1b]0;title", "\x1b]0;title\x1b", "\x1bPtmux;\x1b"] {
        assert_eq!(filtered(&[start.as_bytes()]), start.as_bytes());
    }
    assert_eq!(filtered(&[b"\xc2"]), b"\xc2");
    assert_eq!(filtered(&[b"\x1b]11;?"]), b"");
}

proptest! {
    #[test]
    fn only_queries_are_missing_however_the_output_is_cut(
        items in prop::collection::vec(item(), 0..20),
        cuts in prop::collection::vec(1_usize..9, 1..40),
    ) {
        let whole: Vec<u8> = items.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let kept: Vec<u8> =
            items.iter().filter(|(_, is_query)| !is_query).flat_map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(filtered(&pieces(&whole, &cuts)), kept);
    }

    #[test]
    fn any_output_is_filtered_the_same_however_it_is_cut(
        whole in noise(),
        cuts in prop::collection::vec(1_usize..9, 1..40),
    ) {
        prop_assert_eq!(filtered(&pieces(&whole, &cuts)), filtered(&[&whole]));
    }

    #[test]
    fn filtered_output_has_no_query(whole in noise()) {
        let once = filtered(&[&whole]);
        prop_assert_eq!(filtered(&[&once]), once);
    }
}

fn item() -> impl Strategy<Value = (Vec<u8>, bool)> {
    prop_oneof![
        prop::sample::select(QUERIES).prop_map(|bytes| (bytes.to_vec(), true)),
        prop::sample::select(OTHERS).prop_map(|bytes| (bytes.to_vec(), false)),
        "[ -~]{0,6}".prop_map(|text| (text.into_bytes(), false)),
    ]
}

/// Random bytes from the alphabet of escape sequences.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    const BYTES: &[u8] = b"\x1b\x1b\x1b[[]P_\\;;?>=$+qQncptuZ0146GaiX^\x05\x07\x18\n\x9b\x9c\x9d\x90\xc2\xc4\xe2 m#R|x";
    let byte = prop::sample::select(BYTES).prop_map(|byte| vec![byte]);
    let piece = prop::sample::select(QUERIES).prop_map(<[u8]>::to_vec);
    let other = prop::sample::select(OTHERS).prop_map(<[u8]>::to_vec);
    prop::collection::vec(prop_oneof![8 => byte, 1 => piece, 1 => other], 0..60)
        .prop_map(|parts| parts.concat())
}

fn pieces<'a>(mut whole: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for len in cuts.iter().cycle() {
        if whole.is_empty() {
            break;
        }
        let (piece, rest) = whole.split_at((*len).min(whole.len()));
        pieces.push(piece);
        whole = rest;
    }
    pieces
}

fn filtered(pieces: &[&[u8]]) -> Vec<u8> {
    let mut filter = QueryFilter::default();
    let mut shown = Vec::new();
    for piece in pieces {
        filter.filter(piece, &mut shown);
    }
    filter.finish(&mut shown);
    shown
}

fn shown(pieces: &[&[u8]]) -> String {
    filtered(pieces).escape_ascii().to_string()
}
