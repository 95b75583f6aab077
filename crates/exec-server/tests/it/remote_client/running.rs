//! Commands, input, files, HTTP, large output and concurrency through a relay.

use exec_server::{HttpRequestParams, Parents, Removal, Stdin};
use exec_server_testkit::web::answer;
use exec_server_testkit::{DEADLINE, Web};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{RelayFixture, connect};

#[tokio::test]
async fn commands_run_with_their_input_output_and_exit_code() {
    let fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    let mut command = client.command("sh");
    command.args(["-c", "printf out; printf err >&2; pwd; exit 3"]).current_dir("/usr");
    let output = command.output().await.unwrap();
    assert_eq!((output.stdout_text().as_ref(), output.status.code()), ("out/usr\n", 3));
    assert_eq!(output.stderr_text(), "err");
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"over there\n").await.unwrap();
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!(line, "over there\n");
    drop(stdin);
    assert!(child.wait().await.unwrap().success());
    client.close().await;
}

#[tokio::test]
async fn files_and_http_requests() {
    let fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fs = client.fs();
    fs.create_directory(at("a/b"), Parents::Create).await.unwrap();
    fs.write_file(at("a/b/c"), "hello").await.unwrap();
    assert_eq!(fs.read_file(at("a/b/c")).await.unwrap(), b"hello");
    let large: Vec<u8> = (0..9_000_000_u32).map(|number| (number / 7) as u8).collect();
    std::fs::write(at("large"), &large).unwrap();
    let mut back = Vec::new();
    fs.read_file_stream(at("large")).await.unwrap().read_to_end(&mut back).await.unwrap();
    assert!(back == large);
    fs.remove(at("a"), Removal::Tree).await.unwrap();
    assert!(!at("a").exists());
    let web = Web::answering(|_| answer(200, &[], "hello")).await;
    let params = HttpRequestParams::get("x", web.url("/"));
    let answer = client.http().http_request(params).await.unwrap();
    assert_eq!((answer.status, answer.body_base64.0.as_slice()), (200, &b"hello"[..]));
}

#[tokio::test]
async fn sixty_four_megabytes_arrive_byte_for_byte() {
    const SIZE: usize = 64 << 20;
    let fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    let script = format!("seq 1 100000000 | head -c {SIZE}");
    let mut child = client.command("sh").args(["-c", &script]).spawn().await.unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut all = Vec::with_capacity(SIZE);
    let reading = stdout.read_to_end(&mut all);
    timeout(4 * DEADLINE, reading).await.expect("it comes in time").unwrap();
    assert_eq!(all.len(), SIZE);
    let mut expected = Vec::with_capacity(SIZE + 16);
    let mut number = 1_u64;
    while expected.len() < SIZE {
        expected.extend_from_slice(format!("{number}\n").as_bytes());
        number += 1;
    }
    assert!(all == expected[..SIZE]);
}

#[tokio::test]
async fn two_harnesses_at_once_do_not_notice_each_other() {
    let fixture = RelayFixture::start().await;
    let other_state = tempfile::tempdir().unwrap();
    let mine = fixture.client().await;
    let other = connect(fixture.args_of(other_state.path())).await;
    let mut talks = Vec::new();
    for (client, name) in [(&mine, "mine"), (&other, "other"), (&mine, "mine again")] {
        let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        talks.push((child, stdin, lines, name));
    }
    for number in 0..50 {
        for (_, stdin, _, name) in &mut talks {
            stdin.write_all(format!("{name} {number}\n").as_bytes()).await.unwrap();
        }
        for (_, _, lines, name) in &mut talks {
            let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
            assert_eq!(line, Some(format!("{name} {number}")));
        }
    }
    assert_eq!(mine.processes().await.unwrap().processes.len(), 2);
    assert_eq!(other.processes().await.unwrap().processes.len(), 1);
}
