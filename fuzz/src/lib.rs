//! The fuzz targets of exec-server. `cargo xtask fuzz` runs them.

pub mod targets;
