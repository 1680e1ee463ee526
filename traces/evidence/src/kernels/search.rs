//! A minimum by pattern search: it needs no derivatives, and no random numbers.

/// The first step, in logarithms.
const FIRST_STEP: f64 = 0.5;

/// The search ends below this step.
const LAST_STEP: f64 = 0.01;

/// The point of the box with the least loss that Hooke's and Jeeves's pattern search finds from `start`.
///
/// Coordinates are logarithms; `bounds` are the least and largest of each.
/// Source: Hooke & Jeeves 1961, J. ACM 8(2), 212–229.
pub fn minimum(start: &[f64], bounds: &[(f64, f64)], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let inside = |point: Vec<f64>| -> Vec<f64> {
        point.iter().zip(bounds).map(|(value, (low, high))| value.clamp(*low, *high)).collect()
    };
    let explore = |from: &[f64], known: f64, step: f64| {
        let (mut point, mut least) = (from.to_vec(), known);
        for index in 0..point.len() {
            for signed in [step, -step] {
                let mut next = point.clone();
                next[index] += signed;
                let next = inside(next);
                let found = loss(&next);
                if found < least {
                    (point, least) = (next, found);
                    break;
                }
            }
        }
        (point, least)
    };
    let mut best = inside(start.to_vec());
    let mut least = loss(&best);
    let mut step = FIRST_STEP;
    while step > LAST_STEP {
        let (mut point, mut found) = explore(&best, least, step);
        if found >= least {
            step /= 2.0;
            continue;
        }
        // Further along the direction that helped, as long as it does.
        while found < least {
            let leap = inside(point.iter().zip(&best).map(|(new, old)| 2.0 * new - old).collect());
            (best, least) = (point, found);
            let at = loss(&leap);
            (point, found) = explore(&leap, at, step);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_bottom_of_a_bent_valley() {
        // Least at (1, 2), where both terms are 0.
        let loss = |point: &[f64]| (point[0] - 1.0).abs() + (point[1] - 2.0 * point[0] * point[0]).powi(2);
        let found = minimum(&[0.0, 0.0], &[(-5.0, 5.0), (-5.0, 5.0)], loss);
        assert!((found[0] - 1.0).abs() < 0.02 && (found[1] - 2.0).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn stays_in_the_box() {
        let found = minimum(&[0.0], &[(-1.0, 0.5)], |point| -point[0]);
        assert_eq!(found, [0.5]);
    }
}
