//! Transports to a server: a websocket, an existing byte stream, or a custom one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_transport::connection::Wire;
use exec_server_transport::dial::{self, DialOptions, MAX_REPLY_BYTES, ServerUrl};
use exec_server_transport::lines::LineWire;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::ExecServerError;

/// The future of a new connection.
pub type Dialing<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn Wire>, ExecServerError>> + Send + 'a>>;

/// Opens connections to one server, also after a disconnect.
pub trait Dial: Send + Sync + 'static {
    /// Opens a new connection.
    fn dial(&self) -> Dialing<'_>;

    /// Whether a session can be resumed on a new connection; false if the server ends with its connection.
    fn can_resume(&self) -> bool;

    /// The address of the server, for logs and errors.
    fn describe(&self) -> String;
}

impl fmt::Debug for dyn Dial {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.describe())
    }
}

/// A websocket over TCP, TLS or a unix socket.
pub(crate) struct WebSocketDial {
    pub url: ServerUrl,
    pub options: DialOptions,
    pub timeout: Duration,
}

impl Dial for WebSocketDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            let dialing = dial::dial(&self.url, &self.options);
            match tokio::time::timeout(self.timeout, dialing).await {
                Ok(Ok(wire)) => Ok(wire),
                Ok(Err(source)) => {
                    Err(ExecServerError::Connect { url: self.describe(), source: Arc::new(source) })
                }
                Err(_) => Err(ExecServerError::ConnectTimeout {
                    url: self.describe(),
                    timeout: self.timeout,
                }),
            }
        })
    }

    fn can_resume(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.url.to_string()
    }
}

/// One existing connection, such as memory or an accepted socket; it cannot be reopened.
pub struct OnceDial {
    wire: Mutex<Option<Box<dyn Wire>>>,
    name: String,
}

impl OnceDial {
    /// A byte stream with one message per line in both directions.
    pub fn lines(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self::wire(Box::new(LineWire::new(reader, writer, MAX_REPLY_BYTES)), "memory")
    }

    /// A custom message transport; `name` is for logs and errors.
    pub fn wire(wire: Box<dyn Wire>, name: impl Into<String>) -> Self {
        Self { wire: Mutex::new(Some(wire)), name: name.into() }
    }
}

impl Dial for OnceDial {
    fn dial(&self) -> Dialing<'_> {
        let wire = self.wire.lock().expect("no holder panics").take();
        Box::pin(async {
            wire.ok_or_else(|| ExecServerError::Disconnected {
                reason: format!("the connection to {} cannot be reopened", self.name).into(),
            })
        })
    }

    fn can_resume(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

/// Opens connections with a function, such as a pair of pipes to a server in the same process.
pub struct DialWith<F> {
    make: F,
    name: String,
}

impl<F, T> DialWith<F>
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<Box<dyn Wire>, ExecServerError>> + Send + 'static,
{
    /// `make` is called for every new connection; sessions are resumed on it.
    pub fn new(name: impl Into<String>, make: F) -> Self {
        Self { make, name: name.into() }
    }
}

impl<F, T> Dial for DialWith<F>
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<Box<dyn Wire>, ExecServerError>> + Send + 'static,
{
    fn dial(&self) -> Dialing<'_> {
        Box::pin((self.make)())
    }

    fn can_resume(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
