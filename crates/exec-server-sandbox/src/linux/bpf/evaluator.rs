//! Interprets a seccomp program without installing it.

use libc::seccomp_data;

use super::SockFilter;

pub fn evaluate(program: &[SockFilter], data: &seccomp_data) -> u32 {
    run(program, data).0
}

/// The number of instructions that are executed for this call.
pub fn steps(program: &[SockFilter], data: &seccomp_data) -> usize {
    run(program, data).1
}

fn run(program: &[SockFilter], data: &seccomp_data) -> (u32, usize) {
    let mut accumulator = 0;
    let mut next = 0;
    let mut steps = 0;
    loop {
        steps += 1;
        let SockFilter { code, jt, jf, k } = program[next];
        next += 1;
        let by = |holds: bool| usize::from(if holds { jt } else { jf });
        match u32::from(code) {
            LOAD => accumulator = load(data, k),
            AND => accumulator &= k,
            RETURN => return (k, steps),
            JUMP => next += k as usize,
            EQUAL => next += by(accumulator == k),
            AT_LEAST => next += by(accumulator >= k),
            ANY_BIT => next += by(accumulator & k != 0),
            other => panic!("the assembler makes no instruction {other:#x}"),
        }
    }
}

/// The data of a call as the kernel passes it to a program.
pub fn call(arch: u32, number: libc::c_long, arguments: &[u64]) -> seccomp_data {
    let mut args = [0; 6];
    args[..arguments.len()].copy_from_slice(arguments);
    seccomp_data { nr: number as libc::c_int, arch, instruction_pointer: 0, args }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

fn load(data: &seccomp_data, offset: u32) -> u32 {
    let halves = data.args.iter().flat_map(|argument| [*argument as u32, (*argument >> 32) as u32]);
    let pointer = data.instruction_pointer;
    let head = [data.nr as u32, data.arch, pointer as u32, (pointer >> 32) as u32];
    let words: Vec<u32> = head.into_iter().chain(halves).collect();
    assert_eq!(offset % 4, 0, "the kernel loads aligned words only");
    words[offset as usize / 4]
}
