//! `exec-server update --check`: what a release says about itself, and what is done about it.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::tunnel::Tunnels;
use exec_server_testkit::web::{Web, WebRequest, answer};

const CURRENT: &str = env!("CARGO_PKG_VERSION");

fn release(version: &str) -> String {
    format!(
        "{{\"name\": \"exec-server\", \"version\": \"{version}\", \"time\": \"\", \"files\": []}}"
    )
}

/// A file server with releases.
async fn releases() -> Web {
    Web::answering(|request: &WebRequest| match request.target.as_str() {
        "/newer/release.json" => answer(200, &[], release("99.1.0")),
        "/same/release.json" => answer(200, &[], release(CURRENT)),
        "/older/release.json" => answer(200, &[], release("0.0.1")),
        "/before/release.json" => answer(200, &[], release(&format!("{CURRENT}-rc.1"))),
        "/other/release.json" => answer(200, &[], "{\"name\": \"other\", \"version\": \"99.0.0\"}"),
        "/strange/release.json" => answer(200, &[], release("\\u001b[31m9")),
        "/page/release.json" => answer(200, &[], "<html>"),
        "/moved/release.json" => answer(302, &[("Location", "../newer/release.json")], ""),
        "/loop/release.json" => answer(302, &[("Location", "/loop/release.json")], ""),
        "/away/release.json" => answer(302, &[("Location", "file:///etc/hostname")], ""),
        _ => answer(404, &[], ""),
    })
    .await
}

async fn check(url: &str) -> (i32, String, String) {
    TestExecutor::builder().args(&["update", "--check", "--url", url]).run().await
}

#[tokio::test]
async fn the_exit_code_says_whether_a_newer_release_exists() {
    let web = releases().await;
    for path in ["/newer", "/newer/", "/newer/release.json", "/moved"] {
        let (code, out, errors) = check(&web.url(path)).await;
        assert_eq!((code, errors.as_str()), (10, ""), "{path}: {out}");
        let start =
            format!("exec-server 99.1.0 is available, and this is {CURRENT}: http://127.0.0.1:");
        assert!(out.starts_with(&start), "{out}");
    }
    for (path, newest) in [
        ("/same", CURRENT.to_owned()),
        ("/older", "0.0.1".to_owned()),
        ("/before", format!("{CURRENT}-rc.1")),
    ] {
        let (code, out, errors) = check(&web.url(path)).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{path}: {out}");
        assert_eq!(
            out,
            format!("exec-server {CURRENT} is current; the newest release is {newest}\n")
        );
    }
    let json = ["update", "--check", "--json", "--url", &web.url("/newer")];
    let (code, out, _) = TestExecutor::builder().args(&json).run().await;
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 10);
    assert_eq!(
        (&report["current"], &report["newest"], &report["isNewer"]),
        (&CURRENT.into(), &"99.1.0".into(), &true.into())
    );
}

#[tokio::test]
async fn what_is_no_release_is_an_error_with_the_reason() {
    let web = releases().await;
    for (path, reason) in [
        ("/none", "the server answers with 404"),
        ("/page", "it is no release.json of `cargo xtask dist`"),
        ("/other", "it is a release of `other`"),
        ("/strange", "is no version"),
        ("/loop", "it redirects too often"),
        ("/away", "which is less secure"),
    ] {
        let (code, out, errors) = check(&web.url(path)).await;
        assert_eq!((code, out.as_str()), (1, ""), "{path}: {errors}");
        assert!(
            errors.starts_with(
                "exec-server: could not read the newest release from http://127.0.0.1:"
            ),
            "{errors}"
        );
        assert!(errors.contains(reason) && !errors.contains('\x1b'), "{errors}");
    }
    let (code, _, errors) = check("http://127.0.0.1:9/").await;
    assert!(code == 1 && errors.contains("could not connect"), "{errors}");
    let (code, _, errors) = check("example.org").await;
    assert!(code == 1 && errors.contains("expected https://HOST/PATH"), "{errors}");
}

#[tokio::test]
async fn nothing_is_asked_without_an_address() {
    let (code, out, errors) = TestExecutor::builder().args(&["update", "--check"]).run().await;
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        errors.contains("no address of releases is configured: name it with --url URL"),
        "{errors}"
    );
    let (code, _, errors) = TestExecutor::builder().args(&["update"]).run().await;
    assert!(code == 2 && errors.contains("--check"), "{errors}");
}

#[tokio::test]
async fn the_address_comes_from_the_variable_or_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let web = releases().await;
    let file = dir.path().join("config.toml");
    std::fs::write(&file, format!("[update]\nurl = \"{}\"\n", web.url("/newer"))).unwrap();
    let with = |name: &str, value: &str| {
        TestExecutor::builder().env(name, value).args(&["update", "--check"])
    };
    assert_eq!(with("EXEC_SERVER_CONFIG", file.to_str().unwrap()).run().await.0, 10);
    let both = with("EXEC_SERVER_CONFIG", file.to_str().unwrap())
        .env("EXEC_SERVER_UPDATE_URL", web.url("/same"));
    assert_eq!(both.run().await.0, 0);
    let shown = ["config", "show", "update", "--config", file.to_str().unwrap()];
    let (code, out, errors) = TestExecutor::builder().args(&shown).run().await;
    assert!(code == 0 && out.contains("[update]\nurl = \"http://127.0.0.1:"), "{out}{errors}");
    // A directory on this machine, such as a mirror.
    std::fs::write(dir.path().join("release.json"), release("99.0.0")).unwrap();
    assert_eq!(check(&format!("file://{}", dir.path().display())).await.0, 10);
}

#[tokio::test]
async fn proxies_and_certificates_are_those_of_other_requests() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = Tunnels::start().await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let acceptor = exec_server_transport::tls::acceptor(&certificate, &key).unwrap();
    let secure = Web::start_tls(acceptor, |mut visit| async move {
        while visit.request().await.is_some() {
            visit.send(&answer(200, &[], release("99.1.0"))).await;
        }
    })
    .await;
    let address = secure.local_url("/latest");
    let (code, _, errors) = check(&address).await;
    assert!(code == 1 && errors.contains("certificate"), "{errors}");
    let trusting =
        ["update", "--check", "--url", &address, "--ca-file", certificate.to_str().unwrap()];
    let (code, _, errors) = TestExecutor::builder().args(&trusting).run().await;
    assert_eq!(code, 10, "{errors}");
    let url = ["update", "--check", "--url", "http://releases.test/latest"];
    let through = TestExecutor::builder().args(&url).env("http_proxy", proxy.url());
    let (code, _, errors) = through.env("HTTP_PROXY", proxy.url()).run().await;
    assert!(code == 1 && errors.contains("proxy"), "the name exists nowhere: {errors}");
    let requests = proxy.requests();
    assert_eq!(
        requests.iter().map(|it| it.target.as_str()).collect::<Vec<_>>(),
        ["releases.test:80"]
    );
}
