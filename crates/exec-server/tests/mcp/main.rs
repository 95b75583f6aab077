//! `exec-server mcp` as an agent uses it: over stdio and HTTP, in both eras of the protocol.

mod agent;
mod codex;
mod conformance;
mod files;
mod inspector;
mod npm;
mod processes;
mod tasks;
mod transports;
mod twin;
