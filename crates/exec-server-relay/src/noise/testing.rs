//! A random number generator with scripted output, for test vectors.

use std::cell::RefCell;

use clatter::traits::{CryptoRng, RngCore};

thread_local! {
    static SCRIPT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Repeats each scripted byte 32 times; panics when the script is used up.
#[derive(Clone, Default)]
pub(crate) struct Scripted;

impl Scripted {
    /// Replaces this thread's script.
    pub(crate) fn expect(values: &[u8]) -> Self {
        SCRIPT.with_borrow_mut(|script| *script = values.iter().rev().copied().collect());
        Self
    }

    /// Whether every scripted byte was consumed.
    pub(crate) fn is_used_up() -> bool {
        SCRIPT.with_borrow(Vec::is_empty)
    }
}

impl RngCore for Scripted {
    fn next_u32(&mut self) -> u32 {
        panic!("only whole values are scripted")
    }

    fn next_u64(&mut self) -> u64 {
        panic!("only whole values are scripted")
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        for value in out.chunks_mut(32) {
            value.fill(SCRIPT.with_borrow_mut(Vec::pop).expect("scripted"));
        }
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), clatter::rand_core::Error> {
        self.fill_bytes(out);
        Ok(())
    }
}

impl CryptoRng for Scripted {}
