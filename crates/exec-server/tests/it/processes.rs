//! Starting, reading, writing and terminating processes.

mod ending;
mod flooding;
mod reading;
mod starting;
mod writing;

fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
