//! From a place to a connection: names to addresses, addresses to sockets, proxies and TLS on top.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use url::Host;

use super::carrier::Carrier;
use super::error::HttpError;
use super::place::Place;
use super::setup::{HttpSetup, Proxy};

/// A connection to a place, or to the proxy that requests for it go through.
pub async fn dial(
    setup: &HttpSetup,
    place: &Place,
    proxy: Option<&Proxy>,
) -> Result<Box<dyn Carrier>, HttpError> {
    let Some(proxy) = proxy else {
        // An address that passed is dialled as it is, so no second look at the name can change it.
        let addresses = setup.reach.check_addresses(place, addresses(place).await?)?;
        return secure(setup, place, connect(place, addresses).await?).await;
    };
    let addresses = addresses(&proxy.place).await?;
    let carrier = secure(setup, &proxy.place, connect(&proxy.place, addresses).await?).await?;
    if !place.is_tls {
        return Ok(carrier);
    }
    let tunnel = tunnel(carrier, place, proxy).await?;
    secure(setup, place, tunnel).await
}

async fn addresses(place: &Place) -> Result<Vec<SocketAddr>, HttpError> {
    let name = match &place.host {
        Host::Ipv4(address) => return Ok(vec![((*address), place.port).into()]),
        Host::Ipv6(address) => return Ok(vec![((*address), place.port).into()]),
        Host::Domain(name) => name,
    };
    let failed = |source| HttpError::Dns { host: name.clone(), source };
    let found: Vec<_> =
        tokio::net::lookup_host((name.as_str(), place.port)).await.map_err(failed)?.collect();
    if found.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(found)
}

/// How long an address may keep us waiting before the next is tried as well.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The first address that answers.
async fn connect(place: &Place, addresses: Vec<SocketAddr>) -> Result<Box<dyn Carrier>, HttpError> {
    let failed = |source| HttpError::Connect { place: place.to_string(), source };
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
                // A panic is a bug of ours; the others may still succeed.
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

/// Adds TLS where the place wants it.
async fn secure(
    setup: &HttpSetup,
    place: &Place,
    carrier: Box<dyn Carrier>,
) -> Result<Box<dyn Carrier>, HttpError> {
    if !place.is_tls {
        return Ok(carrier);
    }
    let failed = |source| HttpError::Tls { place: place.to_string(), source };
    let name = place.server_name().ok_or_else(|| {
        failed(io::Error::new(io::ErrorKind::InvalidInput, "no certificate can have this name"))
    })?;
    let connector = setup.tls().await?;
    let stream = connector.connect(name, carrier).await.map_err(failed)?;
    Ok(Box::new(stream))
}

/// More than any proxy has to say before it lets us through.
const MAX_TUNNEL_HEAD: usize = 16 * 1024;

/// Asks a proxy for a connection that it does not look into.
async fn tunnel(
    mut carrier: Box<dyn Carrier>,
    place: &Place,
    proxy: &Proxy,
) -> Result<Box<dyn Carrier>, HttpError> {
    let refused = |reason: String| HttpError::Proxy { place: proxy.place.to_string(), reason };
    let broke = |error: io::Error| refused(format!("broke the connection: {error}"));
    carrier.write_all(&tunnel_request(place, proxy.authorization.as_ref())).await.map_err(broke)?;
    carrier.flush().await.map_err(broke)?;
    let mut head = Vec::new();
    loop {
        if carrier.read_buf(&mut head).await.map_err(broke)? == 0 {
            return Err(refused("closed the connection without an answer".to_owned()));
        }
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            return match status(&head) {
                // Nobody speaks before we do in TLS.
                Some(200..=299) if end + 4 == head.len() => Ok(carrier),
                Some(200..=299) => Err(refused("sent more than an answer".to_owned())),
                Some(status) => Err(refused(format!("refused to connect: status {status}"))),
                None => Err(refused("does not speak HTTP".to_owned())),
            };
        }
        if head.len() > MAX_TUNNEL_HEAD {
            return Err(refused("sent an endless answer".to_owned()));
        }
    }
}

fn tunnel_request(place: &Place, authorization: Option<&HeaderValue>) -> Vec<u8> {
    let mut request = format!("CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n").into_bytes();
    if let Some(authorization) = authorization {
        request.extend_from_slice(b"proxy-authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let rest = line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5))?;
    std::str::from_utf8(rest).ok()?.parse().ok()
}
