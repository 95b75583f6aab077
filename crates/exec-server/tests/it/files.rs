//! `fs/*` on real file systems: on a disk and in memory.

mod reading;
