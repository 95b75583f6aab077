//! Replaces the session keyring of a process.

use std::io;

use super::check;

/// Replaces the inherited session keyring of the server with a new, empty one.
pub fn join_new_session() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let no_name = std::ptr::null::<libc::c_char>();
    // SAFETY: a null name creates a new keyring for this process.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, no_name) };
    match check(joined as libc::c_int) {
        // A kernel without keyrings has no keyring to leave.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        joined => joined.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ended, User, in_child};

    use super::*;

    #[test]
    fn the_new_keyring_is_another_one_and_empty() {
        const GET_ID: libc::c_long = 0;
        const READ: libc::c_long = 11;
        const OF_SESSION: libc::c_long = -3;
        // SAFETY: takes numbers only.
        let own = || unsafe { libc::syscall(libc::SYS_keyctl, GET_ID, OF_SESSION, 1) };
        let ended = in_child(User::Ordinary, || {
            let before = own();
            if before == -1 {
                return 0;
            }
            join_new_session().unwrap();
            assert_ne!(own(), before);
            let nowhere = std::ptr::null_mut::<u8>();
            // SAFETY: without a buffer the call only returns the size.
            let size = unsafe { libc::syscall(libc::SYS_keyctl, READ, OF_SESSION, nowhere, 0) };
            assert_eq!(size, 0);
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }
}
