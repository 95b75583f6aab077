//! State machines of exec-server, without I/O, clocks or tasks.
//!
//! | machine | rule | owner |
//! |---|---|---|
//! | [`process_log`] | sequence numbers, retained output, exit, closed, expiry | the process task |
//! | [`delivery`] | which events have reached the client, so that no other is evicted | the process task |
//! | [`output_gate`] | when output may be read, so that the client gets all of it | the process task |
//! | [`spool_index`] | where output is in the spool file, and what makes room | the process task |
//! | [`output_view`] | head, tail and search in kept output | the reader of a spool |
//! | [`read_waiters`] | long polls of `process/read`, and what ends their wait | the process task |
//! | [`time_limits`] | when a process has run or idled for too long | the process task |
//! | [`termination`] | SIGTERM, grace, SIGKILL until the tree is empty | the process task |
//! | [`stdin_ledger`] | writes in order, each applied once, with backpressure | the process task |
//! | [`attachment`] | which connection is attached to a session, and when it expires | the session task |
//! | [`phase`] | what a connection may ask for yet | the connection task |
//! | [`admission`] | how many requests of a connection run at once | the connection task |
//! | [`reply_memory`] | how much memory the unsent replies of each connection may take | the server |
//! | [`handle_table`] | the file handles of a connection | the connection's requests |
//! | [`keepalive`] | when to ping and when a peer is gone | the connection task |
//! | [`calls`] | the calls of a client that wait for an answer | the client's connection |
//! | [`event_order`] | the events of a process in order, and what is missing | the client's process |
//! | [`event_log`] | the latest events, for readers at their own pace | the client's process |
//! | [`listing`] | which names of a server may become part of a path | the client call that lists a directory |
//! | [`recovery`], [`backoff`] | when a client dials, and when it gives up | the client's driver |
//! | [`terminal_queries`] | which output a terminal would answer, removed from a replay | the command that shows it |

#![warn(unreachable_pub)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests take one start time from the clock")
)]

pub mod admission;
pub mod attachment;
pub mod backoff;
pub mod byte_queue;
pub mod calls;
pub mod delivery;
pub mod event_log;
pub mod event_order;
pub mod handle_table;
pub mod keepalive;
pub mod listing;
pub mod output_gate;
pub mod output_view;
pub mod phase;
pub mod process_log;
pub mod read_waiters;
pub mod recovery;
pub mod reply_memory;
pub mod spool_index;
pub mod stdin_ledger;
pub mod terminal_queries;
pub mod termination;
pub mod time_limits;
