//! Connections to NATS: addresses, credentials, subjects, and what keeps a node from using them.

use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use futures_core::Stream;
use prost::Message;
use tokio::sync::mpsc;

use super::trunks::Trunks;
use crate::trunk::LANES;
use crate::wire::Heartbeat;

/// The largest frame, and room for more; smaller limits of a server would break streams.
const LEAST_PAYLOAD: usize = 512 * 1024;

/// A server that does not answer within this time is given up for another.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Two unanswered pings end a connection.
const HEARTBEAT_PING: Duration = Duration::from_millis(250);
const FRAME_PING: Duration = Duration::from_millis(500);

/// Messages that wait in the library; more wait in the trunk, where they count against the budget.
const COMMANDS: usize = 32;

/// How often a start tries all servers.
const ATTEMPTS: usize = 3;

/// How long a starting node waits for its own message, and at least listens to others: longer than any interval of
/// heartbeats.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);
const LISTEN: Duration = Duration::from_millis(800);

/// Where NATS is.
#[derive(Clone)]
pub struct NatsConfig {
    servers: Vec<async_nats::ServerAddr>,
    credentials: Option<Credentials>,
}

#[derive(Clone)]
enum Credentials {
    /// The content of a file as `nsc` makes it: a JWT and a seed.
    Jwt(String),
    Password(String, String),
}

/// Why NATS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The URL is not one of NATS.
    #[error(
        "--nats must be nats://HOST[:PORT] or tls://HOST[:PORT], several separated by commas: {0}"
    )]
    Url(String),
    /// Every user of a machine can read arguments.
    #[error(
        "--nats must not contain a password, because every user of this machine can read it; name a file with \
         USER:PASSWORD in EXEC_SERVER_NATS_CREDENTIALS"
    )]
    Readable,
    /// The credentials are neither of the two forms.
    #[error(
        "the file of EXEC_SERVER_NATS_CREDENTIALS must be a .creds file of NATS, or one line USER:PASSWORD"
    )]
    Credentials,
    /// A name cannot be part of a subject.
    #[error("with --nats, {option} must be 1 to 64 letters, digits, - and _: {name}")]
    Name {
        /// The option.
        option: &'static str,
        /// Its value.
        name: String,
    },
    /// No server answers.
    #[error("NATS at {address} cannot be reached: {why}; check --nats and whether the server runs")]
    Unreachable {
        /// The servers.
        address: String,
        /// The cause.
        why: String,
    },
    /// The credentials are refused.
    #[error("NATS at {address} refuses the credentials; check EXEC_SERVER_NATS_CREDENTIALS")]
    Refused {
        /// The servers.
        address: String,
    },
    /// Frames would be refused.
    #[error(
        "NATS at {address} accepts messages of up to {found} bytes, and {LEAST_PAYLOAD} are needed; raise max_payload \
         in its configuration"
    )]
    SmallPayload {
        /// The servers.
        address: String,
        /// The server's limit.
        found: usize,
    },
    /// Publishing or subscribing is not allowed, or the servers are not connected.
    #[error(
        "NATS at {address} does not deliver this node's own message on {subject}; its user must be allowed to publish \
         and subscribe to {subject} and the subjects beside it"
    )]
    NotHeard {
        /// The servers.
        address: String,
        /// The subject.
        subject: String,
    },
    /// Two clusters have one name.
    #[error(
        "node `{node}` at {url} is in the cluster `{cluster}` on this NATS, too, but uses another database; check \
         --store, --nats and --cluster"
    )]
    OtherDatabase {
        /// The other node.
        node: String,
        /// Its URL.
        url: String,
        /// The name of both clusters.
        cluster: String,
    },
}

impl NatsConfig {
    /// Reads the option `--nats` and the content of the file with the credentials.
    pub fn parse(urls: &str, credentials: Option<&str>) -> Result<Self, NatsError> {
        let mut servers = Vec::new();
        for text in urls.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let bad = || NatsError::Url(text.to_owned());
            let full =
                if text.contains("://") { text.to_owned() } else { format!("nats://{text}") };
            let url = url::Url::parse(&full).map_err(|_| bad())?;
            if url.password().is_some() || !url.username().is_empty() {
                return Err(NatsError::Readable);
            }
            let is_plain = url.query().is_none() && matches!(url.path(), "" | "/");
            if !matches!(url.scheme(), "nats" | "tls") || !is_plain || url.host_str().is_none() {
                return Err(bad());
            }
            servers.push(full.trim_end_matches('/').parse().map_err(|_| bad())?);
        }
        if servers.is_empty() {
            return Err(NatsError::Url(urls.to_owned()));
        }
        let credentials = match credentials.map(str::trim) {
            None => None,
            Some(text) if text.contains("BEGIN NATS USER JWT") => {
                ConnectOptions::with_credentials(text).map_err(|_| NatsError::Credentials)?;
                Some(Credentials::Jwt(text.to_owned()))
            }
            Some(text) => {
                let pair = text.split_once(':').filter(|_| !text.contains('\n'));
                let (user, password) = pair.ok_or(NatsError::Credentials)?;
                Some(Credentials::Password(user.to_owned(), password.to_owned()))
            }
        };
        Ok(Self { servers, credentials })
    }

    /// The servers, for messages.
    pub fn address(&self) -> String {
        let hosts = self.servers.iter().map(|it| format!("{}:{}", it.host(), it.port()));
        hosts.collect::<Vec<_>>().join(",")
    }

    fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .connection_timeout(CONNECT_TIMEOUT)
            .reconnect_delay_callback(|attempt| match attempt {
                0 | 1 => Duration::ZERO,
                _ => Duration::from_millis(20 * attempt.min(12) as u64),
            });
        match &self.credentials {
            None => options,
            Some(Credentials::Jwt(text)) => {
                options.credentials(text).expect("the credentials were read before")
            }
            Some(Credentials::Password(user, password)) => {
                options.user_and_password(user.clone(), password.clone())
            }
        }
    }

    async fn connect(&self, options: impl Fn() -> ConnectOptions) -> Result<Client, NatsError> {
        let mut attempt = 1;
        loop {
            let error = match options().connect(&self.servers[..]).await {
                Ok(client) => return self.check_payload(client),
                Err(error) => error,
            };
            let address = self.address();
            match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    return Err(NatsError::Refused { address });
                }
                _ if attempt >= ATTEMPTS => {
                    let why = causes(&error);
                    return Err(NatsError::Unreachable { address, why });
                }
                _ => attempt += 1,
            }
        }
    }

    fn check_payload(&self, client: Client) -> Result<Client, NatsError> {
        let found = client.server_info().max_payload;
        if found < LEAST_PAYLOAD {
            return Err(NatsError::SmallPayload { address: self.address(), found });
        }
        Ok(client)
    }
}

/// The innermost cause in words.
fn causes(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// The subjects of a cluster.
#[derive(Debug, Clone)]
pub struct Subjects {
    prefix: String,
}

impl Subjects {
    /// Checks that the names can be part of a subject.
    pub fn new(cluster: &str, node: &str) -> Result<Self, NatsError> {
        for (option, name) in [("--cluster", cluster), ("--node-id", node)] {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !(1..=64).contains(&name.len()) || !name.bytes().all(is_good) {
                return Err(NatsError::Name { option, name: name.to_owned() });
            }
        }
        Ok(Self { prefix: format!("xs.v1.{cluster}") })
    }

    pub fn heartbeat(&self) -> String {
        format!("{}.heartbeat", self.prefix)
    }

    pub fn all(&self) -> String {
        format!("{}.all", self.prefix)
    }

    /// Requests to one epoch of a node.
    pub fn control(&self, node: &str, epoch: u64) -> String {
        format!("{}.node.{node}.{epoch}.ctl", self.prefix)
    }

    /// Requests to any epoch of a node: its epoch may change while it runs.
    pub fn any_control(&self, node: &str) -> String {
        format!("{}.node.{node}.*.ctl", self.prefix)
    }

    pub fn frames(&self, node: &str, epoch: u64, lane: usize) -> String {
        format!("{}.node.{node}.{epoch}.frames.{lane}", self.prefix)
    }

    pub fn any_frames(&self, node: &str, lane: usize) -> String {
        format!("{}.node.{node}.*.frames.{lane}", self.prefix)
    }

    /// The epoch in a subject of a node.
    pub fn epoch(subject: &str) -> Option<u64> {
        subject.split('.').nth(5)?.parse().ok()
    }
}

/// The connections of a node.
pub struct Nats {
    pub subjects: Subjects,
    pub database: String,
    pub heartbeat: Client,
    pub control: Client,
    pub trunks: Trunks,
    /// Messages without an answer, for the control connection.
    pub outbox: mpsc::Sender<(String, Vec<u8>)>,
}

/// The connections, and one to each lane.
pub struct Connections {
    pub address: String,
    pub heartbeat: Client,
    pub control: Client,
    pub lanes: Vec<Client>,
    pub lost_lanes: mpsc::Receiver<usize>,
}

impl Connections {
    /// Connects, and checks what the servers allow.
    pub async fn open(config: &NatsConfig, node: &str) -> Result<Self, NatsError> {
        let named = |what: &str| config.options().name(format!("exec-server {node} {what}"));
        let heartbeat = config.connect(|| named("heartbeat").ping_interval(HEARTBEAT_PING)).await?;
        let control = config.connect(|| named("control").ping_interval(FRAME_PING)).await?;
        let (lost, lost_lanes) = mpsc::channel(64);
        let mut lanes = Vec::new();
        for lane in 0..LANES {
            let options = || {
                let lost = lost.clone();
                let on_event = move |event| {
                    let is_loss = matches!(event, Event::Disconnected | Event::SlowConsumer(_));
                    if is_loss {
                        // A full queue means that the loss of this lane is already known.
                        let _ = lost.try_send(lane);
                    }
                    std::future::ready(())
                };
                named(&format!("frames {lane}"))
                    .ping_interval(FRAME_PING)
                    .client_capacity(COMMANDS)
                    .event_callback(on_event)
            };
            lanes.push(config.connect(options).await?);
        }
        Ok(Self { address: config.address(), heartbeat, control, lanes, lost_lanes })
    }

    /// Checks that messages come back, and that no other cluster has this name.
    pub async fn check(
        &self,
        subjects: &Subjects,
        cluster: &str,
        node: &str,
        database: &str,
    ) -> Result<(), NatsError> {
        let subject = subjects.heartbeat();
        let not_heard = || {
            let (address, subject) = (self.address.clone(), subject.clone());
            NatsError::NotHeard { address, subject }
        };
        let listened = self.heartbeat.subscribe(subject.clone()).await;
        let mut heartbeats = listened.map_err(|_| not_heard())?;
        let probe = Heartbeat { node: node.to_owned(), url: nonce(), ..Heartbeat::default() };
        let listening = async {
            let earliest = tokio::time::Instant::now() + LISTEN;
            // Repeated: a server may not have passed the subscription on to the others yet.
            let mut repeat = tokio::time::interval(LISTEN / 2);
            let mut is_heard = false;
            loop {
                let due = async {
                    match is_heard {
                        true => tokio::time::sleep_until(earliest).await,
                        false => std::future::pending().await,
                    }
                };
                let message = tokio::select! {
                    message = next(&mut heartbeats) => message.ok_or_else(not_heard)?,
                    () = due => return Ok(()),
                    _ = repeat.tick(), if !is_heard => {
                        let bytes = probe.encode_to_vec().into();
                        let _ = self.heartbeat.publish(subject.clone(), bytes).await;
                        continue;
                    }
                };
                let Ok(beat) = Heartbeat::decode(message.payload) else { continue };
                is_heard |= beat == probe;
                if beat.epoch != 0 && beat.database != database {
                    let (node, url, cluster) = (beat.node, beat.url, cluster.to_owned());
                    return Err(NatsError::OtherDatabase { node, url, cluster });
                }
            }
        };
        let listened = tokio::time::timeout(ECHO_TIMEOUT, listening).await;
        listened.unwrap_or_else(|_| Err(not_heard()))
    }
}

fn nonce() -> String {
    crate::secrets::new_id("probe_")
}

/// The next message of a subscription; none if the connection is closed for good.
pub async fn next(subscriber: &mut async_nats::Subscriber) -> Option<async_nats::Message> {
    std::future::poll_fn(|cx| std::pin::Pin::new(&mut *subscriber).poll_next(cx)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_and_secrets_are_not_taken_from_them() {
        let parse = |urls: &str| NatsConfig::parse(urls, None).map(|config| config.address());
        assert_eq!(parse("nats://a, tls://b:99,c").unwrap(), "a:4222,b:99,c:4222");
        for bad in ["", "http://a", "nats://a/x", "nats://a?x=1", "nats://", "nats://a b"] {
            assert!(matches!(parse(bad), Err(NatsError::Url(_))), "{bad}");
        }
        assert!(matches!(parse("nats://me:secret@a"), Err(NatsError::Readable)));
        assert!(matches!(parse("nats://token@a"), Err(NatsError::Readable)));
    }

    #[test]
    fn credentials_are_a_file_of_nats_or_one_line() {
        let parse = |text| NatsConfig::parse("a", Some(text)).map(|it| it.credentials);
        assert!(matches!(parse("me:secret\n"), Ok(Some(Credentials::Password(_, _)))));
        assert!(matches!(parse("secret"), Err(NatsError::Credentials)));
        let broken = "-----BEGIN NATS USER JWT-----\nx\n";
        assert!(matches!(parse(broken), Err(NatsError::Credentials)));
    }

    #[test]
    fn subjects_have_the_epoch_in_one_place() {
        let subjects = Subjects::new("main", "a").unwrap();
        assert_eq!(subjects.control("b", 7), "xs.v1.main.node.b.7.ctl");
        assert_eq!(subjects.frames("b", 7, 3), "xs.v1.main.node.b.7.frames.3");
        assert_eq!(Subjects::epoch(&subjects.control("b", 7)), Some(7));
        assert_eq!(Subjects::epoch(&subjects.frames("b", 7, 3)), Some(7));
        assert!(Subjects::new("main", "a.b").is_err() && Subjects::new("*", "a").is_err());
    }
}
