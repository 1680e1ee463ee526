//! `calibrate` and `validate` for ranks that do not compute on the cores: the plan's cluster names the device, runs measure its
//! ops.

use super::calibrate::{TABLE, make, remark_refused, write};
use crate::arguments::{CalibrateArguments, ValidateArguments};
use crate::error::{CliError, Outcome};
use crate::progress::Bar;
use crate::render::validate::{OnDevice, Rounds, Validated};
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{
    LearningRate, Link, LinkKind, MeasuredGpus, Outcome as Ran, Records, Settings, Tokens, measure_gpus,
    measure_ops, shared_gpus, train,
};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::plan::Plan;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::comparison::Comparison;

/// Launches and copies in a profile's folder.
const LINKS: &str = "links.csv";
/// Collectives among the GPUs, where there are several.
const NETWORK: &str = "network.toml";
/// The machine as a cluster.
const CLUSTER: &str = "cluster.toml";

/// Writes tables of kernels by shape, of every op of some plans with the names that their clusters give the device, of launches,
/// copies and collectives, and the machine as a cluster.
///
/// # Errors
/// A device that cannot be used, a plan that it does not run, and files that cannot be written.
pub fn calibrate(plans: &[Plan], arguments: &CalibrateArguments) -> Result<Outcome, CliError> {
    let bar = Bar::new();
    let machine = measure_gpus(arguments.device, arguments.deterministic, &mut |done, of| {
        bar.runs(done, of + plans.len());
    })?;
    let program = format!("trainwright {}, {}", env!("CARGO_PKG_VERSION"), machine.versions);
    let about = [machine.date.as_str(), &program];
    let gpu = &machine.cluster.node.gpu.name;
    let mut table = machine.kernels.to_csv(gpu, about);
    let mut refused = Vec::new();
    for plan in plans {
        let measured = measure_ops(std::slice::from_ref(plan), arguments.device, arguments.deterministic)?;
        refused.extend(measured.refused);
        let text = measured.profile.to_csv(&plan.cluster.node.gpu.name, about);
        table += text.split_once('\n').map_or("", |(_, rows)| rows);
    }
    drop(bar);
    remark_refused(refused.iter());
    // All files at the end: a run that ends early leaves none.
    let folder = Path::new(&arguments.out);
    make(folder, arguments)?;
    write(folder, TABLE, &table)?;
    write(folder, LINKS, &links(&machine.links, gpu, about))?;
    write(folder, CLUSTER, &machine.cluster.write())?;
    if let Some(network) = &machine.network {
        write(folder, NETWORK, &network.to_toml())?;
    }
    let rows = table.lines().count() - 1 - machine.kernels.kernels.len();
    output::print(&format!(
        "{}: {} kernels and {rows} ops on {gpu}\n{}",
        folder.display(),
        machine.kernels.kernels.len(),
        summary(&machine)
    ))?;
    Ok(Outcome::Done)
}

/// The most important figures.
fn summary(machine: &MeasuredGpus) -> String {
    let mut text = String::new();
    for kind in LinkKind::ALL {
        let of_kind = machine.links.iter().filter(|link| link.kind == kind);
        let Some(link) = of_kind.max_by_key(|link| link.bytes) else { continue };
        let time = Seconds::new(link.timed.seconds);
        let bytes = Bytes::new(link.bytes as f64);
        text += &match link.bytes {
            0 => format!("{}: {time}\n", kind.name()),
            _ => format!("{} of {bytes}: {}\n", kind.name(), bytes / time),
        };
    }
    if machine.network.is_none() && machine.cluster.node.gpus.value > 1 {
        text += "no collectives were measured: NCCL is not there\n";
    }
    for sweep in machine.network.iter().flat_map(|network| &network.sweeps) {
        let Some(row) = sweep.rows.last() else { continue };
        let ranks = sweep.ranks_per_node;
        text += &format!("{} of {} by {ranks} GPUs: {}\n", sweep.collective, row.bytes, row.time);
    }
    text
}

/// Launches and copies as a table.
fn links(links: &[Link], gpu: &str, [date, versions]: [&str; 2]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut add = |cells: &[&str]| writer.write_record(cells).expect("a vector takes every row");
    add(&["gpu", "link", "bytes", "time_us", "spread", "date", "versions"]);
    for Link { kind, bytes, timed } in links {
        // To the picosecond, as kernels.
        let time = ((timed.seconds * 1e12).round() / 1e6).to_string();
        let spread = format!("{:.4}", timed.spread);
        add(&[gpu, kind.name(), &bytes.to_string(), &time, &spread, date, versions]);
    }
    String::from_utf8(writer.into_inner().expect("a vector takes every row")).expect("cells are text")
}

/// A plan's forecast with the device's times, and its measured steps on the device.
///
/// # Errors
/// A device that cannot be used, a plan that it does not run, a rank that stops, and a table that cannot be read.
pub fn validate(arguments: &ValidateArguments, plan: &Plan) -> Result<Validated, CliError> {
    let mut plan = arguments.device.with_executor_stack(plan)?;
    match &arguments.profile {
        Some(folder) => {
            let table = Path::new(folder).join(TABLE).display().to_string();
            let text = inputs::text(Some("--profile"), &table)?;
            let cluster = plan.cluster.clone().with_device_profile(&text, &table);
            plan.cluster = cluster.map_err(|error| CliError::of_input(Some("--profile"), error))?;
        }
        None => {
            let measured =
                measure_ops(std::slice::from_ref(&plan), arguments.device, arguments.deterministic)?;
            remark_refused(measured.refused.iter());
            plan.cluster.node.gpu.profile = Some(measured.profile);
        }
    }
    plan.cluster.node.cores = shared_gpus(&plan, arguments.device)?;
    let ran = run(arguments, &plan)?;
    let times = ran.steps[WARM_UP..][..arguments.steps].iter().map(|step| Seconds::new(step.seconds));
    let (_, expected) = forecast(&plan, &ClusterCosts::new(&plan.cluster))?;
    let measured = ran.timeline;
    let times: Vec<Seconds> = times.collect();
    let mut compared = Comparison::new(&expected, std::slice::from_ref(&measured), &times);
    // The ranks' counts lack memory outside tensors.
    let memory = ran.device_memory.into_iter().max_by_key(|memory| memory.peak);
    if let Some(memory) = memory {
        compared.peak_memory.measured = Bytes::new(memory.peak as f64);
    }
    let on_device = Some(OnDevice { graph: ran.graph, memory });
    let rounds = Rounds::default();
    Ok(Validated { name: String::new(), plan, compared, rounds, expected, measured, on_device })
}

/// Warm-up steps: after these a graph is captured, or never.
const WARM_UP: usize = 5;

/// The plan as it trains: only the last step, after the measured ones, waits for the times of its ops.
fn run(arguments: &ValidateArguments, plan: &Plan) -> Result<Ran, CliError> {
    let settings = Settings {
        steps: WARM_UP + arguments.steps + 1,
        // What the weights become does not matter; at a rate of zero they cannot grow to NaN.
        learning_rate: LearningRate::constant(0.0),
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        records: Records::LastStep,
        device: arguments.device,
        deterministic: arguments.deterministic,
        ..Settings::default()
    };
    let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 4 + 1, 0);
    Ok(train(plan, &tokens, &settings, &mut |_| {})?)
}
