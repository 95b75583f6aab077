//! File requests inside a sandbox.
//!
//! | look here | for |
//! |---|---|
//! | [`client`] | the server's side |
//! | [`serve`] | the worker inside |
//! | [`wire`] | the frames between them |

pub mod client;
pub mod serve;
pub mod wire;
