//! Other platforms have no service manager that is notified.

/// Does nothing.
#[derive(Debug, Default)]
pub struct ServiceManager;

impl ServiceManager {
    /// There is none.
    pub fn from_environment() -> Self {
        Self
    }

    /// Does nothing.
    pub fn ready(&self, _status: &str) {}

    /// Does nothing.
    pub fn stopping(&self) {}

    /// Never returns.
    pub async fn run_watchdog(&self) {
        std::future::pending().await
    }
}
