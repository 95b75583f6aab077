//! The `exec-server` program.

mod cli;

use std::process::ExitCode;

use exec_server_os::Guardian;
use exec_server_sandbox::ZYGOTE_ARGUMENT;

/// With the allocator of musl, output costs three times as much CPU time.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ZYGOTE_ARGUMENT) {
        return ExitCode::from(u8::try_from(exec_server_sandbox::run_zygote()).unwrap_or(1));
    }
    let arguments = match cli::usage::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command {
        Some(cli::Command::Doctor(arguments)) => return cli::doctor::run(&arguments),
        Some(cli::Command::Sandbox(arguments)) => return cli::sandbox::run(arguments),
        Some(cli::Command::Client(command)) => return cli::run(command),
        Some(cli::Command::Completions { shell }) => return cli::completion::print_script(shell),
        Some(cli::Command::Schema(arguments)) => return cli::schema::run(&arguments),
        Some(cli::Command::Complete(arguments)) => return cli::completion::run(arguments),
        Some(cli::Command::Man { directory }) => return cli::manual::write(&directory),
        Some(cli::Command::Rendezvous(arguments)) => return cli::rendezvous::run(*arguments),
        Some(cli::Command::Forward(arguments)) => return cli::forward::run(&arguments),
        Some(cli::Command::Token(command)) => return cli::token::run(command),
        Some(cli::Command::Environments(arguments)) => return cli::environments::run(arguments),
        Some(cli::Command::Nodes(arguments)) => return cli::nodes::run(&arguments),
        Some(cli::Command::Config(command)) => return cli::config::run(command),
        Some(cli::Command::Service(command)) => return cli::service::run(command),
        Some(cli::Command::Update(arguments)) => {
            return cli::finish(cli::update::run(arguments));
        }
        Some(cli::Command::Demo(arguments)) => return cli::finish(cli::demo::run(arguments)),
        Some(cli::Command::KnownHosts(arguments)) => return cli::known_hosts::run(arguments),
        None => {}
    }
    // Taken first: the variables name the pid of this process, and a descriptor that nothing else may use before.
    let inherited = match exec_server_os::inherited_listener() {
        Ok(inherited) => inherited,
        Err(error) => return fail(&error),
    };
    let mut config = match arguments.server_config() {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    if let Some(Err(error)) = inherited.map(|listener| config.inherit(listener)) {
        return fail(&error);
    }
    // Children must not read the tokens in this memory; guardian and server both inherit the setting.
    exec_server_os::conceal_memory();
    // Before any thread starts: this call forks, and returns in both the guardian and the server.
    let journal = exec_server::state_dir::journal(config.state_dir.as_deref());
    match exec_server_os::enter_guardian(|| journal.sweep()) {
        Ok(Guardian::Server) => {}
        Ok(Guardian::Ended(code)) => return ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => return fail(&error),
    }
    exec_server_os::tune_allocator();
    exec_server::logging::init(arguments.log_format);
    let telemetry = match arguments.otlp.start("exec-server") {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(&error),
    };
    config.tracer = telemetry.tracer.clone();
    let runtime = match exec_server::shards::event_loop() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let result = runtime.block_on(exec_server::run_main(config));
    // A thread may still block on stdin.
    runtime.shutdown_background();
    // A failure is in the log already.
    let _ = telemetry.finish();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("exec-server: {}", exec_server::logging::chain(error));
    ExitCode::FAILURE
}
