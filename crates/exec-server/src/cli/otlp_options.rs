//! Options for the export of telemetry, and its start and end.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_transport::spans::Tracer;

#[cfg(feature = "otlp")]
use {
    exec_server_otlp::{Otlp, OtlpError},
    std::sync::Arc,
};

use crate::cli::positive_duration;

const TELEMETRY: &str = "OpenTelemetry";
/// Holds the collector for all commands.
pub const OTLP_VARIABLE: &str = "EXEC_SERVER_OTLP";

/// Where spans and metrics of a server go.
#[derive(Debug, Default, clap::Args)]
pub struct OtlpOptions {
    /// Send spans and metrics to this OpenTelemetry collector by OTLP over HTTP (http://HOST:4318), or `env` for the one
    /// in OTEL_EXPORTER_OTLP_ENDPOINT. See docs/observability.md.
    #[arg(long, value_name = "URL", env = OTLP_VARIABLE, help_heading = TELEMETRY)]
    otlp: Option<String>,
    /// File with headers for the collector, such as `Authorization: Bearer …`, one in each line; read again for each request.
    #[arg(long, value_name = "FILE", help_heading = TELEMETRY)]
    otlp_headers_file: Option<PathBuf>,
    /// CA certificates for the collector in PEM form, in place of the system's.
    #[arg(long, value_name = "FILE", help_heading = TELEMETRY)]
    otlp_ca_file: Option<PathBuf>,
    /// Interval at which metrics are sent [default: OTEL_METRIC_EXPORT_INTERVAL, or 60s].
    #[arg(long, value_name = "DURATION", help_heading = TELEMETRY, value_parser = positive_duration)]
    otlp_interval: Option<Duration>,
}

/// The telemetry of this program; off without `--otlp`.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Starts the spans.
    pub tracer: Tracer,
    #[cfg(feature = "otlp")]
    otlp: Option<Arc<Otlp>>,
}

/// Why telemetry cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// An option or a variable has a wrong value.
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// An option that has no effect without a collector.
    #[error("{0} needs a collector: --otlp URL")]
    WithoutCollector(&'static str),
    /// The feature `otlp` is off.
    #[cfg(not(feature = "otlp"))]
    #[error("--otlp: this program was built without the feature `otlp`")]
    NotBuilt,
}

impl OtlpOptions {
    /// The options of a command that has only `--otlp`.
    pub fn to(collector: Option<String>) -> Self {
        Self { otlp: collector, ..Self::default() }
    }

    /// The file with headers, which sandboxed commands must not see.
    pub fn secret_file(&self) -> Option<PathBuf> {
        self.otlp_headers_file.clone()
    }

    /// Starts the exporter; to be called once, before any span.
    pub fn start(&self, service: &'static str) -> Result<Telemetry, TelemetryError> {
        match self.otlp.as_deref().map(str::trim).filter(|collector| !collector.is_empty()) {
            Some(collector) => self.export_to(collector, service),
            None => {
                let given = [
                    ("--otlp-headers-file", self.otlp_headers_file.is_some()),
                    ("--otlp-ca-file", self.otlp_ca_file.is_some()),
                    ("--otlp-interval", self.otlp_interval.is_some()),
                ];
                match given.iter().find(|(_, is_given)| *is_given) {
                    Some((option, _)) => Err(TelemetryError::WithoutCollector(option)),
                    None => Ok(Telemetry::default()),
                }
            }
        }
    }

    #[cfg(feature = "otlp")]
    fn export_to(
        &self,
        collector: &str,
        service: &'static str,
    ) -> Result<Telemetry, TelemetryError> {
        let options = exec_server_otlp::OtlpOptions {
            collector: collector.to_owned(),
            headers_file: self.otlp_headers_file.clone(),
            ca_file: self.otlp_ca_file.clone(),
            interval: self.otlp_interval,
            service,
        };
        let otlp = Otlp::start(options, |name| std::env::var(name).ok())?;
        let tracer = otlp.clone().map_or_else(Tracer::default, |otlp| Tracer::new(otlp));
        Ok(Telemetry { tracer, otlp })
    }

    #[cfg(not(feature = "otlp"))]
    fn export_to(&self, _: &str, _: &'static str) -> Result<Telemetry, TelemetryError> {
        Err(TelemetryError::NotBuilt)
    }
}

impl Telemetry {
    /// Sends what is left; takes two seconds at most.
    pub fn finish(&self) -> Result<(), String> {
        #[cfg(feature = "otlp")]
        if let Some(otlp) = &self.otlp {
            return otlp.shut_down();
        }
        Ok(())
    }
}
