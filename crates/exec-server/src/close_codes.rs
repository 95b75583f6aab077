//! Websocket close codes that this server sends.

/// All is said.
pub const NORMAL: u16 = 1000;
/// The server is going away.
pub const GOING_AWAY: u16 = 1001;
/// The peer broke the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// Another connection resumed the session.
pub const SESSION_MOVED: u16 = 4001;
