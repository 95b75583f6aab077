//! `exec-server token`: creates, lists, revokes and deletes the tokens of a rendezvous.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use exec_server_relay::registry_client::is_secure;
use exec_server_rendezvous::admin::{MadeToken, NewToken};
use exec_server_rendezvous::clock;
use exec_server_rendezvous::store::{Token, TokenRole};

use crate::cli::format::plain;
use crate::cli::registry::{OutputFormat, RegistryArguments, RegistryError, json, relative, table};

const CREATE_EXAMPLES: &str = "\
Examples:
  exec-server token create --environment build-1 --role executor --label 'rack 4'
  exec-server token create --environment build-1 --role harness --expires 30d
  exec-server token create --environment build-1 --role harness --for codex
  exec-server token create --role admin --expires never";

const LIST_EXAMPLES: &str = "\
Examples:
  exec-server token list
  exec-server token list -o json --remote https://relay.example.org";

const REVOKE_EXAMPLES: &str = "\
Examples:
  exec-server token revoke tok_…";

const DELETE_EXAMPLES: &str = "\
Examples:
  exec-server token delete tok_…
  exec-server token delete tok_… --remote https://meet.example.org";

/// A forgotten token must not stay valid forever.
const DEFAULT_LIFETIME: &str = "90d";

/// Token commands.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print the command line that uses it. The token is not shown again.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArguments),
    /// List all tokens; their secrets are not kept.
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        registry: RegistryArguments,
        /// Output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
    /// Revoke a token: connections that use it are closed within seconds.
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        /// Token id, as shown by `token list`.
        id: String,
        #[command(flatten)]
        registry: RegistryArguments,
    },
    /// Revoke a token and delete its record, so that `token list` shows it no more.
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// Its id, as `token list` has it.
        id: String,
        #[command(flatten)]
        registry: RegistryArguments,
    },
}

/// Arguments of `token create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    /// Environment of the token: a name that you choose for the machine or its purpose.
    #[arg(
        long,
        value_name = "NAME",
        required_if_eq_any([("role", "executor"), ("role", "harness")])
    )]
    environment: Option<String>,
    /// Role of the token.
    #[arg(long, value_name = "ROLE")]
    role: Role,
    /// Lifetime: 12h, 30d, never.
    #[arg(long, value_name = "DURATION", value_parser = expiry, default_value = DEFAULT_LIFETIME)]
    expires: Expiry,
    /// Description shown by `token list`.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Maximum number of concurrent streams with this token.
    #[arg(long, value_name = "COUNT")]
    max_streams: Option<u32>,
    /// Program that the printed command line of a harness starts.
    #[arg(long = "for", value_name = "PROGRAM", default_value = "exec-server")]
    program: Program,
    #[command(flatten)]
    registry: RegistryArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

/// Expiry of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    /// Never; until it is revoked.
    Never,
    /// After this many seconds.
    After(u32),
}

/// Program of a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    /// `exec-server shell`, `run`, `cp`, and so on.
    ExecServer,
    /// The Codex CLI.
    Codex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// A machine that runs commands.
    Executor,
    /// A client or agent that uses an executor.
    Harness,
    /// An administrator of tokens and environments.
    Admin,
}

/// Runs the command and prints its output.
pub fn run(command: TokenCommand) -> ExitCode {
    let text = match command {
        TokenCommand::Create(arguments) => create(arguments),
        TokenCommand::List { registry, output } => list(&registry, output),
        TokenCommand::Revoke { id, registry } => {
            registry.open().and_then(|registry| registry.revoke_token(&id)).map(|()| String::new())
        }
        TokenCommand::Delete { id, registry } => {
            registry.open().and_then(|registry| registry.delete_token(&id)).map(|()| String::new())
        }
    };
    match text {
        Ok(text) => {
            // A closed stdout (`| head`) is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => crate::fail(&error),
    }
}

fn create(arguments: CreateArguments) -> Result<String, RegistryError> {
    let registry = arguments.registry.open()?;
    let made = registry.create_token(&NewToken {
        role: match arguments.role {
            Role::Executor => TokenRole::Executor,
            Role::Harness => TokenRole::Harness,
            Role::Admin => TokenRole::Admin,
        },
        environment: arguments.environment,
        expires_in_seconds: match arguments.expires {
            Expiry::Never => None,
            Expiry::After(seconds) => Some(seconds),
        },
        max_streams: arguments.max_streams,
        label: arguments.label,
    })?;
    match arguments.output {
        OutputFormat::Json => Ok(json(&made)),
        OutputFormat::Text => {
            let url = registry.url()?;
            eprintln!("exec-server: {}", summary(&made.token));
            if is_of_this_machine(&url) {
                eprintln!(
                    "exec-server: {} leads to this machine only; for others, start the rendezvous with --public-url",
                    plain(&url)
                );
            }
            Ok(line_to_paste(&made, &url, arguments.program))
        }
    }
}

/// Id, label and expiry of the token, for display.
fn summary(token: &Token) -> String {
    let label = token.label.as_deref().map(|label| format!(" ({})", plain(label)));
    let label = label.unwrap_or_default();
    let end = match token.expires_at {
        Some(expires) => {
            format!("expires {}; --expires sets another time, or never", relative(expires))
        }
        None => "does not expire".to_owned(),
    };
    format!("made token {}{label}; it {end}", plain(&token.id))
}

/// Whether the URL is a loopback address, which means another machine elsewhere.
fn is_of_this_machine(url: &str) -> bool {
    let Ok(mut url) = url::Url::parse(url) else { return false };
    // Plain HTTP counts as secure only for loopback addresses.
    url.set_scheme("http").is_ok() && is_secure(&url)
}

/// The command line that uses the token.
fn line_to_paste(made: &MadeToken, url: &str, program: Program) -> String {
    let secret = &made.secret;
    let (url, environment) = (quoted(url), made.token.environment.as_deref().map(quoted));
    match (made.token.role, environment) {
        (TokenRole::Executor, Some(environment)) => format!(
            "EXEC_SERVER_REMOTE_TOKEN={secret} exec-server --remote {url} --environment-id {environment}\n"
        ),
        (TokenRole::Harness, Some(environment)) if program == Program::ExecServer => format!(
            "EXEC_SERVER_REMOTE_URL={url} EXEC_SERVER_REMOTE_TOKEN={secret} exec-server shell env:{environment}\n"
        ),
        (TokenRole::Harness, Some(environment)) => format!(
            "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL={url} CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID={environment} \
             CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN={secret} codex\n"
        ),
        _ => format!("EXEC_SERVER_ADMIN_TOKEN={secret} exec-server environments --remote {url}\n"),
    }
}

fn list(registry: &RegistryArguments, output: OutputFormat) -> Result<String, RegistryError> {
    let tokens = registry.open()?.tokens()?;
    if output == OutputFormat::Json {
        return Ok(json(&tokens));
    }
    let rows: Vec<_> = tokens.iter().map(row).collect();
    let heading = ["ID", "ROLE", "ENVIRONMENT", "LABEL", "CREATED", "LAST USED", "STATE"];
    Ok(table(&heading, &rows))
}

fn row(token: &Token) -> Vec<String> {
    let state = match (token.revoked_at, token.expires_at) {
        (Some(revoked), _) => format!("revoked {}", relative(revoked)),
        (None, Some(expires)) if expires <= clock::now() => {
            format!("expired {}", relative(expires))
        }
        (None, Some(expires)) => format!("expires {}", relative(expires)),
        (None, None) => "good".to_owned(),
    };
    vec![
        token.id.clone(),
        token.role.name().to_owned(),
        token.environment.clone().unwrap_or_else(|| "-".to_owned()),
        token.label.clone().unwrap_or_else(|| "-".to_owned()),
        relative(token.created_at),
        token.last_used_at.map_or_else(|| "never".to_owned(), relative),
        state,
    ]
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~:/@[]".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A lifetime, or `never`.
fn expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" { Ok(Expiry::Never) } else { lifetime(text).map(Expiry::After) }
}

/// `90s`, `15m`, `12h`, `30d`, in seconds.
fn lifetime(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let expected = || {
        "expected a whole number with a unit, such as 90s, 15m, 12h or 30d, or `never`".to_owned()
    };
    let number: u32 = digits.parse().map_err(|_| expected())?;
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    match number.checked_mul(seconds) {
        Some(0) => Err("must be longer than zero".to_owned()),
        Some(seconds) => Ok(seconds),
        None => Err("too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_units() {
        assert_eq!(lifetime("30d"), Ok(2_592_000));
        assert_eq!(lifetime("90s"), Ok(90));
        for bad in ["", "30", "d", "-1d", "0h", "99999999d", "1w"] {
            assert!(lifetime(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_of_this_machine_is_known_as_one() {
        for here in ["http://127.0.0.1:7780", "https://localhost/x", "http://[::1]:1"] {
            assert!(is_of_this_machine(here), "{here}");
        }
        for elsewhere in ["https://relay.example.org", "http://192.0.2.1:1", ""] {
            assert!(!is_of_this_machine(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("http://127.0.0.1:1"), "http://127.0.0.1:1");
        assert_eq!(quoted("my box"), "'my box'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
