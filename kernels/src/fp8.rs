//! The formats of fp8, and tensors rounded to them as kernels/cuda/fp8.cu does it.
//!
//! Source: Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv 2209.05433.

/// A format of fp8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 bits of exponent and 3 of mantissa, up to 448: weights and activations.
    E4m3,
    /// 5 and 2, up to 57,344: gradients.
    E5m2,
}

/// Lower bound of the largest absolute value that a scale is computed from: factors of smaller ones overflow f32.
const LEAST_LARGEST: f32 = 1e-30;

impl Fp8 {
    /// Both formats.
    pub const ALL: [Fp8; 2] = [Fp8::E4m3, Fp8::E5m2];

    /// Its name in names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Fp8::E4m3 => "e4m3",
            Fp8::E5m2 => "e5m2",
        }
    }

    /// The largest finite value.
    pub fn largest(self) -> f32 {
        match self {
            Fp8::E4m3 => 448.0,
            Fp8::E5m2 => 57_344.0,
        }
    }

    /// Bits of the mantissa, and the exponent's bias.
    fn layout(self) -> (u32, u32) {
        match self {
            Fp8::E4m3 => (3, 7),
            Fp8::E5m2 => (2, 15),
        }
    }

    /// The value of a code.
    pub fn decode(self, code: u8) -> f32 {
        let (mantissa_bits, bias) = self.layout();
        let (exponent, bias) = (i32::from(code & 0x7f) >> mantissa_bits, bias as i32);
        let mantissa = f32::from(code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
        let size = match exponent {
            0 => mantissa * 2f32.powi(1 - bias),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - bias),
        };
        let size = match (self, code & 0x7f) {
            (Fp8::E4m3, 0x7f) | (Fp8::E5m2, 0x7d..) => f32::NAN,
            (Fp8::E5m2, 0x7c) => f32::INFINITY,
            _ => size,
        };
        if code & 0x80 == 0 { size } else { -size }
    }

    /// The code of the nearest value, ties to even; values beyond the largest one saturate.
    pub fn encode(self, x: f32) -> u8 {
        let (mantissa_bits, bias) = self.layout();
        let (sign, size) = ((x.to_bits() >> 24) as u8 & 0x80, x.to_bits() & 0x7fff_ffff);
        let last = match self {
            Fp8::E4m3 => 0x7e,
            Fp8::E5m2 => 0x7b,
        };
        if x.is_nan() {
            return sign | 0x7f;
        }
        let dropped = 23 - mantissa_bits;
        let code = match size < (128 - bias) << 23 {
            // Subnormal values are multiples of the least one, and so are the last places of this sum.
            true => {
                let large = f32::from_bits((128 - bias + dropped) << 23);
                (f32::from_bits(size) + large).to_bits() - large.to_bits()
            }
            false => {
                let rounded = size + (1 << (dropped - 1)) - 1 + ((size >> dropped) & 1);
                (rounded >> dropped) - ((127 - bias) << mantissa_bits)
            }
        };
        sign | code.min(last) as u8
    }

    /// A tensor rounded to fp8 with one scale s, which maps its largest absolute value a to the format's largest value m:
    ///
    /// x̂ = s · round(x / s), s = a / m.
    ///
    /// Source: Transformer Engine's recipe Float8CurrentScaling.
    pub fn rounded(self, x: &[f32]) -> Vec<f32> {
        let largest = x.iter().fold(LEAST_LARGEST, |largest, x| largest.max(x.abs()));
        let (factor, scale) = (self.largest() / largest, largest / self.largest());
        let numbers: [f32; 256] = std::array::from_fn(|code| self.decode(code as u8) * scale);
        x.iter().map(|x| numbers[usize::from(self.encode(x * factor))]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_values_of_the_formats() {
        // Table 1 of the source: largest, least normal and least number of each.
        let e4m3 = [0x7e, 0x08, 0x01, 0xb8].map(|code| Fp8::E4m3.decode(code));
        assert_eq!(e4m3, [448.0, 2f32.powi(-6), 2f32.powi(-9), -1.0]);
        let e5m2 = [0x7b, 0x04, 0x01, 0x3e].map(|code| Fp8::E5m2.decode(code));
        assert_eq!(e5m2, [57_344.0, 2f32.powi(-14), 2f32.powi(-16), 1.5]);
        assert!(Fp8::E4m3.decode(0xff).is_nan() && Fp8::E5m2.decode(0x7d).is_nan());
        assert_eq!(Fp8::E5m2.decode(0xfc), f32::NEG_INFINITY);
    }

    /// Each value is nearest to itself; the midpoint of two rounds to the even code; beside the midpoint the closer one wins.
    #[test]
    fn the_nearest_code_is_found() {
        for format in Fp8::ALL {
            let last = format.encode(f32::INFINITY);
            assert_eq!(format.decode(last), format.largest());
            for code in 0..last {
                let [low, high] = [code, code + 1].map(|code| format.decode(code));
                let half = 0.5 * (low + high);
                let even = code + code % 2;
                let [below, above] = [half.next_down(), half.next_up()];
                let found = [low, below, half, above, high].map(|x| format.encode(x));
                assert_eq!(found, [code, code, even, code + 1, code + 1], "{format:?} {code:#x}");
                assert_eq!(format.encode(-high), (code + 1) | 0x80);
            }
            assert!(format.decode(format.encode(f32::NAN)).is_nan());
        }
    }

    #[test]
    fn the_largest_number_of_a_tensor_is_the_formats() {
        // The scale is 1/64 for e4m3: 7 is 448 of them; 0.11 is 7.04, of which 7 are kept in steps of 0.5.
        let rounded = Fp8::E4m3.rounded(&[7.0, -0.11, 0.0]);
        assert_eq!(rounded, [7.0, -7.0 / 64.0, 0.0]);
        // Zeros stay zeros, and tiny values do not become NaN.
        assert_eq!(Fp8::E5m2.rounded(&[0.0, -0.0]), [0.0, 0.0]);
        assert!(Fp8::ALL.iter().all(|format| format.rounded(&[1e-40, 0.0]).iter().all(|x| x.is_finite())));
        assert!(Fp8::E5m2.rounded(&[f32::NAN, 1.0])[0].is_nan());
    }
}
