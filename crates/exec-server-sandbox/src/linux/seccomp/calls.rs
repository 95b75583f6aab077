//! Groups of system calls that the filter decides by number alone.
//!
//! A call that an architecture lacks is left out of its lists.

use libc::c_long;

/// Denied in every sandbox: memory of other processes, large kernel interfaces, global state of the machine.
pub const DENIED: &[c_long] = &[
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_move_pages,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_fanotify_init,
];

/// Denied in every sandbox; specific to this architecture.
#[cfg(target_arch = "x86_64")]
pub const DENIED_HERE: &[c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib];
/// Denied in every sandbox; specific to this architecture.
#[cfg(target_arch = "aarch64")]
pub const DENIED_HERE: &[c_long] = &[];

/// Needed by debuggers.
pub const DEBUGGING: &[c_long] =
    &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp];

/// The kernel's keyrings, which most namespaces do not isolate.
pub const KEYRINGS: &[c_long] = &[libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key];

/// Needed by the sandboxes of browsers, besides `clone`.
pub const NAMESPACES: &[c_long] = &[libc::SYS_unshare, libc::SYS_chroot];

/// Calls that connect or bind a socket.
pub const CONNECTING: &[c_long] = &[libc::SYS_connect, libc::SYS_bind];

/// Calls that follow a bind.
pub const LISTENING: &[c_long] = &[libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];

/// Not used by the file worker: programs, processes, new sockets.
pub const NOT_FOR_FILES: &[c_long] =
    &[libc::SYS_execve, libc::SYS_execveat, libc::SYS_socket, libc::SYS_socketpair];

/// Not used by the file worker; specific to this architecture.
#[cfg(target_arch = "x86_64")]
pub const NOT_FOR_FILES_HERE: &[c_long] = &[libc::SYS_fork, libc::SYS_vfork];
/// Not used by the file worker; specific to this architecture.
#[cfg(target_arch = "aarch64")]
pub const NOT_FOR_FILES_HERE: &[c_long] = &[];

/// Change attributes by path.
pub const ATTRIBUTES_OF_NAMES: &[c_long] = &[
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

/// The same; specific to this architecture.
#[cfg(target_arch = "x86_64")]
pub const ATTRIBUTES_OF_NAMES_HERE: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
/// The same; specific to this architecture.
#[cfg(target_arch = "aarch64")]
pub const ATTRIBUTES_OF_NAMES_HERE: &[c_long] = &[];

/// Change attributes of an open file, which its owner may do even if it was opened for reading.
pub const ATTRIBUTES_OF_OPEN_FILES: &[c_long] =
    &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fremovexattr];

/// System V IPC and message queues, which are global without an IPC namespace.
pub const SHARED_IPC: &[c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Calls whose first argument is a process.
pub const ABOUT_A_PROCESS: &[c_long] = &[
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
];

/// Calls whose second argument is a process if the first has this value (`PRIO_PROCESS`, `IOPRIO_WHO_PROCESS`), and
/// otherwise a set of processes.
pub const ABOUT_A_KIND_OF_PROCESS: &[(c_long, u32)] =
    &[(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)];

/// The calls with a mode, and the index of that argument.
pub const WITH_MODE: &[(c_long, usize)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
];

/// The calls with a mode in the third argument that counts only if the flags in the second create a file.
pub const WITH_FLAGS_AND_MODE: &[(c_long, usize, usize)] = &[
    (libc::SYS_openat, 2, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
];

// libc lacks these on some targets; new calls have the same number everywhere.
pub const OPEN_TREE_ATTR: c_long = 467;
pub const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: c_long = 294;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the sandbox has no system call filter for this architecture yet");
