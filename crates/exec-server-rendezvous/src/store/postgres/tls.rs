//! TLS for connections to PostgreSQL.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Opens TLS connections that trust given certificate authorities.
#[derive(Clone)]
pub struct PostgresTls(pub TlsConnector);

/// The next connection, to a host with this name.
pub struct NamedConnector {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// An encrypted connection.
pub struct Encrypted(Box<tokio_rustls::client::TlsStream<Socket>>);

type Connecting = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

impl MakeTlsConnect<Socket> for PostgresTls {
    type Stream = Encrypted;
    type TlsConnect = NamedConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<NamedConnector> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(NamedConnector { connector: self.0.clone(), name })
    }
}

impl TlsConnect<Socket> for NamedConnector {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Connecting;

    fn connect(self, stream: Socket) -> Connecting {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, stream).await?;
            Ok(Encrypted(Box::new(stream)))
        })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
