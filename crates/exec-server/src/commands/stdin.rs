//! What is typed or piped into this process, read by a thread that may wait for it for ever.

use std::io::{self, Read};

use tokio::sync::mpsc;

const PIECE: usize = 64 * 1024;
/// Enough to keep a link busy; what is read ahead is lost to whoever reads this stdin next.
const PIECES_AHEAD: usize = 4;

/// Reads stdin from now on; the channel ends with it.
pub fn read() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    // Not one of the runtime's threads: it would be waited for.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; PIECE];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal that was hung up.
                Err(_) => return,
            }
        }
    });
    receiver
}
