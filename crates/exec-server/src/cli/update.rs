//! `exec-server update --check`: compares this version with the newest release at a configured address.
//!
//! No other code asks for releases, and there is no address unless the user configures one.

mod version;

use std::path::PathBuf;
use std::time::Duration;

use exec_server::protocol::escape_untrusted::escape_untrusted;
use exec_server_transport::dial::DialOptions;
use exec_server_transport::http_exchange::{ExchangeError, fetch};
use exec_server_transport::proxy::Proxies;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, LOCATION, USER_AGENT};
use hyper::{Request, Response};
use serde::{Deserialize, Serialize};
use url::Url;

use super::config_file::ConfigOption;
use super::{Failure, format};
use version::Version;

pub const EXAMPLES: &str = "\
Examples:
  exec-server update --check --url https://example.org/exec-server/latest
      reads release.json there, which `cargo xtask dist` writes
  exec-server update --check || sh install.sh --from https://example.org/exec-server/latest
      with the address in EXEC_SERVER_UPDATE_URL, or as `url` below [update] in a configuration file";

/// A newer release exists.
const NEWER: u8 = 10;

/// A user waits for the answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// A release has some dozen files.
const MAX_BYTES: usize = 1024 * 1024;

/// Sites with releases redirect once or twice.
const MAX_REDIRECTS: usize = 5;

/// The file with the facts of a release, beside its artefacts.
const FILE: &str = "release.json";

/// Arguments of `update`.
#[derive(Debug, clap::Args)]
pub struct UpdateArguments {
    /// Say whether a newer release exists; exec-server never installs one by itself.
    #[arg(long, required = true)]
    check: bool,
    /// Address of the newest release: the directory of its files, or its release.json. There is no default.
    #[arg(long, value_name = "URL", env = "EXEC_SERVER_UPDATE_URL")]
    url: Option<String>,
    /// CA certificates in PEM form, in place of the system's [default: $EXEC_SERVER_CA_FILE].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config_file: ConfigOption,
}

/// What is used of `release.json`.
#[derive(Debug, Deserialize)]
struct Release {
    name: String,
    version: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    current: &'a str,
    newest: String,
    is_newer: bool,
    url: String,
}

/// Prints whether a newer release exists; the exit code says it, too.
pub async fn run(arguments: UpdateArguments) -> Result<u8, Failure> {
    let given = arguments.url.as_deref().map(str::trim).filter(|url| !url.is_empty());
    let given = given.ok_or_else(|| {
        let text = "no address of releases is configured: name it with --url URL, EXEC_SERVER_UPDATE_URL, or `url` below \
                    [update] in a configuration file";
        Failure::Usage(text.to_owned())
    })?;
    let url = address(given)?;
    let text = match url.scheme() {
        "file" => read_file(&url)?,
        _ => tokio::time::timeout(DEADLINE, download(&url, ca_file(arguments.ca_file)))
            .await
            .unwrap_or_else(|_| Err(broken(&url, "no answer within 20 s")))?,
    };
    let newest = parse(&text).map_err(|reason| broken(&url, &reason))?;
    let current = env!("CARGO_PKG_VERSION");
    let is_newer = Version::parse(current).is_some_and(|current| newest > current);
    if arguments.json {
        let report = Report { current, newest: newest.to_string(), is_newer, url: url.to_string() };
        format::print_json(&report)?;
    } else if is_newer {
        let place = url.join(".").map_or_else(|_| url.to_string(), |place| place.to_string());
        format::print(&format!(
            "exec-server {newest} is available, and this is {current}: {}\n",
            format::plain(place.trim_end_matches('/'))
        ))?;
    } else {
        format::print(&format!(
            "exec-server {current} is current; the newest release is {newest}\n"
        ))?;
    }
    Ok(if is_newer { NEWER } else { 0 })
}

/// The address of `release.json`.
fn address(given: &str) -> Result<Url, Failure> {
    let url = Url::parse(given).ok().filter(|url| {
        let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
        is_http || url.scheme() == "file"
    });
    let mut url = url.ok_or_else(|| {
        let text = format!("`{given}` is no address of releases; expected https://HOST/PATH, http:// or file:///PATH");
        Failure::Usage(text)
    })?;
    if !url.path().ends_with(".json") {
        let path = format!("{}/{FILE}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(url)
}

fn ca_file(given: Option<PathBuf>) -> Option<PathBuf> {
    let of_variable = || std::env::var_os("EXEC_SERVER_CA_FILE").filter(|path| !path.is_empty());
    given.or_else(|| of_variable().map(PathBuf::from))
}

fn read_file(url: &Url) -> Result<Vec<u8>, Failure> {
    let path = url.to_file_path().map_err(|()| broken(url, "not a path of this machine"))?;
    std::fs::read(&path)
        .map_err(|error| Failure::local(format!("could not read {}", path.display()), error))
}

async fn download(url: &Url, authorities: Option<PathBuf>) -> Result<Vec<u8>, Failure> {
    let proxies = Proxies::from_environment();
    let dial = DialOptions { headers: Vec::new(), authorities, proxies };
    let mut place = url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let response = request(&place, &dial).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body().to_vec());
        }
        if !status.is_redirection() {
            return Err(broken(&place, &format!("the server answers with {status}")));
        }
        let next = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let next = next.and_then(|next| place.join(next).ok());
        let next = next.ok_or_else(|| broken(&place, "it redirects to no address"))?;
        let is_weaker = place.scheme() == "https" && next.scheme() != "https";
        if is_weaker || !matches!(next.scheme(), "http" | "https") {
            return Err(broken(&place, &format!("it redirects to {next}, which is less secure")));
        }
        place = next;
    }
    Err(broken(url, "it redirects too often"))
}

async fn request(url: &Url, dial: &DialOptions) -> Result<Response<Bytes>, Failure> {
    let request = Request::builder()
        .uri(&url[url::Position::BeforePath..url::Position::AfterQuery])
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("exec-server/", env!("CARGO_PKG_VERSION")))
        .body(Full::default())
        .map_err(|error| broken(url, &error.to_string()))?;
    fetch(url, dial, request, MAX_BYTES).await.map_err(|error| match &error {
        ExchangeError::Unreachable(_) | ExchangeError::Broken(_) => {
            broken(url, &super::failure::chain(&error))
        }
    })
}

/// The version in `release.json`.
fn parse(text: &[u8]) -> Result<Version, String> {
    let release: Release = serde_json::from_slice(text)
        .map_err(|error| format!("it is no release.json of `cargo xtask dist`: {error}"))?;
    if release.name != "exec-server" {
        return Err(format!("it is a release of `{}`", escape_untrusted(&release.name, 100)));
    }
    let version = escape_untrusted(&release.version, 100);
    Version::parse(&release.version).ok_or_else(|| format!("`{version}` is no version"))
}

fn broken(url: &Url, reason: &str) -> Failure {
    let reason = escape_untrusted(reason, 400);
    Failure::Usage(format!("could not read the newest release from {url}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_and_its_file_are_the_same_address() {
        for (given, url) in [
            ("https://x.org/latest", "https://x.org/latest/release.json"),
            ("https://x.org/latest/", "https://x.org/latest/release.json"),
            ("https://x.org", "https://x.org/release.json"),
            ("https://x.org/a/release.json?x=1", "https://x.org/a/release.json?x=1"),
            ("file:///srv/r", "file:///srv/r/release.json"),
        ] {
            assert_eq!(address(given).unwrap().as_str(), url);
        }
        for bad in ["x.org", "ftp://x.org", "/srv"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
