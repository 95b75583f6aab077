//! Parses and formats the times of `logs`.

use std::time::{SystemTime, UNIX_EPOCH};

use exec_server_protocol::duration::millis;

/// Smaller bare numbers are rejected as Unix times; this is 2001-09-09.
const FIRST_UNIX_TIME: i64 = 1_000_000_000;

/// Unix milliseconds of an age (`10m`), a date and time (RFC 3339), or Unix seconds.
pub fn moment(text: &str) -> Result<u64, String> {
    moment_before(text, now_ms())
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

/// `2009-02-13T23:31:30.123Z`.
pub fn rfc3339(ms: u64) -> String {
    let signed = i64::try_from(ms).unwrap_or(i64::MAX);
    let minute = super::format::time(signed).replace(' ', "T");
    format!("{minute}:{:02}.{:03}Z", ms / 1000 % 60, ms % 1000)
}

fn moment_before(text: &str, now_ms: u64) -> Result<u64, String> {
    let expected = || {
        "expected a time such as 30s, 10m or 2h before now, a date such as 2026-01-31 or 2026-01-31T12:00:00Z, or Unix \
         seconds"
            .to_owned()
    };
    if let Ok(seconds) = text.parse::<i64>() {
        let is_moment = seconds >= FIRST_UNIX_TIME;
        let ms = seconds.checked_mul(1000).filter(|_| is_moment).ok_or_else(expected)?;
        return u64::try_from(ms).map_err(|_| expected());
    }
    if let Some(ms) = date_time(text) {
        return Ok(u64::try_from(ms).unwrap_or(0));
    }
    let passed = match text.strip_suffix('d') {
        Some(days) => days.parse::<u64>().ok().and_then(|days| days.checked_mul(86_400_000)),
        None => {
            let time = crate::cli::duration(text).map_err(|_| expected())?;
            u64::try_from(time.as_millis()).ok()
        }
    };
    passed.map(|passed| now_ms.saturating_sub(passed)).ok_or_else(expected)
}

/// `2026-01-31`, or with `T12:00`, `T12:00:00`, `T12:00:00.5` and `Z` or an offset; without one it is UTC.
fn date_time(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if year.len() != 4 || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let (year, month, day) = (number(year)?, number(month)?, number(day)?);
    if !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let midnight = days_since_1970(year, month, day) * 86_400_000;
    if rest.is_empty() {
        return Some(midnight);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, offset) = match rest.find(['Z', 'z', '+', '-']) {
        Some(place) => (&rest[..place], offset(&rest[place..])?),
        None => (rest, 0),
    };
    Some(midnight + time_of_day(time)? - offset)
}

fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let seconds = parts.next().unwrap_or("0");
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let seconds = number(seconds)?;
    let is_time = hour < 24 && minute < 60 && seconds < 61 && parts.next().is_none();
    let millis = number(format!("{fraction:0<3}").get(..3)?)?;
    is_time.then_some(((hour * 60 + minute) * 60 + seconds) * 1000 + millis)
}

fn offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = text[1..].split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000)
}

/// Digits only, without a sign.
fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_many_forms() {
        let now = 1_700_000_000_000;
        for (text, ms) in [
            ("10s", now - 10_000),
            ("2h", now - 7_200_000),
            ("1d", now - 86_400_000),
            ("1234567890", 1_234_567_890_000),
            ("2009-02-13", 1_234_483_200_000),
            ("2009-02-13T23:31:30Z", 1_234_567_890_000),
            ("2009-02-13T23:31:30.123Z", 1_234_567_890_123),
            ("2009-02-14T01:31:30+02:00", 1_234_567_890_000),
            ("2009-02-13T23:31", 1_234_567_860_000),
            ("2000-02-29", 951_782_400_000),
        ] {
            assert_eq!(moment_before(text, now), Ok(ms), "{text}");
        }
        for bad in ["", "5", "-5m", "yesterday", "2009-13-01", "2009-02-30", "2009-02-13T25:00"] {
            assert!(moment_before(bad, now).is_err(), "{bad}");
        }
        assert_eq!(rfc3339(1_234_567_890_123), "2009-02-13T23:31:30.123Z");
    }
}
