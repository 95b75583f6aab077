//! The dashboard for Grafana has the metrics of the product, all of them, under their real names and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use exec_server_testkit::TestRendezvous;
use exec_server_testkit::http::request;
use serde_json::Value;

use crate::metrics;

const PREFIX: &str = "exec_server_";

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana/exec-server.json");
    serde_json::from_slice(&std::fs::read(path).expect("the dashboard is there")).expect("JSON")
}

fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("an expression").to_owned()).collect()
}

/// The metrics that a text names; those of a histogram without the suffix of their samples.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_name(letter));
    let names = words.filter(|word| word.starts_with(PREFIX));
    let suffixes = ["_bucket", "_sum", "_count"];
    let family = |name: &str| {
        suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()
    };
    names.map(family).collect()
}

/// Names as they are scraped, from the lines about types: families without samples have no others.
fn scraped(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let name = |(name, kind): (&str, &str)| match kind {
        "counter" => (format!("{name}_total"), kind.to_owned()),
        kind => (name.to_owned(), kind.to_owned()),
    };
    types.map(name).collect()
}

#[tokio::test]
async fn it_names_every_metric_and_no_other() {
    let (_server, url) = metrics::start().await;
    let of_server = request(&url, "GET", "/metrics", &[]).await.body;
    let of_rendezvous = TestRendezvous::start().await.metrics().await;
    let mut real = scraped(&of_server);
    real.extend(scraped(&of_rendezvous));
    assert!(real.len() > 25, "{real:?}");
    let shown = named(&expressions(&dashboard()).join("\n"));
    let real: BTreeSet<String> = real.into_keys().collect();
    // A family without samples is not rendered: nothing was refused, dropped or closed yet.
    let sources = [
        include_str!("../../../exec-server-rendezvous/src/metrics.rs"),
        include_str!("../../../exec-server-rendezvous/src/store/times.rs"),
    ];
    let is_registered = |name: &String| {
        let family = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix("_total"));
        family.is_some_and(|family| {
            sources.iter().any(|source| source.contains(&format!("\"{family}\"")))
        })
    };
    let unknown: Vec<&String> =
        shown.difference(&real).filter(|name| !is_registered(name)).collect();
    assert_eq!(unknown, [""; 0], "no such metric");
    assert_eq!(real.difference(&shown).collect::<Vec<_>>(), [""; 0], "not in the dashboard");
}

#[test]
fn counters_are_shown_as_rates_and_selections_apply_everywhere() {
    let dashboard = dashboard();
    for expression in expressions(&dashboard) {
        let counters =
            expression.matches("_total{").count() + expression.matches("_bucket{").count();
        assert_eq!(expression.matches("rate(").count(), counters, "{expression}");
        let names = expression.matches(PREFIX).count();
        assert_eq!(expression.matches(r#"{instance=~"$instance""#).count(), names, "{expression}");
        let count = |letter| expression.matches(letter).count();
        assert!(count('(') == count(')') && count('{') == count('}'), "{expression}");
    }
    let ids = dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_i64());
    assert_eq!(ids.clone().collect::<BTreeSet<_>>().len(), ids.count(), "ids are unique");
}
