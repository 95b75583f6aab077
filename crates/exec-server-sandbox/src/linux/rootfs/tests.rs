//! Real views in real namespaces, attacked from inside.

mod base;
mod carve_outs;
mod harness;
mod host_mounts;
mod hostile;
mod links;
mod privates;
mod script;
