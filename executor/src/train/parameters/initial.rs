//! How parameters begin. A number is a function of the seed, its parameter and its place in it, so that threads make parts of a
//! parameter side by side, and ranks the parts that they hold.

use super::Layer;
use super::Parameter;
use crate::random::Stream;
use trainwright_kernels::Threads;

/// How a parameter begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Start {
    Ones,
    Zeros,
    /// From a normal distribution of that deviation.
    Normal(f64),
}

impl Parameter {
    /// Writes the initial values into a layer's buffer, which is zeros where they go. They are the same bits on any number of
    /// threads.
    pub fn initialise(&self, layer: Layer, seed: u64, weights: &mut [f32], threads: Threads) {
        if self.start == Start::Zeros {
            return;
        }
        let number = match self.home(layer) {
            Layer::Embedding => 0,
            Layer::Block(index) => index as u64 + 2,
            Layer::Head => 1,
        };
        let stream = Stream::new(seed, 64 * number + self.name.number());
        let [rows, columns] = self.full_shape;
        let width = self.columns.len();
        threads.rows(&mut weights[self.range()], width, |first, part| {
            let rows_here = self.rows_from(first).zip(part.chunks_exact_mut(width));
            for (row, numbers) in rows_here.filter(|(row, _)| *row < rows) {
                let place = row * columns + self.columns.start;
                match self.start {
                    Start::Zeros => {}
                    Start::Ones => numbers.fill(1.0),
                    Start::Normal(deviation) => (place as u64..).zip(numbers).for_each(|(place, number)| {
                        *number = (deviation * stream.normal(place)) as f32;
                    }),
                }
            }
        });
    }

    /// The rows held, from that many behind the first one on.
    fn rows_from(&self, first: usize) -> impl Iterator<Item = usize> {
        let mut before = first;
        self.rows.iter().flat_map(move |rows| {
            let skipped = before.min(rows.len());
            before -= skipped;
            rows.start + skipped..rows.end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ParameterName, Sharing};
    use super::*;

    /// Two runs of rows of some columns behind a gap; the last rows of the second one are not there.
    fn parameter(start: Start) -> Parameter {
        let rows = vec![3..10, 40..53];
        Parameter {
            name: ParameterName::Qkv,
            full_shape: [50, 31],
            offset: 5,
            length: 20 * 7,
            rows,
            columns: 11..18,
            shards: 1,
            alignment: 1,
            place: 0,
            sharing: Sharing::Dense,
            start,
            replicated: false,
            copied: false,
        }
    }

    #[test]
    fn threads_make_what_one_number_after_the_other_would_be() {
        for start in [Start::Ones, Start::Zeros, Start::Normal(0.02)] {
            let parameter = parameter(start);
            // Block 4, and queries with keys and values.
            let stream = Stream::new(9, 64 * 6 + 2);
            let mut expected = vec![0.0; 160];
            for (row, at) in
                [3, 4, 5, 6, 7, 8, 9, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49].into_iter().zip(0..)
            {
                for column in 0..7 {
                    expected[5 + 7 * at + column] = match start {
                        Start::Ones => 1.0,
                        Start::Zeros => 0.0,
                        Start::Normal(deviation) => {
                            (deviation * stream.normal((31 * row + 11 + column) as u64)) as f32
                        }
                    };
                }
            }
            for threads in [1, 2, 3, 5, 20, 64] {
                let mut made = vec![0.0; 160];
                parameter.initialise(Layer::Block(4), 9, &mut made, Threads::new(threads));
                assert_eq!(made, expected, "{start:?} by {threads} threads");
            }
        }
    }
}
