//! The tasks extension: a command that outlasts its call, for clients that declare the extension.
//!
//! A task only follows its process, which can be used by its id as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rmcp::model::CreateTaskResult;
use rmcp::task_manager::{TaskExit, TaskManager, TaskOptions};

use crate::call;
use crate::process::Process;

/// After this time a task fails, and its process goes on; a finished task can be read for as long again.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Tasks that can be read; further commands are answered with what there is. Each has one answer in memory.
const MAX_TASKS: usize = 256;

/// The tasks of one MCP server.
#[derive(Default)]
pub struct Tasks {
    pub manager: TaskManager,
    created: Mutex<VecDeque<Instant>>,
}

impl Tasks {
    /// A task that ends with the process; none if there are too many.
    pub fn follow(&self, process: Arc<Process>, max_output: usize) -> Option<CreateTaskResult> {
        let now = Instant::now();
        {
            let mut created = self.created.lock().expect("no holder panics");
            created.retain(|created| now.duration_since(*created) < LIFETIME * 2);
            if created.len() >= MAX_TASKS {
                return None;
            }
            created.push_back(now);
        }
        let options = TaskOptions::new()
            .with_ttl_ms(u64::try_from(LIFETIME.as_millis()).ok())
            .with_status_message(format!("running as process {}", process.id()));
        let task = self.manager.spawn(options, |context| {
            Box::pin(async move {
                tokio::select! {
                    () = process.settled(None) => {
                        Ok(call::result(Ok(process.report(0, max_output).await)))
                    }
                    () = context.cancelled() => {
                        process.stop().await;
                        Err(TaskExit::Cancelled)
                    }
                }
            })
        });
        Some(CreateTaskResult::new(task))
    }
}
