//! Metrics in the Prometheus text format as OTLP messages, so that both come from the same registry.

use std::collections::BTreeMap;
use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use crate::span_data::SCOPE;

/// The label of a histogram's buckets.
const BOUND: &str = "le";

type Labels = Vec<(String, String)>;

/// The message with all metrics in these texts; `None` if there are none.
pub(crate) fn message(
    texts: &[String],
    resource: &[(String, String)],
    started: SystemTime,
    now: SystemTime,
) -> Option<Vec<u8>> {
    let times = Times { start: nanos(started), now: nanos(now) };
    let metrics: Vec<Metric> = texts
        .iter()
        .flat_map(|text| families(text))
        .filter_map(|family| family.metric(times))
        .collect();
    if metrics.is_empty() {
        return None;
    }
    let pairs = resource.iter().map(|(name, value)| key_value(name, value)).collect();
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, ..Default::default() };
    let resource_metrics = ResourceMetrics {
        resource: Some(Resource { attributes: pairs, ..Default::default() }),
        scope_metrics: vec![scope_metrics],
        ..Default::default()
    };
    let request = ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] };
    Some(request.encode_to_vec())
}

/// Nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

/// One metric with all its samples.
#[derive(Debug, Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    /// Suffix of the name, labels, value.
    samples: Vec<(&'a str, Labels, f64)>,
}

#[derive(Default)]
struct Buckets {
    /// Upper bound and the count up to it.
    counts: Vec<(f64, u64)>,
    sum: f64,
    count: u64,
}

impl Family<'_> {
    fn metric(&self, times: Times) -> Option<Metric> {
        let data = match self.kind {
            "counter" => Data::Sum(Sum {
                data_points: self.points("_total", times),
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
            "gauge" => Data::Gauge(Gauge { data_points: self.points("", times) }),
            "histogram" => Data::Histogram(Histogram {
                data_points: self.histograms(times),
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
            }),
            _ => return None,
        };
        let unit = match self.name {
            name if name.ends_with("_seconds") => "s",
            name if name.ends_with("_bytes") => "By",
            _ => "",
        };
        let (name, description) = (self.name.to_owned(), self.help.to_owned());
        Some(Metric {
            name,
            description,
            unit: unit.to_owned(),
            data: Some(data),
            ..Default::default()
        })
    }

    fn points(&self, wanted: &str, times: Times) -> Vec<NumberDataPoint> {
        let samples = self.samples.iter().filter(|(suffix, ..)| *suffix == wanted);
        samples
            .map(|(_, labels, value)| NumberDataPoint {
                attributes: attributes(labels),
                start_time_unix_nano: times.start,
                time_unix_nano: times.now,
                value: Some(number(*value)),
                ..Default::default()
            })
            .collect()
    }

    fn histograms(&self, times: Times) -> Vec<HistogramDataPoint> {
        let mut series: BTreeMap<Labels, Buckets> = BTreeMap::new();
        for (suffix, labels, value) in &self.samples {
            let mut labels = labels.clone();
            let bound = labels.iter().position(|(name, _)| name == BOUND);
            let bound = bound.map(|place| labels.remove(place).1);
            let buckets = series.entry(labels).or_default();
            match (*suffix, bound) {
                ("_sum", _) => buckets.sum = *value,
                ("_count", _) => buckets.count = *value as u64,
                ("_bucket", Some(bound)) => {
                    let bound = bound.parse().unwrap_or(f64::INFINITY);
                    buckets.counts.push((bound, *value as u64));
                }
                _ => {}
            }
        }
        series.into_iter().map(|(labels, buckets)| buckets.point(&labels, times)).collect()
    }
}

impl Buckets {
    /// OTLP counts each bucket alone, Prometheus with all those below it.
    fn point(&self, labels: &Labels, times: Times) -> HistogramDataPoint {
        let below = std::iter::once(0).chain(self.counts.iter().map(|(_, count)| *count));
        let counts = self.counts.iter().zip(below);
        let bounds = self.counts.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite());
        HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: times.start,
            time_unix_nano: times.now,
            count: self.count,
            sum: Some(self.sum),
            bucket_counts: counts.map(|((_, count), below)| count.saturating_sub(below)).collect(),
            explicit_bounds: bounds.collect(),
            ..Default::default()
        }
    }
}

/// The families of a text; lines that are not understood are left out.
fn families(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let value = words.next().unwrap_or("");
            if !matches!(what, "HELP" | "TYPE") {
                continue;
            }
            if families.last().is_none_or(|last| last.name != name) {
                families.push(Family { name, ..Family::default() });
            }
            let family = families.last_mut().expect("pushed above");
            if what == "HELP" { family.help = value } else { family.kind = value }
        } else if let Some(family) = families.last_mut()
            && let Some(sample) = line.strip_prefix(family.name).and_then(sample)
        {
            family.samples.push(sample);
        }
    }
    families
}

/// What follows the name in a line: a suffix, labels in braces, and a value.
fn sample(rest: &str) -> Option<(&str, Labels, f64)> {
    let end = rest.find(['{', ' '])?;
    let (suffix, rest) = rest.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Labels::new(), rest),
    };
    Some((suffix, labels, rest.split_whitespace().next()?.parse().ok()?))
}

/// Labels up to the closing brace, and the rest of the line.
fn labels(mut text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        text = text.trim_start_matches(',');
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next()? {
                (place, '"') => break place,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    letter => letter,
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.to_owned(), value));
        text = &rest[end + 1..];
    }
}

/// Counters are whole numbers, and are sent as such.
fn number(value: f64) -> Number {
    let whole = value as i64;
    if whole as f64 == value { Number::AsInt(whole) } else { Number::AsDouble(value) }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| key_value(name, value)).collect()
}

fn key_value(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..Default::default() }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP exec_server_connections_active Open connections.
# TYPE exec_server_connections_active gauge
exec_server_connections_active 2
# HELP exec_server_requests Requests answered.
# TYPE exec_server_requests counter
exec_server_requests_total{method="process/start",result="ok"} 5
exec_server_requests_total{method="a\"b\\c}",result="error"} 1
# HELP exec_server_request_duration_seconds Time from request to reply.
# TYPE exec_server_request_duration_seconds histogram
exec_server_request_duration_seconds_sum{method="x"} 0.75
exec_server_request_duration_seconds_count{method="x"} 4
exec_server_request_duration_seconds_bucket{le="0.1",method="x"} 1
exec_server_request_duration_seconds_bucket{le="0.5",method="x"} 3
exec_server_request_duration_seconds_bucket{le="+Inf",method="x"} 4
# EOF
"#;

    fn metrics(text: &str) -> Vec<Metric> {
        let resource = [("service.name".to_owned(), "a".to_owned())];
        let (start, now) = (SystemTime::UNIX_EPOCH, SystemTime::now());
        let message = message(&[text.to_owned()], &resource, start, now).unwrap();
        let mut request = ExportMetricsServiceRequest::decode(&message[..]).unwrap();
        let mut resource = request.resource_metrics.remove(0);
        assert_eq!(resource.resource.unwrap().attributes[0].key, "service.name");
        resource.scope_metrics.remove(0).metrics
    }

    #[test]
    fn counters_gauges_and_histograms_keep_names_labels_and_values() {
        let metrics = metrics(TEXT);
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "exec_server_connections_active",
                "exec_server_requests",
                "exec_server_request_duration_seconds"
            ]
        );
        assert_eq!(metrics[0].description, "Open connections.");
        let Some(Data::Gauge(gauge)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, Some(Number::AsInt(2)));
        let Some(Data::Sum(sum)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic);
        let labels = &sum.data_points[1].attributes;
        assert_eq!(labels[0], key_value("method", "a\"b\\c}"));
        assert_eq!(sum.data_points[0].value, Some(Number::AsInt(5)));
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (4, Some(0.75)));
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.explicit_bounds, [0.1, 0.5]);
        assert_eq!(point.attributes, [key_value("method", "x")]);
        assert_eq!(metrics[2].unit, "s");
    }

    #[test]
    fn lines_that_are_no_samples_are_left_out() {
        let text = "# TYPE a gauge\na{b=\"c 1\na 1\na x\n\n# UNIT a s\nnoise\n";
        let metrics = metrics(text);
        let Some(Data::Gauge(gauge)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points.len(), 1);
        assert!(message(&[String::new()], &[], SystemTime::now(), SystemTime::now()).is_none());
    }
}
