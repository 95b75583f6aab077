//! The sandbox on Linux: namespaces and mounts made in process, Landlock and seccomp on top.
//!
//! | look here | for |
//! |---|---|
//! | [`spawner`], [`launch`] | the server's side of a sandboxed start |
//! | [`foreground`] | a command with the standard streams of this process, and a trial of the sandbox |
//! | [`zygote`], [`packet`] | the process that launchers are forked from, and its message socket |
//! | [`prepared`], [`warm_pool`] | a sandbox that waits for its job, and the pool of sandboxes prepared ahead of starts |
//! | [`launcher`], [`init`] | the parent of one sandbox, and pid 1 inside |
//! | [`setup_timeout`] | the time limit of the set-up |
//! | [`rootfs`] | the file system that the command sees, and its mounts |
//! | [`exit_report`] | the exit status of the command, sent by pid 1 |
//! | [`exit_hook`] | what is released when the command has exited |
//! | [`teardown`] | background release of mount namespaces and reaping of launchers |
//! | [`namespaces`] | system calls that create and enter namespaces |
//! | [`netns`] | the network namespace that the isolated sandboxes of one session share |
//! | [`confinement`] | the restrictions that are applied between fork and exec: |
//! | [`limits`] | … resource limits |
//! | [`privileges`] | … capabilities, securebits, `no_new_privs` |
//! | [`landlock`] | … file rules a second time, signals and abstract sockets |
//! | [`seccomp`] | … the system call filter, which [`bpf`] assembles |
//! | [`denials`] | counts the calls that the filter refuses |
//! | [`worker`] | file requests that run inside: the worker, its client in the server, the frames |
//! | [`placeholders`] | directories at missing protected names, in a journal that all servers of a user share |
//! | [`probe`], [`report`] | which of these mechanisms work on this machine, and what a set-up enforces |
//! | [`step`] | the error type of the set-up |

pub mod bpf;
pub mod confinement;
pub mod denials;
pub mod exit_hook;
pub mod exit_report;
pub mod foreground;
pub mod init;
pub mod landlock;
pub mod launch;
pub mod launcher;
pub mod limits;
pub mod namespaces;
pub mod netns;
pub mod packet;
pub mod placeholders;
pub mod prepared;
pub mod privileges;
pub mod probe;
pub mod report;
pub mod rootfs;
pub mod seccomp;
pub mod setup_timeout;
pub mod spawner;
pub mod step;
pub mod teardown;
pub mod warm_pool;
pub mod worker;
pub mod zygote;

#[cfg(test)]
mod tests;

pub use crate::setup::{Mechanism, Network, SandboxSetup};
