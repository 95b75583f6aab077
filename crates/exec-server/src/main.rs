//! The `exec-server` program.

mod admin;
mod cli;
mod commands;
mod doctor;
mod environments_command;
mod forward_command;
mod known_hosts_command;
mod rendezvous_command;
mod token_command;
mod try_sandbox;

use std::process::ExitCode;

use clap::Parser;
use exec_server_os::{Guardian, ZYGOTE_ARGUMENT};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ZYGOTE_ARGUMENT) {
        return ExitCode::from(u8::try_from(exec_server_os::run_zygote()).unwrap_or(1));
    }
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match arguments.command {
        Some(cli::Command::Doctor(arguments)) => return doctor::run(&arguments),
        Some(cli::Command::Sandbox(arguments)) => return try_sandbox::run(arguments),
        Some(cli::Command::Client(command)) => return commands::run(command),
        Some(cli::Command::Completions { shell }) => return cli::print_completions(shell),
        Some(cli::Command::Rendezvous(arguments)) => return rendezvous_command::run(*arguments),
        Some(cli::Command::Forward(arguments)) => return forward_command::run(&arguments),
        Some(cli::Command::Token(command)) => return token_command::run(command),
        Some(cli::Command::Environments(arguments)) => return environments_command::run(arguments),
        Some(cli::Command::KnownHosts(arguments)) => return known_hosts_command::run(arguments),
        None => {}
    }
    let config = match arguments.server_config() {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    // Before any thread: from here on there are two processes, and this may be either.
    let journal = exec_server::state_dir::journal(config.state_dir.as_deref());
    match exec_server_os::enter_guardian(|| journal.sweep()) {
        Ok(Guardian::Server) => {}
        Ok(Guardian::Ended(code)) => return ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => return fail(&error),
    }
    exec_server_os::tune_allocator();
    exec_server::logging::init(arguments.log_format);
    let runtime = match exec_server::shards::event_loop() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let result = runtime.block_on(exec_server::run_main(config));
    // A thread may still wait for a line on stdin that will never come.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints help, the version, or what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    // Without a terminal to print to, the code still tells.
    let _ = error.print();
    // These exit as the command that they run.
    let is_like_a_command = std::env::args_os().nth(1).is_some_and(|argument| {
        ["sandbox", "run", "shell", "attach"].iter().any(|name| argument == *name)
    });
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if is_like_a_command => ExitCode::from(commands::OUR_FAILURE),
        code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("exec-server: {error}");
    ExitCode::FAILURE
}
