//! The rules of exec-server: state machines without I/O, clocks or tasks.
//!
//! | machine | its rule | its owner |
//! |---|---|---|
//! | [`process_log`] | sequence numbers, retained output, exit, closed, expiry | the process task |
//! | [`stdin_ledger`] | writes in order, each applied once, with backpressure | the process task |
//! | [`attachment`] | who is attached to a session, and how long it waits for the next | the session task |
//! | [`phase`] | what a connection may ask for yet | the connection task |
//! | [`admission`] | how many requests of a connection run at once | the connection task |
//! | [`handle_table`] | the file handles of a connection | the connection's requests |
//! | [`keepalive`] | when to ping and when a peer is gone | the connection task |
//! | [`calls`] | the calls of a client that wait for an answer | the client's connection |
//! | [`event_order`] | the events of a process in order, and what is missing | the client's process |
//! | [`event_log`] | the latest events, for readers at their own pace | the client's process |
//! | [`recovery`], [`backoff`] | when a client dials, and when it gives up | the client's driver |
//! | [`noise`] | the encrypted channel through a relay | the task of a relay socket |
//! | [`relay`] | streams through a relay, at either end | the task of a relay socket |
//! | [`switchboard`] | who is attached to a rendezvous, and which frame goes to whom | the rendezvous |

pub mod admission;
pub mod attachment;
pub mod backoff;
pub mod byte_queue;
pub mod calls;
pub mod event_log;
pub mod event_order;
pub mod handle_table;
pub mod keepalive;
pub mod noise;
pub mod phase;
pub mod process_log;
pub mod recovery;
pub mod relay;
pub mod stdin_ledger;
pub mod switchboard;
