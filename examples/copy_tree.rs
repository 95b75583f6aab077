//! Writes a small tree through the server, copies it there, and lists the copy.

use exec_server::{ExecServerClient, Parents};
use exec_server_examples::{Error, start_server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (server, url) = start_server().await?;
    let client = ExecServerClient::connect(url).await?;
    let folder = tempfile::tempdir()?;
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));

    let files = client.fs();
    files.create_directory(source.join("deep/er"), Parents::Create).await?;
    files.write_file(source.join("notes.txt"), "first\n").await?;
    files.write_file(source.join("deep/er/more.txt"), "second\n").await?;

    let copied = client.command("cp").arg("-r").args([path(&source), path(&copy)]).status().await?;
    assert!(copied.success());

    let mut names: Vec<String> =
        files.read_directory(&copy).await?.into_iter().map(|entry| entry.file_name).collect();
    names.sort();
    println!("{} holds {names:?}", copy.display());
    assert_eq!(names, ["deep", "notes.txt"]);
    assert_eq!(files.read_file_text(copy.join("deep/er/more.txt")).await?, "second\n");

    client.close().await;
    server.shut_down().await;
    Ok(())
}

fn path(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}
