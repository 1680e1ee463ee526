//! Parts of norms on slices.

use super::super::{GridOps, NormGradient, Slice, SliceMut};
use super::Cpu;
use trainwright_kernels::elementwise;
use trainwright_kernels::norm::Norm;

/// (x − mean) / deviation.
fn normalised(norm: &Norm, x: &[f32], left: &[f32]) -> Vec<f32> {
    let (means, scales) = left.split_at(left.len() / 2);
    let mut out = x.to_vec();
    for ((row, mean), scale) in out.chunks_exact_mut(norm.width).zip(means).zip(scales) {
        row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    }
    out
}

/// The output's gradient times the gain, and x̂.
fn scaled_and_normalised(norm: &Norm, gradient: NormGradient) -> [Vec<f32>; 2] {
    let mut scaled = gradient.gradient.host().to_vec();
    if let Some(gain) = gradient.gain {
        for row in scaled.chunks_exact_mut(norm.width) {
            row.iter_mut().zip(gain.host()).for_each(|(g, gain)| *g *= gain);
        }
    }
    [scaled, normalised(norm, gradient.x.host(), gradient.left.host())]
}

impl GridOps for Cpu {
    fn row_sums(&self, norm: &Norm, x: Slice) -> Vec<f32> {
        let rows = x.host().chunks_exact(norm.width);
        rows.flat_map(|row| [row.iter().sum(), row.iter().map(|x| x * x).sum::<f32>()]).collect()
    }

    fn scale_rows(&self, norm: &Norm, x: Slice, left: Slice, vectors: [Option<Slice>; 2], out: SliceMut) {
        let [gain, bias] = vectors.map(|vector| vector.map(Slice::host));
        let out = out.host();
        out.copy_from_slice(&normalised(norm, x.host(), left.host()));
        for row in out.chunks_exact_mut(norm.width) {
            if let Some(gain) = gain {
                row.iter_mut().zip(gain).for_each(|(x, gain)| *x *= gain);
            }
            if let Some(bias) = bias {
                elementwise::add(row, bias);
            }
        }
    }

    fn gradient_sums(&self, norm: &Norm, gradient: NormGradient) -> Vec<f32> {
        let [scaled, hat] = scaled_and_normalised(norm, gradient);
        let pairs = scaled.chunks_exact(norm.width).zip(hat.chunks_exact(norm.width));
        pairs.flat_map(|(g, x)| [g.iter().sum(), g.iter().zip(x).map(|(g, x)| g * x).sum::<f32>()]).collect()
    }

    fn scale_gradient(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        row_sums: (&[f32], usize),
        to_input: SliceMut,
    ) {
        let (sums, columns) = (row_sums.0, row_sums.1 as f32);
        let scales = &gradient.left.host()[sums.len() / 2..];
        let [mut made, hat] = scaled_and_normalised(norm, gradient);
        let per_token = sums.chunks_exact(2).zip(scales);
        let rows = made.chunks_exact_mut(norm.width).zip(hat.chunks_exact(norm.width));
        for ((row, x), (sums, scale)) in rows.zip(per_token) {
            let mean = if norm.centred { sums[0] / columns } else { 0.0 };
            row.iter_mut().zip(x).for_each(|(g, x)| *g = (*g - mean - x * sums[1] / columns) * scale);
        }
        elementwise::add(to_input.host(), &made);
    }

    fn part_vectors(&self, norm: &Norm, gradient: NormGradient, [gain, bias]: [Option<SliceMut>; 2]) {
        let rows = gradient.gradient.host();
        if let Some(gain) = gain {
            let gain = gain.host();
            let hat = normalised(norm, gradient.x.host(), gradient.left.host());
            for (g, x) in rows.chunks_exact(norm.width).zip(hat.chunks_exact(norm.width)) {
                gain.iter_mut().zip(g.iter().zip(x)).for_each(|(gain, (g, x))| *gain += g * x);
            }
        }
        if let Some(bias) = bias {
            elementwise::bias_gradient(rows, bias.host());
        }
    }
}
