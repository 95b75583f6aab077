//! Handlers of configuration and discovery requests, run on blocking threads.

use std::io;

use exec_server_fs::byte_fields::path_from_bytes;
use exec_server_os::host;
use exec_server_protocol::environment::{
    CapabilitiesParams, CapabilityRoot, CapabilityRootsParams, CapabilityRootsResponse,
    DiscoveredRoot, EnvironmentConfigReadParams,
};
use exec_server_protocol::limits::MAX_CAPABILITY_ROOTS;
use exec_server_protocol::path_uri::NativePaths;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::codex::config::{self, ConfigPaths, EnvironmentConfigError};
use crate::codex::discovery::{self, discover_installed};
use crate::dispatch::Caller;
use crate::errors::{RequestError, cwd_error};
use crate::reply::Reply;
use crate::reply_memory::CONNECTION_BYTES;

/// Answers `environmentConfig/read`.
pub fn read_config(caller: &Caller, params: EnvironmentConfigReadParams, reply: Reply) {
    let native_paths = caller.server.config.native_paths;
    let look_up = move || {
        params.cwd.to_posix(native_paths).map_err(|error| cwd_error(&params.cwd, error)).and_then(
            |cwd| config::read(&params, &path_from_bytes(cwd), &config_paths()).map_err(explain),
        )
    };
    reply.with_room(LOOKUP_BYTES, move |reply| answer(look_up, reply));
}

/// Reserved for a reply of unknown length. A connection has one such lookup at a time, because one root may have 16 MiB.
const LOOKUP_BYTES: usize = CONNECTION_BYTES;

/// Looks something up on a blocking thread. A result above the reserved memory is dropped and looked up again once
/// there is memory for it, so that a client that reads nothing cannot make the server keep results.
fn answer<T: Serialize>(
    look_up: impl Fn() -> Result<T, RequestError> + Send + 'static,
    mut reply: Reply,
) {
    tokio::task::spawn_blocking(move || {
        let result = look_up();
        let needed = result.as_ref().map_or(0, memory_of);
        if reply.try_reserve(needed) {
            return reply.finish(result);
        }
        drop(result);
        reply.when_reserved(needed, move |reply| answer(look_up, reply));
    });
}

/// The memory of a result together with its JSON.
fn memory_of(result: &impl Serialize) -> usize {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, result).expect("a counter accepts everything");
    length.0 * 2
}

/// Counts the bytes that are written to it.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn explain(error: EnvironmentConfigError) -> RequestError {
    match error {
        EnvironmentConfigError::NoPaths | EnvironmentConfigError::EmptyPath => {
            RequestError::InvalidParams(error.to_string())
        }
        error => RequestError::Config(error),
    }
}

/// Roots searched concurrently, so that one slow disk does not delay the others.
const ROOTS_AT_ONCE: usize = 8;

/// Answers `capabilityRoots/discoverV1`.
pub fn discover_roots(caller: &Caller, params: CapabilityRootsParams, reply: Reply) {
    if params.roots.len() > MAX_CAPABILITY_ROOTS {
        return reply.fail(&RequestError::TooManyRoots);
    }
    let native_paths = caller.server.config.native_paths;
    let server = caller.server.clone();
    reply.with_room(LOOKUP_BYTES, move |reply| {
        server.spawn(discover_all(params, native_paths, reply));
    });
}

async fn discover_all(params: CapabilityRootsParams, native_paths: NativePaths, mut reply: Reply) {
    loop {
        // The search panicked; dropping the reply sends an internal error.
        let Some(found) = search(&params, native_paths).await else { return };
        let needed = memory_of(&found);
        if reply.try_reserve(needed) {
            return reply.ok(&found);
        }
        drop(found);
        if let Err(error) = reply.reserve(needed).await {
            return reply.fail(&error);
        }
    }
}

/// Searches the roots of a request; `None` if a search panicked.
async fn search(
    params: &CapabilityRootsParams,
    native_paths: NativePaths,
) -> Option<CapabilityRootsResponse> {
    let mut waiting = params.roots.iter().cloned().enumerate();
    let mut searching = JoinSet::new();
    let mut found: Vec<(usize, DiscoveredRoot)> = Vec::new();
    loop {
        while searching.len() < ROOTS_AT_ONCE
            && let Some((place, root)) = waiting.next()
        {
            searching.spawn_blocking(move || (place, discover_one(&root, native_paths)));
        }
        match searching.join_next().await {
            Some(root) => found.push(root.ok()?),
            None => break,
        }
    }
    found.sort_by_key(|(place, _)| *place);
    Some(CapabilityRootsResponse { roots: found.into_iter().map(|(_, root)| root).collect() })
}

fn discover_one(root: &CapabilityRoot, native_paths: NativePaths) -> DiscoveredRoot {
    if root.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_null()) {
        return discovery::failed_root(root, RequestError::SandboxUnsupported);
    }
    match root.path.to_posix(native_paths) {
        Ok(path) => discovery::discover_root(root, &path_from_bytes(path)),
        Err(error) => discovery::failed_root(root, error),
    }
}

/// Answers `capabilities/discoverV2`; the result does not depend on the working directory.
pub fn discover(_caller: &Caller, _params: CapabilitiesParams, reply: Reply) {
    let look_up = || Ok(discover_installed(&config_paths()));
    reply.with_room(LOOKUP_BYTES, move |reply| answer(look_up, reply));
}

fn config_paths() -> ConfigPaths {
    ConfigPaths::from_env(host::home_dir(), host::hostname())
}
