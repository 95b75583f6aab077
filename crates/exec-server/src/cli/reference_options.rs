//! Options of the reference's command line that have no effect or another meaning here.
//!
//! Scripts for the reference keep working: an option without effect prints a note to stderr, and one that cannot be
//! honoured is rejected with the reason. None of them is listed in the help, except
//! `--config`, which names a file.

/// Options that are accepted for compatibility.
#[derive(Debug, clap::Args)]
pub struct ReferenceOptions {
    /// Read settings from this file instead of ~/.config/exec-server/config.toml and /etc/exec-server.toml; see
    /// docs/configuration.md [default: $EXEC_SERVER_CONFIG].
    // The reference has KEY=VALUE here, which has no effect; a file name has no `=`.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Vec<String>,
    #[arg(long, value_name = "FEATURE", hide = true)]
    enable: Vec<String>,
    #[arg(long, value_name = "FEATURE", hide = true)]
    disable: Vec<String>,
    #[arg(long, hide = true)]
    strict_config: bool,
    #[arg(long, value_name = "MODE", hide = true)]
    linux_sandbox_pid_namespace: Option<PidNamespace>,
    // Not read from its environment variable: a variable that is set for all programs must not print a note in each.
    #[arg(long, hide = true)]
    proxy_private_ips_via_upstream: bool,
    #[arg(long, value_name = "TRANSPORT", hide = true)]
    remote_transport: Option<RemoteTransport>,
    #[arg(long, hide = true)]
    chatgpt_token_stdin: bool,
    #[arg(long, value_name = "ID", hide = true)]
    chatgpt_account_id: Option<String>,
    #[arg(long, hide = true)]
    aws_sigv4: bool,
    #[arg(long, value_name = "PROFILE", hide = true)]
    aws_profile: Option<String>,
    #[arg(long, value_name = "REGION", hide = true)]
    aws_region: Option<String>,
    #[arg(long, value_name = "SERVICE", hide = true)]
    aws_service: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PidNamespace {
    Isolate,
    Inherit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RemoteTransport {
    Noise,
    Direct,
}

/// An option that cannot be honoured, with the reason.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is not supported: {reason}")]
pub struct ReferenceOptionError {
    option: &'static str,
    reason: &'static str,
}

impl ReferenceOptions {
    /// Rejects options that cannot be honoured, and prints a note for options without effect.
    pub fn check(&self) -> Result<(), ReferenceOptionError> {
        if let Some((option, reason)) = self.refused() {
            return Err(ReferenceOptionError { option, reason });
        }
        for (option, reason) in self.without_effect() {
            eprintln!("exec-server: {option} has no effect: {reason}");
        }
        Ok(())
    }

    fn refused(&self) -> Option<(&'static str, &'static str)> {
        const PIDS: &str =
            "every sandbox has process ids of its own; leave it out, or use `isolate`";
        const DIRECT: &str =
            "an executor is reached through a relay, encrypted from end to end; use `noise`";
        const ACCOUNT: &str = "this server does not ask the vendor for an account policy; use --registration-bearer-stdin \
             with a token of the registry";
        const AWS: &str = "it belongs to `--remote-transport direct`, which this server does not speak; use a token of the \
             registry";
        let options = [
            (
                self.linux_sandbox_pid_namespace == Some(PidNamespace::Inherit),
                "--linux-sandbox-pid-namespace inherit",
                PIDS,
            ),
            (
                self.remote_transport == Some(RemoteTransport::Direct),
                "--remote-transport direct",
                DIRECT,
            ),
            (self.chatgpt_token_stdin, "--chatgpt-token-stdin", ACCOUNT),
            (self.chatgpt_account_id.is_some(), "--chatgpt-account-id", ACCOUNT),
            (self.aws_sigv4, "--aws-sigv4", AWS),
            (self.aws_profile.is_some(), "--aws-profile", AWS),
            (self.aws_region.is_some(), "--aws-region", AWS),
            (self.aws_service.is_some(), "--aws-service", AWS),
        ];
        let refused = options.into_iter().find(|(is_given, ..)| *is_given);
        refused.map(|(_, option, reason)| (option, reason))
    }

    fn without_effect(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        const CONFIGURATION: &str = "this server is configured by its own options and files only (see docs/configuration.md)";
        const PROXY: &str = "this server starts no network proxies";
        let options = [
            (
                self.config.iter().any(|value| value.contains('=')),
                "--config KEY=VALUE",
                CONFIGURATION,
            ),
            (!self.enable.is_empty(), "--enable", CONFIGURATION),
            (!self.disable.is_empty(), "--disable", CONFIGURATION),
            (self.strict_config, "--strict-config", CONFIGURATION),
            (self.proxy_private_ips_via_upstream, "--proxy-private-ips-via-upstream", PROXY),
        ];
        let given = options.into_iter().filter(|(is_given, ..)| *is_given);
        given.map(|(_, option, reason)| (option, reason))
    }
}
