//! Kernel costs against measurements that others published: the error we have today, kept from growing.
//!
//! `docs/kernels.md` holds the table that this test prints, by GPU, kernel and source, and is the record of today's
//! errors: a line that gets worse or is missing fails, and so does one that got better without the page saying so.
//!
//! Products are those of 10 GFLOP and more; best shapes were picked by a search over thousands and lie above what other
//! shapes reach, hence a separate kernel. The PyTorch rows of memory-bound kernels have some 40 µs of launch in their
//! time.

mod attention;
mod layers;
mod memory;
mod ops;
mod products;
mod table;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use table::{Line, table};
use trainwright_sim::compute::kernel_time;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::program::Kernel;
use trainwright_spec::units::Seconds;

const PAGE: &str = include_str!("../../../docs/kernels.md");

/// A measured time and what it is forecast as.
pub struct Measured {
    /// The GPU's name in the catalog.
    pub gpu: String,
    /// The kind of kernel.
    pub kernel: String,
    /// Its source, as the data name it.
    pub source: String,
    /// As measured.
    pub time: Seconds,
    /// As forecast.
    pub forecast: Seconds,
}

impl Measured {
    /// Of kernels one after the other.
    pub fn of_kernels(
        gpu: String,
        kernel: String,
        source: String,
        time: Seconds,
        kernels: &[Kernel],
    ) -> Self {
        let forecast = kernels.iter().map(|kernel| kernel_time(kernel, &GPUS[gpu.as_str()])).sum();
        Measured { gpu, kernel, source, time, forecast }
    }

    /// Relative, positive where the forecast is too long.
    pub fn error(&self) -> f64 {
        self.forecast / self.time - 1.0
    }
}

static GPUS: LazyLock<BTreeMap<&str, Gpu>> = LazyLock::new(|| {
    let gpu = |name| (name, toml::from_str(catalog::text("gpu", name).unwrap()).unwrap());
    catalog::names("gpus").into_iter().map(gpu).collect()
});

/// The rows of a CSV.
pub fn read<Row: for<'de> serde::Deserialize<'de>>(text: &str) -> impl Iterator<Item = Row> {
    csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .from_reader(text.as_bytes())
        .into_deserialize()
        .map(Result::unwrap)
        .collect::<Vec<Row>>()
        .into_iter()
}

/// How much worse than the page says an error may get, in points of percent, before the test fails.
const MARGIN: f64 = 0.15;

#[test]
fn the_page_has_todays_errors() {
    let measured: Vec<Measured> = products::rows()
        .chain(attention::rows())
        .chain(memory::rows())
        .chain(ops::rows())
        .chain(layers::rows())
        .collect();
    let today = table(&measured);
    let said: Vec<Line> = PAGE.lines().filter_map(Line::parse).collect();
    let mut wrong = Vec::new();
    for line in &today {
        println!("{line}");
        match said.iter().find(|said| said.names() == line.names()) {
            None => wrong.push(format!("not on the page: {line}")),
            Some(said) if line.worse_than(said, MARGIN) => {
                wrong.push(format!("worse: {line}\n   was: {said}"))
            }
            Some(said) if said.worse_than(line, MARGIN) => {
                wrong.push(format!("better: {line}\n   was: {said}"))
            }
            Some(_) => {}
        }
    }
    let names: Vec<_> = today.iter().map(Line::names).collect();
    let gone = said.iter().filter(|said| !names.contains(&said.names()));
    wrong.extend(gone.map(|line| format!("only on the page: {line}")));
    assert!(wrong.is_empty(), "docs/kernels.md is out of date:\n{}", wrong.join("\n"));
}

/// The median of what is left of some errors' signs.
fn median(mut errors: Vec<f64>) -> f64 {
    errors.iter_mut().for_each(|error| *error = error.abs());
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

/// Products of 10 GFLOP and more within 10 % in the median, on every GPU that has three of them.
#[test]
fn large_products_are_met_within_a_tenth_in_the_median() {
    let mut gpus: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in products::rows().filter(|row| row.kernel.starts_with("product ")) {
        let error = row.error();
        gpus.entry(row.gpu).or_default().push(error);
    }
    for (gpu, errors) in gpus.into_iter().filter(|(_, errors)| errors.len() >= 3) {
        let (rows, median) = (errors.len(), median(errors));
        println!("{gpu:16} {rows:4} products, median error {:.1} %", 100.0 * median);
        assert!(median <= 0.10, "{gpu}: {median}");
    }
}

/// Ops of layers, blocks with known software, and mixtures of experts, each taken together.
#[test]
fn ops_and_layers_stay_as_near_as_they_are() {
    let named = |kernel: &'static str| move |row: &Measured| row.kernel.starts_with(kernel);
    let check = |what: &str, errors: Vec<f64>, most: f64| {
        let (rows, median) = (errors.len(), 100.0 * median(errors));
        println!("{what:16} {rows:4} rows, median error {median:.1} %");
        assert!(median <= most + MARGIN, "{what}: {median}");
    };
    let errors = |rows: &mut dyn Iterator<Item = Measured>| rows.map(|row| row.error()).collect();
    check("ops", errors(&mut ops::rows().filter(named("op "))), 10.0);
    check("blocks", errors(&mut layers::rows().filter(named("layer megatron"))), 1.0);
    check("experts", errors(&mut layers::rows().filter(named("experts "))), 16.0);
}
