//! Resource limits: the request and the report of what is enforced.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Resource limits of a process and its descendants; a missing member is not limited by the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProcessLimits {
    /// Memory of the tree, including page cache and memory file systems; swap is not allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU time of the tree; 100 is one whole processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u64>,
    /// Processes and threads at once, the process itself included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The size of each file that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Open descriptors of each single process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// The size of the private `/dev/shm` of a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmpfs_bytes: Option<u64>,
}

/// The name of a limit, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LimitName {
    /// Memory of the tree.
    MemoryBytes,
    /// CPU time of the tree.
    CpuPercent,
    /// Processes and threads.
    Pids,
    /// The size of each file.
    FileSizeBytes,
    /// Open descriptors of each process.
    OpenFiles,
    /// The size of `/dev/shm`.
    TmpfsBytes,
}

impl LimitName {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MemoryBytes,
        Self::CpuPercent,
        Self::Pids,
        Self::FileSizeBytes,
        Self::OpenFiles,
        Self::TmpfsBytes,
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryBytes => "memoryBytes",
            Self::CpuPercent => "cpuPercent",
            Self::Pids => "pids",
            Self::FileSizeBytes => "fileSizeBytes",
            Self::OpenFiles => "openFiles",
            Self::TmpfsBytes => "tmpfsBytes",
        }
    }

    /// Accepted values: a lower limit starts no program, a higher one limits nothing.
    pub const fn range(self) -> RangeInclusive<u64> {
        match self {
            Self::MemoryBytes => 4 << 20..=1 << 50,
            Self::CpuPercent => 1..=100 * 1024,
            Self::Pids => 1..=1 << 22,
            Self::FileSizeBytes => 1..=1 << 60,
            // Three streams, plus the files that a dynamic linker opens.
            Self::OpenFiles => 8..=1 << 30,
            Self::TmpfsBytes => 4096..=1 << 50,
        }
    }
}

impl ProcessLimits {
    /// A limit by its name.
    pub const fn get(&self, name: LimitName) -> Option<u64> {
        match name {
            LimitName::MemoryBytes => self.memory_bytes,
            LimitName::CpuPercent => self.cpu_percent,
            LimitName::Pids => self.pids,
            LimitName::FileSizeBytes => self.file_size_bytes,
            LimitName::OpenFiles => self.open_files,
            LimitName::TmpfsBytes => self.tmpfs_bytes,
        }
    }

    /// Sets a limit by its name.
    pub const fn set(&mut self, name: LimitName, value: u64) {
        *match name {
            LimitName::MemoryBytes => &mut self.memory_bytes,
            LimitName::CpuPercent => &mut self.cpu_percent,
            LimitName::Pids => &mut self.pids,
            LimitName::FileSizeBytes => &mut self.file_size_bytes,
            LimitName::OpenFiles => &mut self.open_files,
            LimitName::TmpfsBytes => &mut self.tmpfs_bytes,
        } = Some(value);
    }

    /// The first limit outside of its range.
    pub fn out_of_range(&self) -> Option<LimitName> {
        LimitName::ALL
            .into_iter()
            .find(|name| self.get(*name).is_some_and(|value| !name.range().contains(&value)))
    }
}

/// The limits in force, in the reply to `process/start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsReport {
    /// The effective limits, including server defaults.
    pub applied: ProcessLimits,
    /// The mechanism that enforces each limit.
    pub by: BTreeMap<LimitName, LimitHolder>,
}

/// The mechanism that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LimitHolder {
    /// A cgroup (version 2) for this process.
    Cgroup,
    /// The range of process ids of a sandbox.
    PidNamespace,
    /// A resource limit of each process.
    Rlimit,
    /// The size of a memory file system.
    Tmpfs,
}

impl LimitsReport {
    /// Adds an enforced limit.
    pub fn add(&mut self, name: LimitName, value: u64, holder: LimitHolder) {
        self.applied.set(name, value);
        self.by.insert(name, holder);
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.by.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_one_name() {
        for name in LimitName::ALL {
            let text = format!("{{\"{}\":4194304}}", name.name());
            let limits: ProcessLimits = serde_json::from_str(&text).unwrap();
            assert_eq!(limits.get(name), Some(4 << 20));
            assert_eq!(serde_json::to_string(&limits).unwrap(), text);
            assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{}\"", name.name()));
        }
    }

    #[test]
    fn out_of_range_limits_are_rejected() {
        for text in [
            r#"{"pids":0}"#,
            r#"{"cpuPercent":0}"#,
            r#"{"memoryBytes":4194303}"#,
            r#"{"openFiles":3}"#,
            r#"{"fileSizeBytes":18446744073709551615}"#,
        ] {
            let limits: ProcessLimits = serde_json::from_str(text).unwrap();
            let name = limits.out_of_range().expect(text);
            assert!(text.contains(name.name()), "{text}");
        }
        for text in [r#"{"pids":-1}"#, r#"{"pids":1.5}"#, r#"{"pids":"1"}"#, r#"{"memory":1}"#] {
            serde_json::from_str::<ProcessLimits>(text).unwrap_err();
        }
        assert_eq!(ProcessLimits::default().out_of_range(), None);
    }

    #[test]
    fn a_report_names_each_limit_and_its_mechanism() {
        let mut report = LimitsReport::default();
        assert!(report.is_empty());
        report.add(LimitName::Pids, 64, LimitHolder::PidNamespace);
        report.add(LimitName::MemoryBytes, 1 << 30, LimitHolder::Cgroup);
        let text = r#"{"applied":{"memoryBytes":1073741824,"pids":64},"by":{"memoryBytes":"cgroup","pids":"pidNamespace"}}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        assert_eq!(serde_json::from_str::<LimitsReport>(text).unwrap(), report);
    }
}
