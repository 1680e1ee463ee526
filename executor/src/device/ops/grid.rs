//! What norms of rows need of a device where each rank of a group has some columns. What ranks sum are two numbers of each
//! row, side by side.

use super::super::{NormGradient, Slice, SliceMut};
use trainwright_kernels::norm::Norm;

/// A device that computes parts of norms. `norm.width` is that of the part. Of whole rows `left` has the means, then the
/// inverses of the deviations.
pub(crate) trait GridOps {
    /// Σ x and Σ x² of each row's part.
    fn row_sums(&self, norm: &Norm, x: Slice) -> Vec<f32>;

    /// Rows less their means, over their deviations, with gain and bias.
    fn scale_rows(&self, norm: &Norm, x: Slice, left: Slice, vectors: [Option<Slice>; 2], out: SliceMut);

    /// Σ g and Σ g x̂ of each row's part, g the output's gradient times the gain and x̂ what `scale_rows` makes without one.
    fn gradient_sums(&self, norm: &Norm, gradient: NormGradient) -> Vec<f32>;

    /// Adds the gradient of the input: (g − [Σ g / h] − x̂ Σ g x̂ / h) / deviation, with the sums over the h columns of whole
    /// rows, the bracket only where the norm is centred.
    fn scale_gradient(
        &self,
        norm: &Norm,
        gradient: NormGradient,
        row_sums: (&[f32], usize),
        to_input: SliceMut,
    );

    /// Adds the gradients of gain and bias.
    fn part_vectors(&self, norm: &Norm, gradient: NormGradient, vectors: [Option<SliceMut>; 2]);
}
