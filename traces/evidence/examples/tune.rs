use rayon::prelude::*;
use trainwright_evidence::serving::*;
use trainwright_spec::sourced::Sourced;
// usage: tune key=value ... -- files ; prints medians by engine
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (sets, files): (Vec<_>, Vec<_>) = args.iter().partition(|a| a.contains('='));
    for path in files {
        let table = ServingTable::read(std::fs::File::open(path).unwrap()).unwrap();
        let rows = table.len();
        let out: Vec<_> = (0..rows).into_par_iter().filter_map(|row| {
            let q = table.text(row, "quality");
            if !"AB".contains(q) { return None; }
            let mut case = table.case(row).ok()?;
            let e = &mut case.plan.engine;
            for set in &sets {
                let (k, v) = set.split_once('=').unwrap();
                let (name, k) = k.split_once('.').unwrap_or(("", k));
                if !name.is_empty() && name != e.name { continue; }
                let v: f64 = v.parse().unwrap();
                let s = |x: f64| Sourced { value: trainwright_spec::units::Seconds::new(x * 1e-6), source: String::new(), uncalibrated: None };
                match k {
                    "step" => e.host.step = s(v), "seq" => e.host.sequence = s(v), "req" => e.host.request = s(v), "launch" => e.host.launch = s(v),
                    "lat" => e.small_kernels.latency = s(v), "passes" => e.small_kernels.passes.value = v, "count" => e.small_kernels.count.value = v as usize,
                    "tokens" => e.batching.max_tokens.value = v as usize,
                    _ => panic!("{k}"),
                }
            }
            let f = forecast(&case).ok()?;
            let m = |c: &str| table.text(row, c).parse::<f64>().ok().filter(|x| *x > 0.0);
            let l = |p: f64, c: &str| m(c).map(|x| (p / x).ln());
            Some((e_name(&case), [l(f.ttft.get() * 1e3, "ttft_ms"), l(f.tpot.get() * 1e3, "tpot_ms"), l(f.latency.get() * 1e3, "e2e_latency_ms"), l(f.output_rate, "throughput_output_tokens_per_s"), l(f.total_rate, "throughput_total_tokens_per_s")]))
        }).collect();
        let mut names: Vec<String> = out.iter().map(|o| o.0.clone()).collect(); names.sort(); names.dedup();
        for n in names {
            print!("{:45} {n:22}", path.rsplit('/').next().unwrap());
            for (i, c) in ["ttft", "tpot", "e2e", "out", "total"].iter().enumerate() {
                let mut v: Vec<f64> = out.iter().filter(|o| o.0 == n).filter_map(|o| o.1[i]).collect();
                if v.is_empty() { continue; }
                v.sort_by(f64::total_cmp); let b = v[v.len() / 2].exp() - 1.0;
                let mut a: Vec<f64> = v.iter().map(|x| x.abs()).collect(); a.sort_by(f64::total_cmp);
                print!("  {c} n={} |{:.1}| {:+.0}", v.len(), 100.0 * (a[a.len() / 2].exp() - 1.0), 100.0 * b);
            }
            println!();
        }
    }
}
fn e_name(case: &ServingCase) -> String { case.plan.engine.name.clone() }
