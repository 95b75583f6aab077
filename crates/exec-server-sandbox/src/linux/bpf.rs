//! A small assembler for seccomp programs: instructions in order, forward labels, jumps of any length.
//!
//! A classic BPF condition can skip at most 255 instructions. `finish` gives a condition with a farther label a second
//! instruction, which can jump any distance.
//!
//! Invariant: jumps go forward only, as the kernel requires, so every program terminates.

use libc::seccomp_data;

/// One instruction, as the kernel takes it.
pub use libc::sock_filter as SockFilter;

/// The result of a program for a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call is made.
    Allow,
    /// The call fails with this errno.
    Errno(i32),
    /// The call waits for the listener, which decides how it fails.
    Notify,
    /// The whole process is killed with `SIGSYS`.
    KillProcess,
}

impl Action {
    /// The return value of the program.
    pub fn code(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
            Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
            Self::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// A forward jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A condition on the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is this value.
    Equal(u32),
    /// It is this value or a larger one, unsigned.
    AtLeast(u32),
    /// It has at least one of these bits.
    AnyBit(u32),
}

/// Collects the instructions of one program.
#[derive(Default)]
pub struct Assembler {
    items: Vec<Item>,
    labels: usize,
}

impl Assembler {
    /// Creates a label to be placed by `mark`.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places the label here.
    pub fn mark(&mut self, label: Label) {
        self.items.push(Item::Mark(label));
    }

    /// Loads the number of the system call.
    pub fn load_number(&mut self) {
        self.load(std::mem::offset_of!(seccomp_data, nr));
    }

    /// Loads the architecture whose calling convention the call uses.
    pub fn load_arch(&mut self) {
        self.load(std::mem::offset_of!(seccomp_data, arch));
    }

    /// Loads the low 32 bits of an argument; for an `int` the kernel ignores the rest.
    pub fn load_low(&mut self, argument: usize) {
        const { assert!(cfg!(target_endian = "little"), "the low half comes first") };
        assert!(argument < 6, "a system call has six arguments");
        self.load(std::mem::offset_of!(seccomp_data, args) + 8 * argument);
    }

    /// Loads the high 32 bits of an argument, which matter for pointers.
    pub fn load_high(&mut self, argument: usize) {
        assert!(argument < 6, "a system call has six arguments");
        self.load(std::mem::offset_of!(seccomp_data, args) + 8 * argument + 4);
    }

    /// Masks the accumulator.
    pub fn keep_bits(&mut self, mask: u32) {
        self.plain(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask);
    }

    /// Goes to the label if the test holds, otherwise on.
    pub fn jump_if(&mut self, test: Test, to: Label) {
        self.items.push(Item::Branch { test, holds: true, to });
    }

    /// Goes to the label if the test does not hold, otherwise on.
    pub fn jump_unless(&mut self, test: Test, to: Label) {
        self.items.push(Item::Branch { test, holds: false, to });
    }

    /// Goes to the label.
    pub fn jump(&mut self, to: Label) {
        self.items.push(Item::Jump(to));
    }

    /// Returns `action`.
    pub fn answer(&mut self, action: Action) {
        self.plain(libc::BPF_RET | libc::BPF_K, action.code());
    }

    /// Assembles a fragment to be placed later by `append`.
    pub fn aside(&mut self, body: impl FnOnce(&mut Self)) -> Fragment {
        let before = std::mem::take(&mut self.items);
        body(self);
        Fragment(std::mem::replace(&mut self.items, before))
    }

    /// Places the fragment here.
    pub fn append(&mut self, fragment: Fragment) {
        self.items.extend(fragment.0);
    }

    /// The finished program.
    pub fn finish(self) -> Vec<SockFilter> {
        let mut far = vec![false; self.items.len()];
        loop {
            let layout = self.place(&far);
            let grown = self.items.iter().enumerate().filter(|(index, item)| match item {
                Item::Branch { to, .. } => !far[*index] && layout.distance(*index, *to) > 255,
                _ => false,
            });
            let grown: Vec<usize> = grown.map(|(index, _)| index).collect();
            if grown.is_empty() {
                return self.emit(&far, &layout);
            }
            grown.into_iter().for_each(|index| far[index] = true);
        }
    }

    fn load(&mut self, offset: usize) {
        self.plain(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    }

    fn plain(&mut self, code: u32, value: u32) {
        self.items.push(Item::Plain(instruction(code, 0, 0, value)));
    }

    /// Computes all positions, with two instructions for each condition in `far`.
    fn place(&self, far: &[bool]) -> Layout {
        let mut layout = Layout { items: Vec::new(), labels: vec![None; self.labels] };
        let mut position = 0;
        for (item, far) in self.items.iter().zip(far) {
            layout.items.push(position);
            match item {
                Item::Mark(Label(label)) => {
                    let before = layout.labels[*label].replace(position);
                    assert!(before.is_none(), "a label has one place");
                }
                Item::Branch { .. } if *far => position += 2,
                Item::Branch { .. } | Item::Jump(_) | Item::Plain(_) => position += 1,
            }
        }
        layout
    }

    fn emit(&self, far: &[bool], layout: &Layout) -> Vec<SockFilter> {
        let mut program = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            match *item {
                Item::Mark(_) => {}
                Item::Plain(plain) => program.push(plain),
                Item::Jump(to) => program.push(jump(layout.distance(index, to))),
                Item::Branch { test, holds, to } if far[index] => {
                    program.push(branch(test, !holds, 1));
                    program.push(jump(layout.distance(index, to) - 1));
                }
                Item::Branch { test, holds, to } => {
                    program.push(branch(test, holds, layout.distance(index, to) as u8));
                }
            }
        }
        assert!(program.len() <= libc::BPF_MAXINSNS as usize, "the kernel takes no longer program");
        program
    }
}

/// Instructions that are not placed yet.
pub struct Fragment(Vec<Item>);

enum Item {
    Plain(SockFilter),
    Branch { test: Test, holds: bool, to: Label },
    Jump(Label),
    Mark(Label),
}

struct Layout {
    items: Vec<usize>,
    labels: Vec<Option<usize>>,
}

impl Layout {
    /// The number of instructions between the item's first one and the label.
    fn distance(&self, item: usize, label: Label) -> usize {
        let target = self.labels[label.0].expect("every label that is used is marked");
        target.checked_sub(self.items[item] + 1).expect("jumps go forward")
    }
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> SockFilter {
    SockFilter { code: code as u16, jt, jf, k }
}

fn jump(distance: usize) -> SockFilter {
    instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, distance as u32)
}

/// Skips `distance` instructions if the test's outcome is `holds`.
fn branch(test: Test, holds: bool, distance: u8) -> SockFilter {
    let (operation, value) = match test {
        Test::Equal(value) => (libc::BPF_JEQ, value),
        Test::AtLeast(value) => (libc::BPF_JGE, value),
        Test::AnyBit(value) => (libc::BPF_JSET, value),
    };
    let (jt, jf) = if holds { (distance, 0) } else { (0, distance) };
    instruction(libc::BPF_JMP | operation | libc::BPF_K, jt, jf, value)
}

#[cfg(test)]
pub mod evaluator;
#[cfg(test)]
mod tests;
