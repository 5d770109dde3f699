//! Sums that are made up from a sample, and by how much they may be off.

/// 95 of 100 means of samples are within so many of their standard errors.
const NORMAL_95: f64 = 1.96;

/// A sum over many keys, of which some were looked at.
///
/// ```
/// use larder_footprint::Estimate;
/// let sum = Estimate::of(&[10.0, 20.0, 30.0], 300);
/// assert_eq!((sum.value, sum.sampled, sum.of), (6_000.0, 3, 300));
/// assert!(sum.error > 0.0 && Estimate::exact(6_000.0, 300).error == 0.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The sum.
    pub value: f64,
    /// By how much it may be off: in 95 of 100 samples it is less, if the sample is not too small and the keys are not too different; 0 where all were looked at.
    /// Infinite where fewer than 2 of many were.
    pub error: f64,
    /// How many keys were looked at.
    pub sampled: u64,
    /// Of how many.
    pub of: u64,
}

impl Estimate {
    /// A sum over all of them.
    pub fn exact(value: f64, of: u64) -> Estimate {
        Estimate { value, error: 0.0, sampled: of, of }
    }

    /// The sum of `of` values, of which these were drawn at random, each once.
    ///
    /// The error is that of a mean with the correction for a finite population (Cochran, "Sampling Techniques", 1977, 2.7).
    pub fn of(drawn: &[f64], of: u64) -> Estimate {
        let n = drawn.len() as f64;
        let of = of.max(drawn.len() as u64);
        if drawn.is_empty() {
            let error = if of == 0 { 0.0 } else { f64::INFINITY };
            return Estimate { value: 0.0, error, sampled: 0, of };
        }
        let all = of as f64;
        let mean = drawn.iter().sum::<f64>() / n;
        let error = if drawn.len() as u64 == of {
            0.0
        } else if drawn.len() < 2 {
            f64::INFINITY
        } else {
            let variance = drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
            NORMAL_95 * all * (variance / n * (1.0 - n / all)).sqrt()
        };
        Estimate { value: mean * all, error, sampled: drawn.len() as u64, of }
    }

    /// The sum of two sums.
    #[must_use]
    pub fn plus(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value + other.value,
            error: self.error.hypot(other.error),
            sampled: self.sampled + other.sampled,
            of: self.of + other.of,
        }
    }

    /// The error as a share of the sum; `None` where it is not known.
    ///
    /// ```
    /// use larder_footprint::Estimate;
    /// assert_eq!(Estimate::exact(10.0, 1).share(), Some(0.0));
    /// assert_eq!(Estimate::of(&[10.0], 2).share(), None);
    /// ```
    pub fn share(&self) -> Option<f64> {
        let share = if self.error == 0.0 { 0.0 } else { self.error / self.value };
        share.is_finite().then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_covers_the_truth_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(7);
        let all: Vec<f64> = (0..2_000).map(|_| 50.0 + 50.0 * random.f64().powi(2)).collect();
        let truth: f64 = all.iter().sum();
        let mut covered = 0;
        for _ in 0..1_000 {
            let drawn: Vec<f64> = random.choose_multiple(all.iter().copied(), 100);
            let estimate = Estimate::of(&drawn, 2_000);
            covered += u32::from((estimate.value - truth).abs() <= estimate.error);
        }
        assert!((920..=980).contains(&covered), "{covered} of 1000");
    }

    #[test]
    fn what_was_looked_at_whole_has_no_error_and_what_was_not_at_all_an_infinite_one() {
        let whole = Estimate::of(&[1.0, 2.0], 2);
        assert_eq!((whole.value, whole.error), (3.0, 0.0));
        assert_eq!(Estimate::of(&[], 5).error, f64::INFINITY);
        assert_eq!(Estimate::of(&[], 0).share(), Some(0.0));
        assert_eq!(Estimate::of(&[4.0], 2).error, f64::INFINITY);
        let sum = whole.plus(Estimate::of(&[1.0, 3.0], 10));
        assert_eq!((sum.value, sum.sampled, sum.of), (23.0, 4, 12));
    }
}
