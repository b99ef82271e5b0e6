//! The little arithmetic that the figures need.

use std::fmt;

/// The median of some ratios, and the half of them that lies around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Half of the rounds were below, half above.
    pub median: f64,
    /// A quarter of the rounds was below this.
    pub low: f64,
    /// A quarter of the rounds was above this.
    pub high: f64,
}

impl Ratio {
    /// Of one ratio a round.
    pub fn of(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        Ratio {
            median: percentile(&rounds, 50.0),
            low: percentile(&rounds, 25.0),
            high: percentile(&rounds, 75.0),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}× ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// The value below which so many percent of a sorted slice lie; NaN for an empty one.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * percent / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Jain's fairness index: 1 when all got the same, 1/n when one got everything.
///
/// R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination (1984).
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_for_equals_and_least_for_a_monopoly() {
        assert!((jain(&[7, 7, 7, 7]) - 1.0).abs() < 1e-12);
        assert!((jain(&[28, 0, 0, 0]) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn a_ratio_is_told_by_its_middle() {
        let ratio = Ratio::of(vec![100.0, 2.0, 1.0, 3.0, 0.1]);
        assert_eq!(ratio, Ratio { median: 2.0, low: 1.0, high: 3.0 });
        assert!(percentile(&[], 50.0).is_nan());
    }
}
