//! The options of the exporter and the standard variables, checked at the start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use exec_server_transport::dial::{DialOptions, is_loopback};
use exec_server_transport::proxy::Proxies;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::headers::Headers;

/// What the operator chose.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// The base URL of the collector, or `env` for the one in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub collector: String,
    /// A file with headers for the collector, `Name: value` in each line; read again for each request.
    pub headers_file: Option<PathBuf>,
    /// A PEM file of authorities that replace the system's.
    pub ca_file: Option<PathBuf>,
    /// How often metrics are sent.
    pub interval: Option<Duration>,
    /// The name of the service if `OTEL_SERVICE_NAME` is not set.
    pub service: &'static str,
}

/// Why the exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The URL is not usable.
    #[error(
        "{name} is not a URL of a collector: expected http://HOST:PORT or https://HOST:PORT, without user, query and fragment{hint}"
    )]
    Url {
        /// The option or variable.
        name: &'static str,
        /// More about it.
        hint: &'static str,
    },
    /// A variable has a value that is not supported.
    #[error("{name}: {reason}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Why, without the value if it may be a secret.
        reason: String,
    },
    /// The file with headers cannot be used.
    #[error("--otlp-headers-file {}: {reason}", path.display())]
    HeadersFile {
        /// The file.
        path: PathBuf,
        /// Why, without its content.
        reason: String,
    },
    /// The exporter could not be built.
    #[error("could not set up the export of telemetry: {0}")]
    Exporter(String),
    /// The thread could not be started.
    #[error("could not start the export of telemetry")]
    SetUp(#[source] io::Error),
}

/// Where the signals go; a signal without a URL is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// The URL for spans.
    pub traces: Option<Url>,
    /// The URL for metrics.
    pub metrics: Option<Url>,
}

/// Which new traces are recorded; children follow their parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler(f64);

/// Checked settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub endpoints: Endpoints,
    pub headers: Headers,
    pub dial: DialOptions,
    pub interval: Duration,
    pub timeout: Duration,
    pub is_compressed: bool,
    pub sampler: Sampler,
    /// What identifies this program.
    pub resource: Vec<(String, String)>,
}

pub(crate) const SERVICE_NAME: &str = "service.name";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const DEFAULT_COLLECTOR: &str = "http://localhost:4318";
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl Settings {
    /// Checks everything; `None` if `OTEL_SDK_DISABLED` says so.
    pub(crate) fn new(
        options: OtlpOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, OtlpError> {
        let variable = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let endpoints = endpoints(&options.collector, &variable)?;
        let headers = Headers::new(options.headers_file, &variable)?;
        for url in [&endpoints.traces, &endpoints.metrics].into_iter().flatten() {
            if !headers.is_empty() && url.scheme() == "http" && !is_loopback(url) {
                tracing::warn!(%url, "headers for the collector are sent without encryption; use https://");
            }
        }
        let ca_file = options.ca_file;
        let authorities =
            ca_file.or_else(|| variable("OTEL_EXPORTER_OTLP_CERTIFICATE").map(PathBuf::from));
        let dial =
            DialOptions { headers: Vec::new(), authorities, proxies: Proxies::from_environment() };
        let interval = match options.interval {
            Some(interval) => interval,
            None => millis("OTEL_METRIC_EXPORT_INTERVAL", &variable)?.unwrap_or(DEFAULT_INTERVAL),
        };
        let timeout = millis("OTEL_EXPORTER_OTLP_TIMEOUT", &variable)?.unwrap_or(DEFAULT_TIMEOUT);
        let is_compressed = match variable("OTEL_EXPORTER_OTLP_COMPRESSION").as_deref() {
            None | Some("none") => false,
            Some("gzip") => true,
            Some(other) => {
                let reason = format!("`{other}` is not supported; use gzip or none");
                return Err(OtlpError::Variable { name: "OTEL_EXPORTER_OTLP_COMPRESSION", reason });
            }
        };
        let sampler = Sampler::new(&variable)?;
        let resource = resource(options.service, &variable)?;
        Ok(Some(Self {
            endpoints,
            headers,
            dial,
            interval,
            timeout,
            is_compressed,
            sampler,
            resource,
        }))
    }
}

impl Sampler {
    fn new(variable: &impl Fn(&str) -> Option<String>) -> Result<Self, OtlpError> {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        let wrong = |name, reason: String| OtlpError::Variable { name, reason };
        match variable(NAME).as_deref() {
            None | Some("parentbased_always_on") => Ok(Self(1.0)),
            Some("parentbased_always_off") => Ok(Self(0.0)),
            Some("parentbased_traceidratio") => {
                let argument = variable("OTEL_TRACES_SAMPLER_ARG");
                let ratio = argument.map_or(Ok(1.0), |text| text.parse::<f64>());
                let ratio = ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                let reason = || "expected a number from 0 to 1".to_owned();
                ratio.map(Self).ok_or_else(|| wrong("OTEL_TRACES_SAMPLER_ARG", reason()))
            }
            Some(other) => Err(wrong(
                NAME,
                format!(
                    "`{other}` is not supported; use parentbased_always_on, parentbased_always_off or \
                     parentbased_traceidratio"
                ),
            )),
        }
    }

    /// The same decision for a trace in every program with this ratio.
    pub(crate) fn samples(self, trace_id: &[u8; 16]) -> bool {
        let low = trace_id[8..].try_into().expect("half of sixteen bytes");
        // The specification ignores the highest bit, so that the bound fits into a signed number.
        let position = u64::from_be_bytes(low) >> 1;
        (position as f64) < self.0 * (1_u64 << 63) as f64
    }
}

fn endpoints(
    collector: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Endpoints, OtlpError> {
    let (traces, metrics) = match collector.trim() {
        "env" => {
            const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
            if let Some(other) = variable(PROTOCOL).filter(|protocol| protocol != "http/protobuf") {
                let reason = format!(
                    "`{other}` is not supported; set http/protobuf, and the URL of that port (usually 4318)"
                );
                return Err(OtlpError::Variable { name: PROTOCOL, reason });
            }
            let base = variable(ENDPOINT).unwrap_or_else(|| DEFAULT_COLLECTOR.to_owned());
            let of_signal = |name, path| match variable(name) {
                Some(whole) => url(&whole, name, None),
                None => url(&base, ENDPOINT, Some(path)),
            };
            (
                of_signal("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "v1/traces")?,
                of_signal("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "v1/metrics")?,
            )
        }
        base => (url(base, "--otlp", Some("v1/traces"))?, url(base, "--otlp", Some("v1/metrics"))?),
    };
    Ok(Endpoints {
        traces: is_sent("OTEL_TRACES_EXPORTER", variable)?.then_some(traces),
        metrics: is_sent("OTEL_METRICS_EXPORTER", variable)?.then_some(metrics),
    })
}

fn is_sent(
    name: &'static str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<bool, OtlpError> {
    match variable(name).as_deref() {
        None | Some("otlp") => Ok(true),
        Some("none") => Ok(false),
        Some(other) => {
            let reason = format!("`{other}` is not supported; use otlp or none");
            Err(OtlpError::Variable { name, reason })
        }
    }
}

fn url(text: &str, name: &'static str, path: Option<&str>) -> Result<Url, OtlpError> {
    let hint = match name {
        "--otlp" => ", or env for the one in OTEL_EXPORTER_OTLP_ENDPOINT",
        _ => "",
    };
    let wrong = || OtlpError::Url { name, hint };
    let mut url = Url::parse(text.trim()).map_err(|_| wrong())?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    let is_plain = url.query().is_none() && url.fragment().is_none() && !has_user;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_plain {
        return Err(wrong());
    }
    if let Some(path) = path {
        let whole = format!("{}/{path}", url.path().trim_end_matches('/'));
        url.set_path(&whole);
    }
    Ok(url)
}

fn millis(
    name: &'static str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Duration>, OtlpError> {
    let Some(text) = variable(name) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(millis) if millis > 0 => Ok(Some(Duration::from_millis(millis))),
        _ => {
            let reason = "expected a number of milliseconds above 0".to_owned();
            Err(OtlpError::Variable { name, reason })
        }
    }
}

/// The attributes of this program; those of the operator replace them.
fn resource(
    service: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, OtlpError> {
    const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let mut resource = vec![
        (SERVICE_NAME.to_owned(), service.to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string()),
    ];
    if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        resource.push(("host.name".to_owned(), host.trim().to_owned()));
    }
    let mut set = |name: String, value: String| {
        resource.retain(|(known, _)| *known != name);
        resource.push((name, value));
    };
    for pair in variable(NAME).iter().flat_map(|list| list.split(',')) {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            let reason = "expected NAME=VALUE,NAME=VALUE".to_owned();
            OtlpError::Variable { name: NAME, reason }
        })?;
        let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
        set(name.trim().to_owned(), value);
    }
    if let Some(service) = variable("OTEL_SERVICE_NAME") {
        set(SERVICE_NAME.to_owned(), service);
    }
    Ok(resource)
}

#[cfg(test)]
mod tests;
