use super::*;

fn options(collector: &str) -> OtlpOptions {
    OtlpOptions {
        collector: collector.to_owned(),
        headers_file: None,
        ca_file: None,
        interval: None,
        service: "exec-server",
    }
}

fn settings(collector: &str, variables: &[(&str, &str)]) -> Result<Option<Settings>, OtlpError> {
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Settings::new(options(collector), variable)
}

fn urls(collector: &str, variables: &[(&str, &str)]) -> [Option<String>; 2] {
    let Endpoints { traces, metrics } = settings(collector, variables).unwrap().unwrap().endpoints;
    [traces, metrics].map(|url| url.map(String::from))
}

#[test]
fn each_signal_has_its_path_below_the_collector() {
    let both = |base: &str| [Some(format!("{base}/v1/traces")), Some(format!("{base}/v1/metrics"))];
    assert_eq!(urls("http://127.0.0.1:4318", &[]), both("http://127.0.0.1:4318"));
    assert_eq!(urls("https://otel.example.org/a/", &[]), both("https://otel.example.org/a"));
    assert_eq!(urls("env", &[]), both("http://localhost:4318"));
    let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    assert_eq!(urls("env", &[base]), both("http://collector:4318"));
    let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://jaeger:9/x");
    assert_eq!(urls("env", &[base, whole])[0].as_deref(), Some("http://jaeger:9/x"));
    // The option is stronger than the variables.
    assert_eq!(urls("http://127.0.0.1:1", &[base, whole]), both("http://127.0.0.1:1"));
    assert_eq!(urls("http://h:1", &[("OTEL_METRICS_EXPORTER", "none")])[1], None);
}

#[test]
fn a_wrong_url_is_refused_without_its_secrets() {
    for wrong in
        ["", "collector:4318", "grpc://h:1", "http://", "http://me:hush@h:1", "http://h/?hush=1"]
    {
        let error = settings(wrong, &[]).unwrap_err().to_string();
        assert!(error.starts_with("--otlp is not a URL") && !error.contains("hush"), "{error}");
    }
    let error = settings("env", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "h")]).unwrap_err().to_string();
    assert!(error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT is not a URL"), "{error}");
}

#[test]
fn unsupported_values_of_variables_are_refused() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a"),
    ] {
        let error = settings("env", &[(name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
    }
    assert!(settings("http://h:1", &[("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
}

#[test]
fn the_resource_names_the_service_and_what_the_operator_adds() {
    let found = |variables: &[(&str, &str)], name: &str| {
        let resource = settings("http://h:1", variables).unwrap().unwrap().resource;
        let mut values = resource.into_iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value);
        assert_eq!(values.count(), 0, "{name}");
        value
    };
    let attributes =
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment.environment.name=b%20c");
    assert_eq!(found(&[], SERVICE_NAME).as_deref(), Some("exec-server"));
    assert_eq!(found(&[attributes], SERVICE_NAME).as_deref(), Some("a"));
    assert_eq!(found(&[attributes], "deployment.environment.name").as_deref(), Some("b c"));
    let name = ("OTEL_SERVICE_NAME", "own");
    assert_eq!(found(&[attributes, name], SERVICE_NAME).as_deref(), Some("own"));
}

#[test]
fn the_sampler_keeps_a_share_of_the_traces() {
    let sampler = |value: &str, argument: &str| {
        let variables = [("OTEL_TRACES_SAMPLER", value), ("OTEL_TRACES_SAMPLER_ARG", argument)];
        settings("http://h:1", &variables).unwrap().unwrap().sampler
    };
    let mut low = [1; 16];
    low[8] = 0;
    let mut high = [1; 16];
    high[8] = 0xff;
    assert!(sampler("parentbased_always_on", "").samples(&high));
    assert!(!sampler("parentbased_always_off", "").samples(&low));
    let half = sampler("parentbased_traceidratio", "0.5");
    assert!(half.samples(&low) && !half.samples(&high));
}
