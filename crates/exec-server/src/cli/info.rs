//! `info`: prints the version, host and capabilities of a server.

use exec_server_client::ExecServerError;
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::path_uri::PathUri;
use serde_json::Value;

use super::failure::Failure;
use super::format::{self, FormatOptions};
use super::ls::shown;
use super::target::Targeted;

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub struct InfoArguments {
    #[command(flatten)]
    format: FormatOptions,
    #[command(flatten)]
    target: Targeted,
}

/// Prints the environment info of a server.
pub async fn run(arguments: InfoArguments) -> Result<u8, Failure> {
    // The raw reply, because a newer server may have capabilities that this client does not know.
    let said = arguments.target.raw_environment().await?;
    if arguments.format.is_json() {
        format::print_json(&said)?;
    } else {
        let info: EnvironmentInfo = serde_json::from_value(said.clone())
            .map_err(|error| ExecServerError::Protocol(error.to_string()))?;
        format::print(&format::table(&facts(&info, &said)))?;
    }
    Ok(0)
}

fn facts(info: &EnvironmentInfo, said: &Value) -> Vec<Vec<String>> {
    let path = |uri: &Option<PathUri>| uri.as_ref().map_or("unknown".to_owned(), shown);
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let host = info.host.clone().unwrap_or_default();
    let capabilities = said["capabilities"].as_object().into_iter().flatten();
    let mut names: Vec<&str> = capabilities
        .filter(|(_, value)| **value != Value::Bool(false) && !value.is_null())
        .map(|(name, _)| name.as_str())
        .collect();
    names.sort_unstable();
    let unknown = "unknown (the server does not tell)";
    let sandbox = info.sandbox.as_ref().map_or(unknown, |sandbox| &sandbox.level);
    [
        ("version", text(&info.executor_version)),
        ("system", text(&info.platform_os)),
        ("host", text(&host.name)),
        ("kernel", text(&host.kernel)),
        ("architecture", text(&host.architecture)),
        ("user", text(&host.user)),
        ("cpus", text(&host.cpus.map(|cpus| cpus.to_string()))),
        ("memory", text(&host.memory_bytes.map(format::size))),
        ("shell", info.shell.path.clone()),
        ("directory", path(&info.cwd)),
        ("home", path(&info.user_home_dir)),
        ("temporary", path(&info.temp_dir)),
        ("sandbox", sandbox.to_owned()),
        ("capabilities", names.join(" ")),
    ]
    .into_iter()
    .map(|(name, value)| vec![name.to_owned(), format::plain(&value)])
    .collect()
}
