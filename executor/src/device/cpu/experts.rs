//! Choices of experts, and rows on their way, on slices. A rank may have no row at all.

use super::super::{ExpertOps, ExpertProducts, NOWHERE, Slice, SliceMut, Visits};
use super::Cpu;
use trainwright_kernels::elementwise;

impl ExpertOps for Cpu {
    fn choose(&self, scores: Slice, count: usize, per_token: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut gates) = (Vec::new(), Vec::new());
        let mut order: Vec<usize> = Vec::new();
        for row in scores.host().chunks_exact(count) {
            order.clear();
            order.extend(0..row.len());
            // Stable: of equal scores the first one's expert comes first.
            order.sort_by(|one, other| row[*other].total_cmp(&row[*one]));
            let chosen = &order[..per_token];
            let exponentials = chosen.iter().map(|expert| (row[*expert] - row[chosen[0]]).exp());
            let sum: f32 = exponentials.clone().sum();
            experts.extend(chosen.iter().map(|expert| *expert as u32));
            gates.extend(exponentials.map(|e| e / sum));
        }
        (experts, gates)
    }

    fn gather_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        if visits.choices.is_empty() {
            return;
        }
        let (x, out) = (x.host(), out.host());
        let width = x.len() / visits.rows;
        for (choice, out) in visits.choices.iter().zip(out.chunks_exact_mut(width)) {
            let choice = *choice as usize;
            out.copy_from_slice(&x[choice / visits.slots * width..][..width]);
            if let Some(weights) = weights {
                out.iter_mut().for_each(|x| *x *= weights[choice]);
            }
        }
    }

    fn combine_rows(&self, x: Slice, visits: &Visits, weights: Option<&[f32]>, out: SliceMut) {
        let (x, out) = (x.host(), out.host());
        let width = out.len() / visits.rows.max(1);
        out.fill(0.0);
        for (choice, place) in visits.places.iter().enumerate().filter(|(_, place)| **place != NOWHERE) {
            let row = &mut out[choice / visits.slots * width..][..width];
            let made = &x[*place as usize * width..][..width];
            match weights {
                Some(weights) => {
                    row.iter_mut().zip(made).for_each(|(sum, made)| *sum += weights[choice] * made)
                }
                None => elementwise::add(row, made),
            }
        }
    }

    fn multiply_experts(&self, out: SliceMut, products: ExpertProducts) {
        products.one_by_one(self, out);
    }

    fn products_with_places(&self, rows: Slice, at_places: Slice, visits: &Visits) -> Vec<f32> {
        let (rows, made) = (rows.host(), at_places.host());
        let width = rows.len() / visits.rows.max(1);
        let product = |(choice, place): (usize, &u32)| {
            if *place == NOWHERE {
                return 0.0;
            }
            let row = &rows[choice / visits.slots * width..][..width];
            row.iter().zip(&made[*place as usize * width..][..width]).map(|(row, made)| row * made).sum()
        };
        visits.places.iter().enumerate().map(product).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_kernels::Threads;

    #[test]
    fn a_rank_may_have_no_row() {
        let (cpu, none) = (Cpu { threads: Threads::ONE }, Visits::new(0, &[]));
        cpu.gather_rows(Slice::Host(&[]), &none, None, SliceMut::Host(&mut []));
        cpu.combine_rows(Slice::Host(&[]), &none, None, SliceMut::Host(&mut []));
        assert!(cpu.products_with_places(Slice::Host(&[]), Slice::Host(&[]), &none).is_empty());
        // Rows that nobody visits are zeros.
        let (unvisited, mut out) = (Visits::new(2, &[]), [5.0; 4]);
        cpu.combine_rows(Slice::Host(&[]), &unvisited, None, SliceMut::Host(&mut out));
        assert_eq!(out, [0.0; 4]);
        assert_eq!(cpu.products_with_places(Slice::Host(&[1.0; 4]), Slice::Host(&[]), &unvisited), [0.0; 2]);
    }
}
