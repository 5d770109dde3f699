//! Figures, short enough for a column.

use indicatif::HumanCount;

/// A number: whole from 10 on, with a digit behind the point below.
pub(super) fn count(number: f64) -> String {
    if number > 0.0 && number < 10.0 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    // Not negative, and far below 2^53.
    HumanCount(number.round() as u64).to_string()
}

pub(super) fn count_or_none(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), count)
}

/// A share as percent; nothing where it is not known.
pub(super) fn share(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0))
}

/// A time of so many microseconds.
pub(super) fn us(us: f64) -> String {
    match us {
        _ if us >= 1e6 => format!("{:.2} s", us / 1e6),
        _ if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        _ => format!("{us:.1} µs"),
    }
}

/// So many seconds, in the two largest units.
pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        86_400.. => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
        3_600.. => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        60.. => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!((count(0.0), count(0.25), count(1_234.6)), ("0".to_owned(), "0.2".to_owned(), "1,235".to_owned()));
        assert_eq!((share(Some(0.995)), share(None)), ("100 %".to_owned(), String::new()));
        assert_eq!((us(0.5), us(1_500.0), us(2e6)), ("0.5 µs".to_owned(), "1.5 ms".to_owned(), "2.00 s".to_owned()));
        assert_eq!(
            (duration(59), duration(3_700), duration(90_000)),
            ("59s".to_owned(), "1h 1m".to_owned(), "1d 1h".to_owned())
        );
    }
}
