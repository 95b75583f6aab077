use super::*;

#[test]
fn records_come_out_in_order() {
    check("0 1 2", "0 1 2", (2, 0));
    check("1 2 0", "0 1 2", (2, 0));
    check("0 2 4", "0", (0, 0b1010));
    check("2 1", "", (0, 0));
}

#[test]
fn the_first_copy_of_a_record_counts() {
    check("0 0x 1", "0 1", (1, 0));
    check("1 1x 0", "0 1", (1, 0));
    check("0 1/2.0 1/2.0x 1/2.1 ", "0 1/2.01/2.1", (1, 0));
}

#[test]
fn segments_wait_for_each_other() {
    check("0/3.2 0/3.0 1 0/3.1", "0/3.00/3.10/3.2 1", (1, 0));
    assert_eq!(feed("0/2.0 0/3.1").map(|_| ()), Err(OrderError::Segments));
    assert_eq!(feed("0/65.0").map(|_| ()), Err(OrderError::Segments));
    let mut order = Reorder::default();
    let big = |index| data(0, index, 2, vec![0; 40_000]);
    assert_eq!(order.handle_data(big(0)), Ok(()));
    assert_eq!(order.handle_data(big(1)), Err(OrderError::Segments));
}

#[test]
fn held_records_are_bounded() {
    assert!(feed("64").is_ok());
    assert_eq!(feed("65").map(|_| ()), Err(OrderError::Distance));
    let mut order = Reorder::default();
    let far = |seq| data(seq, 0, 1, vec![0; 60_000]);
    let kept = (1..64).take_while(|seq| order.handle_data(far(*seq)).is_ok()).count();
    assert_eq!(kept, MAX_WAITING_BYTES / 60_000);
}

#[test]
fn the_last_number_ends_the_stream() {
    let mut order = Reorder { next: u64::from(u32::MAX), ..Reorder::default() };
    assert_eq!(order.handle_data(data(u32::MAX, 0, 1, vec![1])), Ok(()));
    assert_eq!(order.handle_data(data(0, 0, 1, vec![1])), Err(OrderError::Exhausted));
}

/// Records are named by their number, `seq/count.index` is a segment, and the suffix `x` marks a different copy.
fn check(arrivals: &str, released: &str, ack: (u32, u32)) {
    let (order, records) = feed(arrivals).unwrap();
    assert_eq!(records.join(" "), released, "{arrivals}");
    assert_eq!(order.ack(), Ack { through: ack.0, bits: ack.1 }, "{arrivals}");
}

fn feed(arrivals: &str) -> Result<(Reorder, Vec<String>), OrderError> {
    let mut order = Reorder::default();
    let mut records = Vec::new();
    for word in arrivals.split_whitespace() {
        let name = word.trim_end_matches('x');
        let (seq, part) = name.split_once('/').unwrap_or((name, "1.0"));
        let (count, index) = part.split_once('.').unwrap();
        let number = |text: &str| text.parse().unwrap();
        order.handle_data(data(number(seq), number(index), number(count), word))?;
        while let Some(record) = order.poll_record() {
            records.push(String::from_utf8(record.to_vec()).unwrap());
        }
    }
    Ok((order, records))
}

fn data(seq: u32, index: u32, count: u32, payload: impl Into<Vec<u8>>) -> RelayData {
    let payload = Bytes::from(payload.into());
    RelayData { seq, segment_index: index, segment_count: count, payload }
}
