//! Requests that only look something up on disk: answered beside the connection, on threads that may block.

use exec_server_os::host;
use exec_server_protocol::environment::{
    CapabilitiesParams, CapabilityRoot, CapabilityRootsParams, CapabilityRootsResponse,
    DiscoveredRoot, EnvironmentConfigReadParams,
};
use exec_server_protocol::limits::MAX_CAPABILITY_ROOTS;
use exec_server_protocol::path_uri::NativePaths;
use tokio::task::JoinSet;

use crate::discovery::{self, discover_installed};
use crate::dispatch::Caller;
use crate::environment::host_path;
use crate::environment_config::{self, ConfigPaths, EnvironmentConfigError};
use crate::errors::{RequestError, cwd_error};
use crate::reply::Reply;

/// Answers `environmentConfig/read`.
pub fn read_config(caller: &Caller, params: EnvironmentConfigReadParams, reply: Reply) {
    let native_paths = caller.server.config.native_paths;
    tokio::task::spawn_blocking(move || {
        let result = params
            .cwd
            .to_posix(native_paths)
            .map_err(|error| cwd_error(&params.cwd, error))
            .and_then(|cwd| {
                environment_config::read(&params, &host_path(cwd), &config_paths()).map_err(explain)
            });
        reply.finish(result);
    });
}

fn explain(error: EnvironmentConfigError) -> RequestError {
    match error {
        EnvironmentConfigError::NoPaths | EnvironmentConfigError::EmptyPath => {
            RequestError::InvalidParams(error.to_string())
        }
        error => RequestError::Config(error),
    }
}

/// Roots that are searched at once, so that one slow disk does not hold up the others.
const ROOTS_AT_ONCE: usize = 8;

/// Answers `capabilityRoots/discoverV1`.
pub fn discover_roots(caller: &Caller, params: CapabilityRootsParams, reply: Reply) {
    if params.roots.len() > MAX_CAPABILITY_ROOTS {
        return reply.fail(&RequestError::TooManyRoots);
    }
    let native_paths = caller.server.config.native_paths;
    caller.server.spawn(async move {
        let mut waiting = params.roots.into_iter().enumerate();
        let mut searching = JoinSet::new();
        let mut found: Vec<(usize, DiscoveredRoot)> = Vec::new();
        loop {
            while searching.len() < ROOTS_AT_ONCE
                && let Some((place, root)) = waiting.next()
            {
                searching.spawn_blocking(move || (place, discover_one(&root, native_paths)));
            }
            match searching.join_next().await {
                Some(Ok(root)) => found.push(root),
                // A search that panicked is a bug of ours; dropping the reply says so.
                Some(Err(_)) => return,
                None => break,
            }
        }
        found.sort_by_key(|(place, _)| *place);
        let roots = found.into_iter().map(|(_, root)| root).collect();
        reply.ok(&CapabilityRootsResponse { roots });
    });
}

fn discover_one(root: &CapabilityRoot, native_paths: NativePaths) -> DiscoveredRoot {
    if root.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_null()) {
        return discovery::failed_root(root, RequestError::SandboxUnsupported);
    }
    match root.path.to_posix(native_paths) {
        Ok(path) => discovery::discover_root(root, &host_path(path)),
        Err(error) => discovery::failed_root(root, error),
    }
}

/// Answers `capabilities/discoverV2`: what is installed on the machine, wherever the client works.
pub fn discover(_caller: &Caller, _params: CapabilitiesParams, reply: Reply) {
    tokio::task::spawn_blocking(move || reply.ok(&discover_installed(&config_paths())));
}

fn config_paths() -> ConfigPaths {
    ConfigPaths::from_env(host::home_dir(), host::hostname())
}
