//! Resource limits and the user of a command: `run --memory --cpus --pids --user`.

use exec_server_client::ExecServerError;
use exec_server_protocol::environment::Capabilities;
use exec_server_protocol::process::{LimitName, ProcessLimits};
use exec_server_protocol::user::UserName;

use super::failure::Failure;

/// Limits and user of a command.
#[derive(Debug, Default, clap::Args)]
pub struct LimitOptions {
    /// Limit the memory of the command and its descendants, such as 512m or 2g.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u64>,
    /// Limit the CPUs of the command, such as 0.5 or 2.
    #[arg(long, value_name = "NUMBER", value_parser = processors)]
    cpus: Option<u64>,
    /// Limit the number of processes and threads.
    #[arg(long, value_name = "COUNT", alias = "pids-limit", value_parser = crate::cli::in_range(LimitName::Pids))]
    pids: Option<u64>,
    /// Run as this user of the server's machine, by name or number; needs a server that may change users.
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
}

impl LimitOptions {
    /// The limits of the start request; fails if the server enforces none.
    pub fn limits(&self, can: &Capabilities) -> Result<Option<ProcessLimits>, Failure> {
        let limits = ProcessLimits {
            memory_bytes: self.memory,
            cpu_percent: self.cpus,
            pids: self.pids,
            ..ProcessLimits::default()
        };
        if limits == ProcessLimits::default() {
            return Ok(None);
        }
        if !can.process_limits {
            let what = "limits of commands (--memory, --cpus, --pids)";
            return Err(ExecServerError::Unsupported(what).into());
        }
        Ok(Some(limits))
    }

    /// Whether the command runs as another user.
    pub fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// The user of the start request.
    pub fn user(&self, can: &Capabilities) -> Result<Option<UserName>, Failure> {
        match &self.user {
            Some(_) if !can.process_user => {
                let text =
                    "this server cannot change users: it runs every command as its own (--user)";
                Err(Failure::Usage(text.to_owned()))
            }
            user => Ok(user.clone().map(UserName)),
        }
    }
}

/// `65536`, `512m`, `2g`: units are powers of 1024.
pub fn memory(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let unit = lower.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let factor: u64 = match unit {
        "" | "b" => 1,
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => return Err(format!("unknown unit `{unit}`; use k, m, g or t")),
    };
    let digits = &lower[..lower.len() - unit.len()];
    let expected = || "expected a size such as 65536k, 512m or 2g".to_owned();
    let bytes = match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(factor).ok_or_else(|| "too much".to_owned())?,
        Err(_) => {
            let number: f64 = digits.parse().map_err(|_| expected())?;
            (number * factor as f64) as u64
        }
    };
    let range = LimitName::MemoryBytes.range();
    if range.contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("must be between {} MiB and {} GiB", range.start() >> 20, range.end() >> 30))
    }
}

/// Parses `0.5` or `2` into hundredths of a processor.
fn processors(text: &str) -> Result<u64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number such as 0.5 or 2".to_owned())?;
    let percent = (number * 100.0).round();
    let range = LimitName::CpuPercent.range();
    let is_sound = percent.is_finite() && percent >= *range.start() as f64;
    if is_sound && percent <= *range.end() as f64 {
        Ok(percent as u64)
    } else {
        Err(format!("must be between 0.01 and {}", range.end() / 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_containers() {
        assert_eq!(memory("512m"), Ok(512 << 20));
        assert_eq!(memory("2G"), Ok(2 << 30));
        assert_eq!(memory("1.5g"), Ok(3 << 29));
        assert_eq!(memory("8388608"), Ok(8 << 20));
        for bad in ["", "m", "5x", "1k", "-1m", "99999999999999g", "1..5g"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn processors_are_counted_in_hundredths() {
        assert_eq!(processors("1.5"), Ok(150));
        assert_eq!(processors("0.01"), Ok(1));
        for bad in ["", "0", "-1", "nan", "inf", "two", "99999"] {
            assert!(processors(bad).is_err(), "{bad}");
        }
    }
}
