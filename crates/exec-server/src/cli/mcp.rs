//! `mcp`: an MCP server for an agent on this machine, whose tools work on the machine of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use clap_complete::engine::ArgValueCompleter;
use exec_server_client::ExecServerClient;
use exec_server_executor::listen::LocalGate;
use exec_server_mcp::http::HttpEndpoint;
use exec_server_mcp::{McpError, McpOptions, McpServer};
use serde_json::{Value, json};

use super::failure::Failure;
use super::format;
use super::target::{ResumeOptions, TargetOptions, remote_sandbox};
use crate::cli::completion;

/// Arguments of `mcp`.
#[derive(Debug, clap::Args)]
pub struct McpArguments {
    /// Offer only these tools.
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',')]
    allow: Option<Vec<String>>,
    /// Leave out the tools that run commands or change files.
    #[arg(long)]
    read_only: bool,
    /// Refuse paths outside of this directory of the server; commands and relative paths start there.
    #[arg(long, value_name = "DIR")]
    root: Option<String>,
    /// Confine commands and files by a sandbox of the server; with --root, for this directory.
    #[arg(long, value_name = "POLICY")]
    sandbox: Option<SandboxName>,
    /// Let sandboxed commands use the network.
    #[arg(long, requires = "sandbox")]
    network: bool,
    /// Where commands and relative paths start [default: the root, or the server's working directory].
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Bytes of output in one answer.
    #[arg(long, value_name = "BYTES", default_value = "40000", value_parser = clap::value_parser!(u64).range(1000..=1_000_000))]
    max_output: u64,
    /// Serve streamable HTTP at http://IP:PORT/mcp instead of stdio; port 0 is any.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// File with the bearer token of HTTP clients; needed for an address that the network reaches.
    #[arg(long, value_name = "FILE", requires = "listen")]
    http_token_file: Option<PathBuf>,
    /// Print the configuration of a client that starts this command, and exit.
    #[arg(long, value_name = "CLIENT", conflicts_with_all = ["listen", "http_token_file"])]
    print_config: Option<ConfiguredClient>,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, env:NAME, stdio:COMMAND, or a name from environments.toml.
    #[arg(value_name = "TARGET", add = ArgValueCompleter::new(completion::targets))]
    target: Option<String>,
}

/// A named policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SandboxName {
    /// Read everything, write nothing.
    ReadOnly,
    /// Read everything, write below the directory.
    WorkspaceWrite,
}

/// A client whose configuration can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConfiguredClient {
    Claude,
    Codex,
    Cursor,
    Vscode,
}

/// Serves until the end of input or a signal.
pub async fn run(arguments: McpArguments) -> Result<u8, Failure> {
    if let Some(client) = arguments.print_config {
        format::print(&configuration(client, std::env::args().skip(1)))?;
        return Ok(0);
    }
    let token = match &arguments.http_token_file {
        Some(file) => Some(read_token(file)?),
        None => None,
    };
    let gate = LocalGate::new(token.is_some());
    // The endpoint comes first, so that a wrong address is told before anything is started.
    let endpoint = match arguments.listen {
        Some(address) => Some(HttpEndpoint::bind(address, token).await.map_err(usage)?),
        None => None,
    };
    let target = arguments.target.as_deref();
    let remote = arguments.options.connect(target, &ResumeOptions::default()).await?;
    let client = ExecServerClient::from_remote(remote).await?;
    let options = options(&arguments, &client).await?;
    let server = McpServer::new(client, options).await.map_err(|error| match error {
        McpError::Client(error) => error.into(),
        error => usage(error),
    })?;
    let Some(endpoint) = endpoint else {
        let served = server.serve_stdio().await;
        return served.map(|()| 0).map_err(usage);
    };
    let url = endpoint.url().map_err(|error| Failure::local("no address", error))?;
    let stopped = exec_server::stop_signal()
        .map_err(|error| Failure::local("could not wait for signals", error))?;
    format::print(&(url + "\n"))?;
    tokio::select! {
        () = endpoint.serve(Arc::new(move |peer, local| gate.admits(peer, local)), {
            let server = server.clone();
            move || server.for_one_of_many()
        }) => {}
        () = stopped => {}
    }
    server.close().await;
    Ok(0)
}

async fn options(
    arguments: &McpArguments,
    client: &ExecServerClient,
) -> Result<McpOptions, Failure> {
    let sandbox = match arguments.sandbox {
        None => None,
        Some(name) => {
            let root = arguments.root.as_deref().or(arguments.cwd.as_deref()).unwrap_or(".");
            let root = client.fs().resolve(root).await?;
            let root = root
                .to_posix(exec_server_protocol::path_uri::NativePaths::Accept)
                .map_err(|error| Failure::Usage(format!("the root {error}")))?;
            let root = PathBuf::from(String::from_utf8_lossy(&root).into_owned());
            let writes = name == SandboxName::WorkspaceWrite;
            let sandbox = remote_sandbox(writes, arguments.network, root);
            Some(serde_json::from_value(sandbox).expect("a named policy is a sandbox"))
        }
    };
    Ok(McpOptions {
        allow: arguments.allow.clone(),
        read_only: arguments.read_only,
        root: arguments.root.clone(),
        cwd: arguments.cwd.clone(),
        sandbox,
        max_output: usize::try_from(arguments.max_output).ok(),
    })
}

fn usage(error: impl std::error::Error) -> Failure {
    Failure::Usage(exec_server::logging::chain(&error))
}

/// The token of a file.
pub fn read_token(file: &std::path::Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::local(format!("could not read {}", file.display()), error))?;
    let token = text.trim().to_owned();
    if token.len() < 16 {
        let text = format!("the token in {} has fewer than 16 bytes", file.display());
        return Err(Failure::Usage(text));
    }
    Ok(token)
}

/// The entry of a client, with the arguments of this command.
fn configuration(client: ConfiguredClient, words: impl Iterator<Item = String>) -> String {
    let program = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
    let program = program.unwrap_or_else(|| "exec-server".to_owned());
    let mut arguments = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if word == "--print-config" {
            words.next();
        } else if !word.starts_with("--print-config=") {
            arguments.push(word);
        }
    }
    let entry = json!({"command": program, "args": arguments});
    let pretty = |value: &Value| serde_json::to_string_pretty(value).expect("plain data") + "\n";
    match client {
        ConfiguredClient::Claude | ConfiguredClient::Cursor => {
            pretty(&json!({"mcpServers": {"exec-server": entry}}))
        }
        ConfiguredClient::Vscode => {
            let entry = json!({"type": "stdio", "command": program, "args": arguments});
            pretty(&json!({"servers": {"exec-server": entry}}))
        }
        ConfiguredClient::Codex => {
            let quoted = |text: &String| toml::Value::from(text.as_str()).to_string();
            let list: Vec<String> = arguments.iter().map(quoted).collect();
            let program = quoted(&program);
            let list = list.join(", ");
            format!("[mcp_servers.exec-server]\ncommand = {program}\nargs = [{list}]\n")
        }
    }
}
