//! Opens a connection to an origin: DNS, TCP, proxy tunnel and TLS.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use exec_server_transport::proxy::{ProxyError, ask_for_tunnel};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use url::Host;

use super::byte_stream::ByteStream;
use super::dns_limit::DnsLimit;
use super::error::HttpError;
use super::origin::Origin;
use super::setup::{HttpSetup, Proxy};

/// Connects to an origin, directly or through its proxy.
pub async fn dial(
    setup: &HttpSetup,
    dns_limit: &DnsLimit,
    origin: &Origin,
    proxy: Option<&Proxy>,
) -> Result<Box<dyn ByteStream>, HttpError> {
    let Some(proxy) = proxy else {
        // The checked address itself is dialled, so a second lookup cannot change the result.
        let addresses =
            setup.policy.check_addresses(origin, addresses(dns_limit, origin).await?)?;
        return secure(setup, origin, connect(origin, addresses).await?).await;
    };
    let addresses = addresses(dns_limit, &proxy.origin).await?;
    let stream = secure(setup, &proxy.origin, connect(&proxy.origin, addresses).await?).await?;
    if !origin.is_tls {
        return Ok(stream);
    }
    let tunnel = tunnel(stream, origin, proxy).await?;
    secure(setup, origin, tunnel).await
}

async fn addresses(dns_limit: &DnsLimit, origin: &Origin) -> Result<Vec<SocketAddr>, HttpError> {
    let name = match &origin.host {
        Host::Ipv4(address) => return Ok(vec![((*address), origin.port).into()]),
        Host::Ipv6(address) => return Ok(vec![((*address), origin.port).into()]),
        Host::Domain(name) => name,
    };
    let asked = (name.clone(), origin.port);
    let permit = dns_limit.acquire().await;
    let found = tokio::task::spawn_blocking(move || {
        // The permit moves to the thread, because a cancelled lookup still occupies the thread.
        let _permit = permit;
        asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    });
    let found = found.await.unwrap_or_else(|_| Err(io::Error::other("the lookup thread stopped")));
    let no_address = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    found
        .and_then(|found| if found.is_empty() { Err(no_address()) } else { Ok(found) })
        .map_err(|cause| HttpError::Dns { host: name.clone(), cause })
}

/// Delay before the next address is tried in parallel.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Tries the addresses with a staggered start and returns the first connection.
async fn connect(
    origin: &Origin,
    addresses: Vec<SocketAddr>,
) -> Result<Box<dyn ByteStream>, HttpError> {
    let failed = |cause| HttpError::Connect { origin: origin.to_string(), cause };
    if let [only] = addresses[..] {
        return Ok(Box::new(open(only).await.map_err(failed)?));
    }
    let mut left = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = left.next() {
            attempts.spawn(open(address));
        }
        let has_more = left.len() > 0;
        tokio::select! {
            attempt = attempts.join_next() => match attempt {
                Some(Ok(Ok(stream))) => return Ok(Box::new(stream)),
                Some(Ok(Err(error))) => last = error,
                // A panicked attempt is a bug; the other attempts may still succeed.
                Some(Err(_)) => {}
                None => return Err(failed(last)),
            },
            () = tokio::time::sleep(NEXT_ADDRESS), if has_more => {}
        }
    }
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Adds TLS if the origin uses https.
async fn secure(
    setup: &HttpSetup,
    origin: &Origin,
    stream: Box<dyn ByteStream>,
) -> Result<Box<dyn ByteStream>, HttpError> {
    if !origin.is_tls {
        return Ok(stream);
    }
    let failed = |cause| HttpError::Tls { origin: origin.to_string(), cause };
    let name = origin.server_name().ok_or_else(|| {
        failed(io::Error::new(io::ErrorKind::InvalidInput, "no certificate can have this name"))
    })?;
    let connector = setup.tls().await?;
    let stream = connector.connect(name, stream).await.map_err(failed)?;
    Ok(Box::new(stream))
}

/// Opens a CONNECT tunnel through a proxy.
async fn tunnel(
    mut stream: Box<dyn ByteStream>,
    origin: &Origin,
    proxy: &Proxy,
) -> Result<Box<dyn ByteStream>, HttpError> {
    let authorization = proxy.authorization.as_ref();
    let asked = ask_for_tunnel(&mut stream, &origin.host, origin.port, authorization).await;
    let reason = match asked {
        Ok(()) => return Ok(stream),
        Err(ProxyError::Refused(status)) => format!("refused to connect: status {status}"),
        Err(ProxyError::Unreachable(error)) => format!("broke the connection: {error}"),
        Err(_) => "does not speak HTTP".to_owned(),
    };
    Err(HttpError::Proxy { origin: proxy.origin.to_string(), reason })
}
