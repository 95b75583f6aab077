//! `fs/*` on real file systems: on a disk and in memory.

mod copying_trees;
mod layout;
mod listing;
mod ordinary_user;
mod reading;
mod removing;
mod walking;
mod watching;
