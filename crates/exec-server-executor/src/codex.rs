//! Compatibility with the Codex CLI: its configuration files, plugins, skills and sign-in.

pub mod agent_identity;
pub mod config;
pub mod discovery;
pub mod handlers;
pub mod sign_in;

mod sealed_box;
