//! `schema`: prints the JSON Schema of the protocol.

use std::process::ExitCode;

use exec_server_protocol::schema;

use super::format;

/// Arguments of `schema`.
#[derive(Debug, clap::Args)]
pub struct SchemaArguments {
    /// json: a JSON Schema (draft 2020-12); markdown: tables of methods, types, errors and limits.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: SchemaFormat,
}

/// What `schema` prints.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum SchemaFormat {
    Json,
    Markdown,
}

/// Prints the schema of this version.
pub fn run(arguments: &SchemaArguments) -> ExitCode {
    let text = match arguments.format {
        SchemaFormat::Json => schema::text(),
        SchemaFormat::Markdown => schema::reference(),
    };
    match format::print(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit_code(false))
        }
    }
}
