//! A connection that can be cut: what comes to one address is carried to another until then.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::failure::Result;

/// Everything that is carried at the moment.
pub struct FaultProxy {
    /// What is dialled.
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
    /// A cable that leads nowhere yet.
    pub fn start() -> Result<FaultProxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(io::Result::ok) {
                // A peer that cannot be forwarded sees the connection end.
                let _ = carry(client, &shared);
                if lock(&shared).is_over {
                    return;
                }
            }
        });
        Ok(FaultProxy { address, state })
    }

    /// Leads there from now on.
    pub fn lead_to(&self, target: SocketAddr) {
        lock(&self.state).target = Some(target);
    }

    /// Ends everything that is carried; what comes next is carried again.
    pub fn cut(&self) {
        for socket in lock(&self.state).sockets.drain(..) {
            // It may be gone by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.cut();
        lock(&self.state).is_over = true;
        // Wakes the thread that waits for connections.
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
    // Either end may end it.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
