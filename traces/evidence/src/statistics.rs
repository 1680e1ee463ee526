//! Statistics of errors.

pub use trainwright_spec::statistics::{mean, median, quantile};

/// Kendall's τ-b between two orders; `None` if all values of one are equal.
///
/// τ = (C − D) / √((n − t) (n − u)): of n pairs C have the same order and D opposite orders; t are tied in one, u in the other.
/// Source: Kendall 1945, Biometrika 33(3), 239–251.
pub fn kendall(values: &[(f64, f64)]) -> Option<f64> {
    let (mut agree, mut first_tied, mut second_tied, mut pairs) = (0i64, 0i64, 0i64, 0i64);
    for (index, one) in values.iter().enumerate() {
        for other in &values[..index] {
            pairs += 1;
            let orders = [one.0.total_cmp(&other.0), one.1.total_cmp(&other.1)].map(|order| order as i64);
            agree += orders[0] * orders[1];
            first_tied += i64::from(orders[0] == 0);
            second_tied += i64::from(orders[1] == 0);
        }
    }
    let scale = (((pairs - first_tied) * (pairs - second_tied)) as f64).sqrt();
    (scale > 0.0).then(|| agree as f64 / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_agree_disagree_or_tie() {
        assert_eq!(kendall(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]), Some(1.0));
        assert_eq!(kendall(&[(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)]), Some(-1.0));
        // Of three pairs two agree, one does not.
        assert_eq!(kendall(&[(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]), Some(1.0 / 3.0));
        // Two pairs agree, one is tied in the second: 2 / √(3 · 2).
        assert_eq!(kendall(&[(1.0, 10.0), (2.0, 10.0), (3.0, 20.0)]), Some(2.0 / 6f64.sqrt()));
        assert_eq!(kendall(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
