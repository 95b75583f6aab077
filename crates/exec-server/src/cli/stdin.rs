//! Reads stdin on a separate thread, which may block forever.

use std::io::{self, Read};

use tokio::sync::mpsc;

const PIECE: usize = 64 * 1024;
/// Enough to saturate a link; bytes that are read ahead are lost to the next reader of this stdin.
const PIECES_AHEAD: usize = 4;

/// Starts to read stdin; the channel closes at its end.
pub fn read() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    // Not a runtime thread, because the runtime waits for its threads at shutdown.
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
                // For example EIO after the terminal was hung up.
                Err(_) => return,
            }
        }
    });
    receiver
}
