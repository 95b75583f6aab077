//! Argument parsers and options that several commands share.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use exec_server::config::{SandboxAllowance, SandboxFallback};
use exec_server::protocol::process::LimitName;

/// Sandbox options that the server and `sandbox` share.
#[derive(Debug, clap::Args)]
pub struct SandboxOptions {
    /// Where user namespaces are missing (see `doctor`): refuse every sandboxed command, or enforce with Landlock alone
    /// the policies that Landlock can enforce.
    #[arg(
        long,
        value_name = "refuse|landlock",
        default_value = "refuse",
        hide_possible_values = true
    )]
    sandbox_fallback: SandboxFallback,
    /// Let sandboxed commands trace each other (debugging), create namespaces (for browsers), use kernel keyrings, or
    /// install seccomp filters. Separate values with commas, or repeat the option; see docs/sandbox.md.
    #[arg(
        long,
        value_name = "debugging|namespaces|keyrings|filters",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    sandbox_allow: Vec<SandboxAllowance>,
}

impl SandboxOptions {
    pub fn fallback(&self) -> SandboxFallback {
        self.sandbox_fallback
    }

    pub fn allowances(&self) -> exec_server_sandbox::policy::Allowances {
        SandboxAllowance::all(&self.sandbox_allow)
    }
}

/// Parses `500ms`, `30s`, `5m`, `2h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| {
        "expected a whole number with a unit, such as 30s, 500ms, 5m or 2h".to_owned()
    })?;
    let millis = match &text[digits.len()..] {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        unit => return Err(format!("unknown unit `{unit}`; use ms, s, m or h")),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "the duration is too long".to_owned())
}

/// Parses a number within the valid range of a limit.
pub fn in_range(name: LimitName) -> RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(name.range())
}

/// Like [`duration`], but rejects zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(
            duration("5 parsecs").is_err() && duration("").is_err() && duration("-1s").is_err()
        );
        assert!(positive_duration("0s").is_err());
    }
}
