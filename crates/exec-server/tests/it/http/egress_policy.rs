//! Egress policy: which hosts and addresses requests may reach.

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::json;

use super::{body, refusal, request, server, without_proxies};

#[tokio::test]
async fn metadata_services_are_out_of_reach_also_by_redirect() {
    let server = server().await;
    let web = Web::answering(|_| {
        answer(302, &[("location", "http://[::ffff:169.254.169.254]/latest/")], "")
    })
    .await;
    let mut client = server.client().await;
    for url in [
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://2852039166/".to_owned(),
        "http://[fe80::1]/".to_owned(),
        "http://[fd00:ec2::254]/".to_owned(),
        "http://[64:ff9b:1::a9fe:a9fe]/".to_owned(),
        "http://[2002:a9fe:a9fe::]/".to_owned(),
        "http://[2001:0:4136:e378:8000:63bf:5601:5601]/".to_owned(),
        "http://100.100.100.200/".to_owned(),
        "http://metadata.google.internal/".to_owned(),
        web.url("/"),
    ] {
        let (code, kind, message) = refusal(&mut client, &url, json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "forbidden"), "{url}");
        assert!(message.contains("see --http-allow-metadata"), "{message}");
    }
}

#[tokio::test]
async fn metadata_services_can_be_allowed() {
    let server = without_proxies().args(&["--http-allow-metadata"]).start().await;
    let mut client = server.client().await;
    // The address is unreachable, or a gateway rejects it.
    let more = json!({"timeoutMs": 300});
    if let Err(error) = request(&mut client, "http://169.254.1.2:1/", more).await {
        assert_ne!(error["data"]["kind"], "forbidden");
    }
}

#[tokio::test]
async fn a_list_of_hosts_holds_for_every_hop() {
    let web = Web::answering(|request| match request.target.as_str() {
        "/away" => answer(302, &[("location", "http://elsewhere.test/")], ""),
        _ => answer(200, &[], "listed"),
    })
    .await;
    let port = web.address().port();
    let listed = format!("local*:{port}");
    let server =
        without_proxies().args(&["--http-allow", "*.test.example", "--http-allow", &listed]);
    let server = server.start().await;
    let mut client = server.client().await;
    let answer = request(&mut client, &web.local_url("/"), json!({})).await.unwrap();
    assert_eq!(body(&answer), "listed");
    for url in [
        web.url("/"),
        web.local_url("/away"),
        "http://localhost:1/".to_owned(),
        "http://test.example/".to_owned(),
    ] {
        let (code, kind, message) = refusal(&mut client, &url, json!({})).await;
        assert_eq!((code, kind.as_str()), (-32603, "forbidden"), "{url}");
        assert!(message.ends_with("is not allowed: it is not in the list of --http-allow"));
    }
}

#[tokio::test]
async fn a_pattern_that_cannot_match_is_an_error_of_the_command_line() {
    for pattern in ["", "a:b", "http://a/", "10.0.0", "[name]"] {
        let (code, _, stderr) = without_proxies().args(&["--http-allow", pattern]).run().await;
        assert_eq!(code, 2, "{pattern}");
        assert!(stderr.contains("--http-allow"), "{stderr}");
    }
}

/// A server with its own file at `place`, in a mount namespace, so that the host's file is untouched.
#[cfg(target_os = "linux")]
pub async fn with_file(
    place: &str,
    content: &str,
    arguments: &[&str],
) -> Option<(exec_server_testkit::TestExecutor, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, content).unwrap();
    let probe = std::process::Command::new("unshare")
        .args(["-rm", "/bin/sh", "-c", "mount --bind \"$0\" \"$1\""])
        .args([&file, std::path::Path::new(place)])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped, no mount namespace for another {place}");
        return None;
    }
    let preparation = format!(
        "if [ -z \"$HAS_FILE\" ]; then HAS_FILE=1 exec unshare -rm /bin/sh -c \
         'mount --bind {} {place}; exec \"$0\" \"$@\"' \"$0\" \"$@\"; fi",
        file.display()
    );
    let builder = super::ignorant(exec_server_testkit::TestExecutor::builder().after(&preparation));
    Some((builder.args(arguments).start().await, folder))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_name_is_judged_by_the_address_that_is_dialled() {
    let table = "169.254.169.254 innocent.test\n127.0.0.1 local.test\n\
        127.0.0.1 mixed.test\n169.254.169.254 mixed.test\n";
    let Some((server, _folder)) = with_file("/etc/hosts", table, &[]).await else { return };
    let web = Web::answering(|_| answer(200, &[], "local")).await;
    let port = web.address().port();
    let away = Web::answering(move |_| {
        answer(302, &[("location", &format!("http://mixed.test:{port}/"))], "")
    })
    .await;
    let mut client = server.client().await;
    let url = format!("http://local.test:{port}/");
    assert_eq!(body(&request(&mut client, &url, json!({})).await.unwrap()), "local");
    for (url, place) in [
        ("http://innocent.test/".to_owned(), "innocent.test:80".to_owned()),
        (format!("http://mixed.test:{port}/"), format!("mixed.test:{port}")),
        (away.url("/"), format!("mixed.test:{port}")),
    ] {
        let (_, kind, message) = refusal(&mut client, &url, json!({})).await;
        assert_eq!(kind, "forbidden", "{message}");
        assert!(message.contains(&place), "{message}");
    }
    assert_eq!(web.requests().len(), 1);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn listed_addresses_are_no_names_that_begin_like_them() {
    let table = "127.0.0.2 127.0.0.1.evil.test\n127.0.0.1 inside.test\n\
        127.0.0.1 both.test\n127.0.0.2 both.test\n";
    let Some((server, _folder)) =
        with_file("/etc/hosts", table, &["--http-allow", "127.0.0.1*"]).await
    else {
        return;
    };
    let web = Web::answering(|_| answer(200, &[], "listed")).await;
    let port = web.address().port();
    let mut client = server.client().await;
    for host in ["127.0.0.1", "inside.test", "both.test"] {
        let answer = request(&mut client, &format!("http://{host}:{port}/"), json!({})).await;
        assert_eq!(body(&answer.unwrap()), "listed", "{host}");
    }
    for host in ["127.0.0.1.evil.test", "127.0.0.2"] {
        let url = format!("http://{host}:{port}/");
        let (_, kind, message) = refusal(&mut client, &url, json!({})).await;
        assert_eq!(kind, "forbidden", "{message}");
        assert!(message.ends_with("not in the list of --http-allow"), "{message}");
    }
}

#[tokio::test]
async fn behind_a_proxy_a_list_of_addresses_has_no_names() {
    let proxy = Web::answering(|request| answer(200, &[], &request.target)).await;
    let server = without_proxies()
        .env("http_proxy", proxy.url(""))
        .args(&["--http-allow", "10.0.0.*", "--http-allow", "named.test"])
        .start()
        .await;
    let mut client = server.client().await;
    for url in ["http://10.0.0.7/", "http://named.test/"] {
        assert_eq!(body(&request(&mut client, url, json!({})).await.unwrap()), url);
    }
    for url in ["http://10.0.0.7.evil.test/", "http://other.test/"] {
        assert_eq!(refusal(&mut client, url, json!({})).await.1, "forbidden", "{url}");
    }
    assert_eq!(proxy.requests().len(), 2);
}
