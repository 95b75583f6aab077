//! `user`: processes of other users, started by a server that may change users.

mod clients;
mod fixture;
mod processes;
mod sandboxed;
