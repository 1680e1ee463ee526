//! Random numbers with a seed, and derivatives by differences.

/// Numbers between −1 and 1 (a linear congruential generator: Knuth's MMIX).
pub fn random(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(88_172_645_463_325_252);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count + 8).map(|_| next()).skip(8).collect()
}

/// The numbers in f32.
pub fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

/// Σ xᵢ yᵢ: the loss whose gradient by x is y.
pub fn weighted(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// `gradient` is that of `loss` at `x`: (f(x + h) − f(x − h)) / 2h is it up to h² f‴/6, with h = 10⁻⁵ some 10⁻¹⁰ beside
/// the rounding of 10⁻¹⁶ / h.
pub fn check_gradient(name: &str, x: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(x.len(), gradient.len(), "{name}");
    let h = 1e-5;
    let mut moved = x.to_vec();
    for index in 0..x.len() {
        moved[index] = x[index] + h;
        let above = loss(&moved);
        moved[index] = x[index] - h;
        let below = loss(&moved);
        moved[index] = x[index];
        let difference = (above - below) / (2.0 * h);
        let error = (difference - gradient[index]).abs();
        assert!(error < 1e-7 * (1.0 + difference.abs()), "{name}[{index}]: {difference} {}", gradient[index]);
    }
}

/// f32 gives what f64 gives, up to `tolerance` of the largest number.
pub fn check_near(name: &str, narrow: &[f32], wide: &[f64], tolerance: f64) {
    assert_eq!(narrow.len(), wide.len(), "{name}");
    let largest = wide.iter().fold(1e-3f64, |largest, x| largest.max(x.abs()));
    for (index, (narrow, wide)) in narrow.iter().zip(wide).enumerate() {
        let error = (f64::from(*narrow) - wide).abs();
        assert!(error <= tolerance * largest, "{name}[{index}]: {narrow} {wide}");
    }
}
