//! Routing, sorting and moving rows.

use crate::bench::Bench;
use trainwright_kernels::cuda::experts::{Invert, Permutation, Routing, Sort};
use trainwright_kernels::cuda::{Address, DeviceError, Number};

pub(crate) fn routing(bench: &mut Bench) -> Result<(), DeviceError> {
    // Fewer experts than lanes; several a lane.
    for (tokens, count, chosen, among_chosen) in [(13usize, 8usize, 2usize, false), (9, 200, 6, true)] {
        let logits: Vec<f64> = (0..tokens * count).map(|_| 4.0 * bench.next()).collect();
        let logits = bench.array(Number::F32, &logits)?;
        let (mut experts, mut weights, mut probabilities) = (Vec::new(), Vec::new(), Vec::new());
        for z in logits.values.chunks(count) {
            let sum: f64 = z.iter().map(|z| z.exp()).sum();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| z[*b].total_cmp(&z[*a]));
            let kept: f64 = order[..chosen].iter().map(|expert| z[*expert].exp()).sum();
            experts.extend(order[..chosen].iter().map(|expert| *expert as u32));
            let of = if among_chosen { kept } else { sum };
            weights.extend(order[..chosen].iter().map(|expert| z[*expert].exp() / of));
            probabilities.extend(z.iter().map(|z| z.exp() / sum));
        }
        let made_weights = bench.blank(Number::F32, tokens * chosen)?;
        let made_probabilities = bench.blank(Number::F32, tokens * count)?;
        let routing = Routing {
            logits: logits.at,
            experts: bench.words(&vec![9999; tokens * chosen])?,
            weights: made_weights.at,
            probabilities: made_probabilities.at,
            tokens: tokens as i32,
            count: count as i32,
            chosen: chosen as i32,
            among_chosen: i32::from(among_chosen),
        };
        bench.run(&routing.launch())?;
        let case = format!("{chosen} of {count}");
        bench.compare_words("route", &format!("{case} experts"), routing.experts, &experts)?;
        bench.compare("route", &format!("{case} weights"), &made_weights, &weights)?;
        bench.compare("route", &format!("{case} probabilities"), &made_probabilities, &probabilities)?;
    }
    no_numbers(bench)
}

/// A token whose logits are all NaN has experts too, with NaN as weights.
fn no_numbers(bench: &mut Bench) -> Result<(), DeviceError> {
    let (count, chosen) = (8usize, 2usize);
    let logits = bench.array(Number::F32, &vec![f64::NAN; count])?;
    let weights = bench.blank(Number::F32, chosen)?;
    let routing = Routing {
        logits: logits.at,
        experts: bench.words(&vec![9999; chosen])?,
        weights: weights.at,
        probabilities: Address::NULL,
        tokens: 1,
        count: count as i32,
        chosen: chosen as i32,
        among_chosen: 0,
    };
    bench.run(&routing.launch())?;
    bench.compare_words("route", "no numbers: experts", routing.experts, &[0, 1])
}

/// A sort with `share` keys in each block, and the expected order.
fn sorted(
    bench: &mut Bench,
    keys: &[u32],
    [first, buckets]: [u32; 2],
    share: i32,
) -> Result<(Sort, Vec<u32>), DeviceError> {
    let key = |choice: &u32| keys[*choice as usize];
    let mut order: Vec<u32> =
        (0..keys.len() as u32).filter(|choice| key(choice).wrapping_sub(first) < buckets).collect();
    order.sort_by_key(key);
    let below = |bucket: u32| order.iter().filter(|choice| key(choice) < first + bucket).count() as u32;
    let starts: Vec<u32> = (0..=buckets).map(below).collect();
    let count = keys.len() as i32;
    let mut sort = Sort { count, buckets: buckets as i32, first: first as i32, share, ..Sort::default() };
    sort.keys = bench.words(keys)?;
    sort.counts = bench.words(&vec![9; sort.blocks() as usize * buckets as usize])?;
    sort.starts = bench.words(&vec![9; buckets as usize + 1])?;
    sort.order = bench.words(&vec![9; keys.len()])?;
    for launch in sort.launches() {
        bench.run(&launch)?;
    }
    let case = format!("{buckets} buckets");
    bench.compare_words("sort_scan", &format!("{case}: starts"), sort.starts, &starts)?;
    bench.compare_words("sort_place", &format!("{case}: order"), sort.order, &order)?;
    Ok((sort, order))
}

pub(crate) fn permutation(bench: &mut Bench) -> Result<(), DeviceError> {
    // More buckets than a block has threads.
    let keys = bench.indices(50, 2509);
    sorted(bench, &keys, [5, 2500], 16)?;
    // Experts 2 to 4 of 7 are here, so some choices are dropped. A row has more packs than a block has threads.
    let (tokens, chosen, width, buckets, first) = (70usize, 2usize, 2056usize, 3usize, 2u32);
    let choices = tokens * chosen;
    for number in Number::ALL {
        let keys = bench.indices(choices, 7);
        let (sort, order) = sorted(bench, &keys, [first, buckets as u32], 50)?;
        let mut places = vec![u32::MAX; choices];
        order.iter().enumerate().for_each(|(place, choice)| places[*choice as usize] = place as u32);
        let made_places = bench.words(&vec![u32::MAX; choices])?;
        let invert =
            Invert { order: sort.order, starts: sort.starts, places: made_places, buckets: buckets as i32 };
        bench.run(&invert.launch(choices as i32))?;
        bench.compare_words("invert_order", "places", made_places, &places)?;

        let x = bench.random(number, tokens * width)?;
        let weights = bench.random(Number::F32, choices)?;
        let made = bench.random(number, order.len() * width)?;
        let base = Permutation {
            order: sort.order,
            places: made_places,
            weights: weights.at,
            chosen: chosen as i32,
            width: width as i32,
            ..Permutation::default()
        };
        let there = bench.blank(number, order.len() * width)?;
        let gather = Permutation { x: x.at, out: there.at, rows: order.len() as i32, ..base }.gather(number);
        let row = |choice: u32| {
            let weight = weights.values[choice as usize];
            let from = choice as usize / chosen * width;
            x.values[from..from + width].iter().map(move |x| x * weight)
        };
        bench.run(&gather)?;
        let expected: Vec<f64> = order.iter().flat_map(|choice| row(*choice)).collect();
        bench.compare(&gather.kernel, "weighted", &there, &expected)?;

        for weighted in [true, false] {
            let mut expected = vec![0.0; tokens * width];
            for (place, choice) in order.iter().enumerate() {
                for column in 0..width {
                    let weight = if weighted { weights.values[*choice as usize] } else { 1.0 };
                    expected[*choice as usize / chosen * width + column] +=
                        weight * made.values[place * width + column];
                }
            }
            let back = bench.blank(number, tokens * width)?;
            let weights = if weighted { weights.at } else { Address::NULL };
            let combine = Permutation { x: made.at, out: back.at, rows: tokens as i32, weights, ..base };
            let combine = combine.combine(number);
            bench.run(&combine)?;
            bench.compare(&combine.kernel, &format!("weighted {weighted}"), &back, &expected)?;
        }

        let mut expected = vec![0.0; choices];
        for (place, choice) in order.iter().enumerate() {
            let token = *choice as usize / chosen;
            let products =
                (0..width).map(|at| x.values[token * width + at] * made.values[place * width + at]);
            expected[*choice as usize] = products.sum();
        }
        let gradients = bench.blank(Number::F32, choices)?;
        let permutation = Permutation {
            x: x.at,
            other: made.at,
            weight_gradients: gradients.at,
            rows: tokens as i32,
            ..base
        };
        let launch = permutation.weight_gradients(number);
        bench.run(&launch)?;
        bench.compare(&launch.kernel, "choices", &gradients, &expected)?;
    }
    Ok(())
}
