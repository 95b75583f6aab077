use std::sync::Mutex;

use tokio::sync::oneshot;

use super::*;

/// A sink that a test fills up.
#[derive(Clone, Default)]
struct Disk {
    state: Arc<Mutex<(bool, Vec<String>)>>,
}

impl Disk {
    fn set_full(&self, is_full: bool) {
        self.state.lock().unwrap().0 = is_full;
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        let state = self.state.lock().unwrap();
        state.1.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Sink for Disk {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.1.push(std::str::from_utf8(line).unwrap().to_owned());
        Ok(())
    }
}

fn writer(on_full: AuditOnFull) -> (Disk, Arc<Queue>, Writer) {
    let (disk, queue) = (Disk::default(), Arc::new(Queue::new(on_full)));
    let metrics = Metrics::default();
    let writer = Writer::new(Box::new(disk.clone()), on_full, queue.clone(), metrics);
    (disk, queue, writer)
}

fn entry(event: &str) -> Entry {
    Entry { line: record::line(event, None, ()), written: None }
}

fn events(disk: &Disk) -> Vec<String> {
    disk.lines().iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn with_block_starts_are_refused_and_other_records_wait() {
    let (disk, queue, mut writer) = writer(AuditOnFull::Block);
    writer.handle_entry(entry("a"));
    disk.set_full(true);
    writer.handle_entry(entry("exit"));
    let (written, mut result) = oneshot::channel();
    writer.handle_entry(Entry { written: Some(written), ..entry("start") });
    assert!(result.try_recv().unwrap().is_err());
    assert!(queue.check().is_err() && queue.check().is_err());
    disk.set_full(false);
    writer.handle_lost(queue.take(Some(Duration::ZERO)).lost);
    writer.handle_entry(entry("b"));
    assert_eq!(events(&disk), ["a", "exit", "audit/gap", "b"]);
    let gap = &disk.lines()[2];
    assert_eq!((&gap["refused"], &gap["dropped"]), (&3.into(), &0.into()), "{gap}");
    assert!(queue.check().is_ok());
}

#[test]
fn with_drop_and_count_records_are_dropped_and_counted() {
    let (disk, _queue, mut writer) = writer(AuditOnFull::DropAndCount);
    writer.handle_entry(entry("a"));
    disk.set_full(true);
    writer.handle_entry(entry("b"));
    writer.handle_entry(entry("c"));
    disk.set_full(false);
    writer.handle_entry(entry("d"));
    assert_eq!(events(&disk), ["a", "audit/gap", "d"]);
    let gap = &disk.lines()[1];
    assert_eq!((&gap["refused"], &gap["dropped"]), (&0.into(), &2.into()), "{gap}");
}

#[test]
fn a_queue_that_nothing_empties_is_bounded() {
    let queue = Queue::new(AuditOnFull::DropAndCount);
    let pushed = (0..MAX_RECORDS + 10).filter(|_| queue.push(entry("x"))).count();
    assert_eq!(pushed, MAX_RECORDS);
    let taken = queue.take(None);
    assert_eq!((taken.entries.len(), taken.lost.dropped), (MAX_RECORDS, 10));
}
