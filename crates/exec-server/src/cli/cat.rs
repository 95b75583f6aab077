//! `cat`: prints files of servers.

use std::io::{self, Write};

use clap_complete::engine::ArgValueCompleter;

use super::cp_path::CpPath;
use super::failure::Failure;
use super::ls::{Clients, go_on_after, shown};
use super::target::TargetOptions;
use super::user_option::{UserOption, files};
use crate::cli::completion;

/// Arguments of `cat`.
#[derive(Debug, clap::Args)]
pub struct CatArguments {
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// Files of servers, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", required = true, add = ArgValueCompleter::new(completion::cp_paths))]
    operands: Vec<CpPath>,
}

impl CatArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Prints files; continues after a file that cannot be read.
pub async fn run(arguments: CatArguments) -> Result<u8, Failure> {
    let mut clients = Clients::default();
    let mut code = 0;
    for operand in &arguments.operands {
        match print_file(&mut clients, &arguments, operand).await {
            Ok(Reader::Present) => {}
            Ok(Reader::Gone) => return Ok(code),
            Err(failure @ Failure::Local { .. }) => return Err(failure),
            Err(failure) => code = go_on_after(failure)?,
        }
    }
    Ok(code)
}

/// Whether stdout is still open.
enum Reader {
    Present,
    Gone,
}

async fn print_file(
    clients: &mut Clients,
    arguments: &CatArguments,
    operand: &CpPath,
) -> Result<Reader, Failure> {
    let (client, path) = clients.open(&arguments.options, operand).await?;
    let user = arguments.user.name(&client).await?;
    let about = |error| Failure::from(error).about(shown(&path));
    let mut stream = files(&client, &user).read_file_stream(&path).await.map_err(about)?;
    while let Some(block) = stream.next_block().await.map_err(about)? {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(&block).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Reader::Gone),
            other => {
                other.map_err(|source| Failure::local("could not write the output", source))?
            }
        }
    }
    Ok(Reader::Present)
}
