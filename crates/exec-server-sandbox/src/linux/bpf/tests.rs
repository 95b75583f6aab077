use super::evaluator::{call, evaluate};
use super::*;

const FAR: usize = 1000;

/// A program that denies number 7, with `gap` instructions between the condition and its label.
fn program_with_a_gap(gap: usize, unless: bool) -> Vec<SockFilter> {
    let mut assembler = Assembler::default();
    let deny = assembler.label();
    assembler.load_number();
    if unless {
        let allow = assembler.label();
        assembler.jump_if(Test::Equal(7), deny);
        assembler.jump_unless(Test::Equal(7), allow);
        (0..gap).for_each(|_| assembler.answer(Action::KillProcess));
        assembler.mark(allow);
        assembler.answer(Action::Allow);
    } else {
        assembler.jump_if(Test::Equal(7), deny);
        (0..gap).for_each(|_| assembler.answer(Action::Allow));
    }
    assembler.mark(deny);
    assembler.answer(Action::Errno(libc::EPERM));
    assembler.finish()
}

#[test]
fn a_jump_reaches_its_label_at_every_distance() {
    for gap in [1, 2, 253, 254, 255, 256, 257, FAR] {
        for unless in [false, true] {
            let program = program_with_a_gap(gap, unless);
            let of = |number| evaluate(&program, &call(0, number, &[]));
            assert_eq!(of(7), Action::Errno(libc::EPERM).code(), "{gap} {unless}");
            assert_eq!(of(8), Action::Allow.code(), "{gap} {unless}");
        }
    }
}

#[test]
fn only_a_far_label_costs_a_second_instruction() {
    assert_eq!(program_with_a_gap(255, false).len(), 1 + 1 + 255 + 1);
    assert_eq!(program_with_a_gap(256, false).len(), 1 + 2 + 256 + 1);
}

#[test]
fn arguments_are_compared_on_their_low_half() {
    let mut assembler = Assembler::default();
    let deny = assembler.label();
    assembler.load_low(5);
    assembler.keep_bits(0xf);
    assembler.jump_if(Test::AtLeast(3), deny);
    assembler.answer(Action::Allow);
    assembler.mark(deny);
    assembler.answer(Action::KillProcess);
    let program = assembler.finish();
    let of = |argument| evaluate(&program, &call(0, 0, &[9, 9, 9, 9, 9, argument]));
    assert_eq!(of(0xf0 | 2), Action::Allow.code());
    assert_eq!(of(0xf_0000_0000 | 2), Action::Allow.code());
    assert_eq!(of(0xf_0000_0000 | 3), Action::KillProcess.code());
}

#[test]
#[should_panic(expected = "jumps go forward")]
fn a_jump_backwards_is_a_bug() {
    let mut assembler = Assembler::default();
    let back = assembler.label();
    assembler.mark(back);
    assembler.jump(back);
    assembler.finish();
}
