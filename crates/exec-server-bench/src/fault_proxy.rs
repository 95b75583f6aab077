//! A TCP proxy that can be cut and redirected.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::failure::Result;

/// A running proxy.
pub struct FaultProxy {
    /// Address to dial.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    sockets: Vec<TcpStream>,
    is_over: bool,
}

impl FaultProxy {
    /// Starts a proxy without a target.
    pub fn start() -> Result<FaultProxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(io::Result::ok) {
                // A connection that cannot be forwarded is closed.
                let _ = carry(client, &shared);
                if lock(&shared).is_over {
                    return;
                }
            }
        });
        Ok(FaultProxy { address, state })
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        lock(&self.state).target = Some(target);
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut(&self) {
        for socket in lock(&self.state).sockets.drain(..) {
            // The connection may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.cut();
        lock(&self.state).is_over = true;
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn carry(client: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let target = lock(state).target.ok_or(io::ErrorKind::NotConnected)?;
    let server = TcpStream::connect(target)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
        lock(state).sockets.push(socket.try_clone()?);
    }
    let (client_too, server_too) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || copy(client, server));
    thread::spawn(move || copy(server_too, client_too));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Either end may close the connection.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
