//! `user`: processes and files of other users, on a server that may change users.

mod clients;
mod files;
mod fixture;
mod processes;
mod sandboxed;
