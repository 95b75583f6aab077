//! Tests of the server as its users see it: real processes, real sockets.

#[cfg(target_os = "linux")]
mod audit;
mod auth;
#[cfg(target_os = "linux")]
mod binary_messages;
#[cfg(target_os = "linux")]
mod cgroups;
mod client;
mod command_line;
#[cfg(target_os = "linux")]
mod commands;
#[cfg(target_os = "linux")]
mod concurrency;
#[cfg(unix)]
mod config;
mod crates;
mod dashboard;
#[cfg(target_os = "linux")]
mod demo;
mod doctor;
#[cfg(target_os = "linux")]
mod embedding;
mod environment;
#[cfg(target_os = "linux")]
mod files;
mod fuzz;
#[cfg(target_os = "linux")]
mod fuzz_seeds;
mod handover;
mod http;
mod http_routes;
#[cfg(target_os = "linux")]
mod ignored;
#[cfg(target_os = "linux")]
mod inherited_sockets;
mod leftovers;
mod limits;
mod listener;
mod logs;
mod metrics;
#[cfg(target_os = "linux")]
mod notification_sizes;
#[cfg(target_os = "linux")]
mod outages;
#[cfg(target_os = "linux")]
mod process_limits;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod protocol;
mod reads;
#[cfg(unix)]
mod reference_client;
#[cfg(unix)]
mod reference_client_files;
#[cfg(target_os = "linux")]
mod reference_client_sandbox;
#[cfg(target_os = "linux")]
mod remote_client;
mod rendezvous;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod sandbox_command;
#[cfg(target_os = "linux")]
mod scripts;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod service_manager;
#[cfg(target_os = "linux")]
mod session_directory;
#[cfg(target_os = "linux")]
mod sessions;
#[cfg(target_os = "linux")]
mod shell_snapshots;
#[cfg(unix)]
mod shutdown;
#[cfg(target_os = "linux")]
mod spools;
#[cfg(unix)]
mod stdio;
#[cfg(target_os = "linux")]
mod taking_over;
#[cfg(target_os = "linux")]
mod telemetry;
#[cfg(target_os = "linux")]
mod terminals;
#[cfg(target_os = "linux")]
mod trees;
#[cfg(target_os = "linux")]
mod unread;
#[cfg(unix)]
mod updates;
#[cfg(target_os = "linux")]
mod users;
mod wire;
