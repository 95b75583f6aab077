//! Websocket close codes that this server chooses. The websocket itself adds 1009 for a message that is too large.

/// The client has closed its input, and all replies were sent.
pub const NORMAL: u16 = 1000;
/// The server shuts down, or cannot serve this connection.
pub const GOING_AWAY: u16 = 1001;
/// The peer violated the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// The credential of the connection is no longer valid.
pub const POLICY_VIOLATION: u16 = 1008;
/// Another connection resumed the session.
pub const SESSION_MOVED: u16 = exec_server_protocol::session::SESSION_MOVED_CLOSE_CODE;
