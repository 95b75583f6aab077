//! `exec-server mcp` as an agent uses it: over stdio and HTTP, in both eras of the protocol.

mod agent;
mod conformance;
mod files;
mod processes;
mod transports;
