//! `e2b`: the HTTP interface of an E2B sandbox for SDKs on this machine, on the machine of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap_complete::engine::ArgValueCompleter;
use exec_server_client::ExecServerClient;
use exec_server_e2b::http_endpoint::HttpEndpoint;
use exec_server_e2b::{E2bOptions, E2bServer};
use exec_server_executor::listen::LocalGate;

use super::failure::Failure;
use super::format;
use super::mcp::read_token;
use super::target::{ResumeOptions, TargetOptions};
use crate::cli::completion;

/// Arguments of `e2b`.
#[derive(Debug, clap::Args)]
pub struct E2bArguments {
    /// The address to serve; the default port is the one of SDKs in debug mode, 0 is any.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:49983")]
    listen: SocketAddr,
    /// File with the token of SDKs, which is their API key; needed for an address that the network reaches.
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Accept sandboxes of this template, too; the machine is the same.
    #[arg(long, value_name = "NAME")]
    template: Vec<String>,
    /// Take every user that an SDK names for the user of the server, instead of refusing other users.
    #[arg(long)]
    any_user: bool,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, env:NAME, stdio:COMMAND, or a name from environments.toml.
    #[arg(value_name = "TARGET", add = ArgValueCompleter::new(completion::targets))]
    target: Option<String>,
}

/// Serves until a signal.
pub async fn run(arguments: E2bArguments) -> Result<u8, Failure> {
    let token = arguments.http_token_file.as_deref().map(read_token).transpose()?;
    let gate = LocalGate::new(token.is_some());
    // The endpoint comes first, so that a wrong address is told before anything is started.
    let endpoint = HttpEndpoint::bind(arguments.listen, token.is_some())
        .await
        .map_err(|error| Failure::Usage(exec_server::logging::chain(&error)))?;
    let remote =
        arguments.options.connect(arguments.target.as_deref(), &ResumeOptions::default()).await?;
    let client = ExecServerClient::from_remote(remote).await?;
    let options = E2bOptions { token, templates: arguments.template, any_user: arguments.any_user };
    let server = E2bServer::new(client, options).await?;
    let url = endpoint.url().map_err(|error| Failure::local("no address", error))?;
    let stopped = exec_server::stop_signal()
        .map_err(|error| Failure::local("could not wait for signals", error))?;
    format::print(&(url + "\n"))?;
    tokio::select! {
        () = endpoint.serve(Arc::new(move |peer, local| gate.admits(peer, local)), server.clone()) => {}
        () = stopped => {}
    }
    server.close().await;
    Ok(0)
}
