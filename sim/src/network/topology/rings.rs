//! Rings through a group of GPUs that share no link: edge-disjoint directed Hamiltonian cycles.

use super::graph::{LinkKind, Rings};
use trainwright_spec::units::BytesPerSecond;

/// Steps of the search for one number of rings; the groups of 2 to 8 GPUs of every known node need far fewer.
const PATIENCE: usize = 2_000_000;

/// The most rings through `group` that share no direct link, where `links` gives how many lead from one GPU
/// to another and the bandwidth of each; `None` if there is no ring.
pub(super) fn between(
    group: &[usize],
    links: impl Fn(usize, usize) -> (usize, BytesPerSecond),
) -> Option<Rings> {
    let mut free = vec![vec![0; group.len()]; group.len()];
    let mut bandwidth = BytesPerSecond::new(f64::INFINITY);
    for (a, from) in group.iter().enumerate() {
        for (b, to) in group.iter().enumerate().filter(|(b, _)| *b != a) {
            let (count, each) = links(*from, *to);
            free[a][b] = count;
            if count > 0 {
                bandwidth = bandwidth.min(each);
            }
        }
    }
    let cycles = disjoint_cycles(&free);
    if cycles.is_empty() {
        return None;
    }
    let named = |cycle: Vec<usize>| cycle.into_iter().map(|index| group[index]).collect();
    let cycles = cycles.into_iter().map(named).collect();
    Some(Rings { cycles, bandwidth, kind: LinkKind::Interconnect })
}

/// The most cycles through all vertices that use no arc more often than `free` has it.
///
/// No GPU can be on more rings than it has links out or in, which gives the first number to try; each smaller number
/// follows until one is found. The search gives up a number after a fixed count of steps.
fn disjoint_cycles(free: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let vertices = 0..free.len();
    let most = vertices.map(|v| outgoing(free, v).min(incoming(free, v))).min().unwrap_or(0);
    (1..=most)
        .rev()
        .find_map(|wanted| {
            let mut search = Search { free: free.to_vec(), found: Vec::new(), wanted, steps: 0 };
            search.next_cycle(1).then_some(search.found)
        })
        .unwrap_or_default()
}

fn outgoing(free: &[Vec<usize>], vertex: usize) -> usize {
    free[vertex].iter().sum()
}

fn incoming(free: &[Vec<usize>], vertex: usize) -> usize {
    free.iter().map(|row| row[vertex]).sum()
}

struct Search {
    /// Arcs that no cycle found so far uses.
    free: Vec<Vec<usize>>,
    found: Vec<Vec<usize>>,
    wanted: usize,
    steps: usize,
}

impl Search {
    /// Finds the cycles still wanted. All start at vertex 0, and the order of cycles does not matter: each goes to a
    /// second vertex no lower than `second`, that of the one before.
    fn next_cycle(&mut self, second: usize) -> bool {
        let left = self.wanted - self.found.len();
        if left == 0 {
            return true;
        }
        let enough = |v: usize| outgoing(&self.free, v) >= left && incoming(&self.free, v) >= left;
        if !(0..self.free.len()).all(enough) {
            return false;
        }
        (second..self.free.len()).any(|vertex| self.extend(&mut vec![0], vertex))
    }

    /// Goes on from the last vertex of a path to `vertex`, and from there to the cycle's end and all cycles after it.
    fn extend(&mut self, path: &mut Vec<usize>, vertex: usize) -> bool {
        let last = path[path.len() - 1];
        self.steps += 1;
        if self.free[last][vertex] == 0 || self.steps > PATIENCE {
            return false;
        }
        self.free[last][vertex] -= 1;
        path.push(vertex);
        let done = if path.len() == self.free.len() {
            self.close(path)
        } else {
            let next: Vec<usize> = (1..self.free.len()).filter(|vertex| !path.contains(vertex)).collect();
            next.into_iter().any(|vertex| self.extend(path, vertex))
        };
        path.pop();
        self.free[last][vertex] += 1;
        done
    }

    fn close(&mut self, path: &[usize]) -> bool {
        let last = path[path.len() - 1];
        if self.free[last][0] == 0 {
            return false;
        }
        self.free[last][0] -= 1;
        self.found.push(path.to_vec());
        let done = self.next_cycle(path[1]);
        if !done {
            self.found.pop();
        }
        self.free[last][0] += 1;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mesh of `vertices` with `links` between any two.
    fn mesh(vertices: usize, links: usize) -> Vec<Vec<usize>> {
        (0..vertices).map(|a| (0..vertices).map(|b| if a == b { 0 } else { links }).collect()).collect()
    }

    #[test]
    fn an_even_mesh_splits_into_rings() {
        // A complete digraph of n vertices splits into n - 1 Hamiltonian cycles but for n = 4 and 6 (Tillson 1980);
        // with two arcs each way these two do as well.
        for (vertices, links, rings) in [
            (2, 3, 3),
            (3, 1, 2),
            (4, 1, 2),
            (4, 2, 6),
            (4, 6, 18),
            (5, 1, 4),
            (6, 2, 10),
            (8, 1, 7),
            (8, 2, 14),
        ] {
            let cycles = disjoint_cycles(&mesh(vertices, links));
            assert_eq!(cycles.len(), rings, "{vertices} GPUs with {links} links between any two");
        }
    }

    #[test]
    fn a_path_has_no_ring() {
        let mut line = mesh(3, 1);
        (line[0][2], line[2][0]) = (0, 0);
        assert!(disjoint_cycles(&line).is_empty());
    }
}
