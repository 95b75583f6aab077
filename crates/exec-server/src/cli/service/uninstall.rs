//! `service uninstall`: removes what `service install` made, and says what is kept.

use std::path::PathBuf;

use super::files::Layout;
use super::owned_file::{State, origin};
use super::systemd::Systemd;
use super::units::Scope;
use super::{Service, UninstallArguments};
use crate::cli::Failure;

/// Stops and removes a service.
pub fn run(arguments: &UninstallArguments) -> Result<u8, Failure> {
    let service = Service::new(arguments.service.kind, arguments.service.name.as_deref())?;
    let scope = arguments.scope.scope();
    let layout = Layout::of(scope, arguments.root.as_deref())?;
    let files = installed(&layout, &service, arguments.force)?;
    if files.is_empty() {
        let text = format!(
            "`exec-server service install` did not install {}; nothing was changed",
            service.unit()
        );
        return Err(Failure::Usage(text));
    }
    let mut units = vec![service.unit()];
    units.extend(layout.socket_of(service.kind));
    if arguments.dry_run {
        let systemd = Systemd::assumed(scope);
        println!("{}", systemd.control_words(&stop_words(&layout, &units)).join(" "));
        files.iter().for_each(|path| println!("would remove {}", path.display()));
        return Ok(0);
    }
    let systemd = Systemd::to_change(&layout, arguments.root.as_deref())?;
    systemd.control(&stop_words(&layout, &units))?;
    for path in &files {
        if layout.remove(path)? {
            println!("removed {}", path.display());
        }
    }
    if !layout.is_image() {
        systemd.control(&["daemon-reload"])?;
        systemd.forget_failures(&units);
    }
    println!("kept: the state in {}, if the service ever ran", service.kind.state_dir(scope));
    if let (Scope::System, Some(user)) = (scope, service.kind.user()) {
        println!("kept: the user {user}, which owns it");
    }
    Ok(0)
}

fn stop_words<'a>(layout: &Layout, units: &'a [String]) -> Vec<&'a str> {
    let mut words = vec!["disable"];
    words.extend((!layout.is_image()).then_some("--now"));
    words.extend(units.iter().map(String::as_str));
    words
}

/// The files that exist and are ours, tokens last.
fn installed(layout: &Layout, service: &Service, is_forced: bool) -> Result<Vec<PathBuf>, Failure> {
    let secrets = [layout.token(service), layout.encrypted_token(service)];
    let mut files = Vec::new();
    for path in layout.all(service) {
        let Some(text) = layout.read(&path)? else { continue };
        if secrets.contains(&path) {
            continue;
        }
        match origin(&text) {
            State::Foreign => {}
            State::Edited if !is_forced => {
                return Err(Failure::Usage(format!(
                    "{} was changed by hand: --force removes it all the same",
                    path.display()
                )));
            }
            _ => files.push(path),
        }
    }
    // Without a file of ours beside it, a token belongs to a unit of a package.
    if files.contains(&layout.environment(service)) {
        let is_there = |path: &PathBuf| layout.actual(path).exists();
        files.extend(secrets.into_iter().filter(is_there));
    }
    Ok(files)
}
