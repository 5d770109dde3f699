//! Rounds and what is said of them.

use serde::{Deserialize, Deserializer, Serialize};

/// JSON has no word for what is no number (nothing over nothing) and writes `null`.
fn or_none<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// The median of some rounds, and how far they lay apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    #[serde(deserialize_with = "or_none")]
    pub(crate) median: f64,
    /// The middle half of the rounds lies between these two.
    #[serde(deserialize_with = "or_none")]
    pub(crate) low: f64,
    #[serde(deserialize_with = "or_none")]
    pub(crate) high: f64,
    #[serde(deserialize_with = "or_none")]
    pub(crate) min: f64,
    #[serde(deserialize_with = "or_none")]
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one round; of none it is all zeros.
    pub(crate) fn of(rounds: &[f64]) -> Spread {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part| quantile(&sorted, part);
        Spread { median: at(0.5), low: at(0.25), high: at(0.75), min: at(0.0), max: at(1.0) }
    }

    /// Of the ratios round by round: both sides of a round ran within seconds of each other, so that what the machine did
    /// meanwhile cancels.
    pub(crate) fn of_ratios(over: &[f64], under: &[f64]) -> Spread {
        let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Spread::of(&ratios)
    }
}

/// Between the two nearest, in proportion (R's type 7).
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (sorted.get(place.floor() as usize), sorted.get(place.ceil() as usize));
    match (below, above) {
        (Some(below), Some(above)) => below + (above - below) * place.fract(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_and_even_counts() {
        let spread = Spread { median: 3.0, low: 2.0, high: 4.0, min: 1.0, max: 5.0 };
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0, 5.0, 4.0]), spread);
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(&[]).median, 0.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine slowed down threefold in the second round, for both.
        let spread = Spread::of_ratios(&[30.0, 10.0], &[15.0, 5.0]);
        assert_eq!((spread.min, spread.median, spread.max), (2.0, 2.0, 2.0));
    }
}
