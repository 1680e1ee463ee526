//! The measured tables of `traces/profiles`: they are read, looked up, and worth more than the forecast between their
//! rows.

use std::path::Path;
use trainwright_sim::compute::kernel_time;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{DeviceProfile, Gpu};

fn tables() -> Vec<(Gpu, DeviceProfile)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/profiles");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    paths.sort();
    let table = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let gpu: Gpu = toml::from_str(catalog::text("gpu", name).unwrap()).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let profile = DeviceProfile::from_csv(&text, &path.display().to_string(), name).unwrap();
        (gpu, profile)
    };
    paths.iter().map(table).collect()
}

fn median(errors: &mut [f64]) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

#[test]
fn a_measured_table_replaces_the_forecast() {
    let tables = tables();
    assert!(tables.len() >= 5, "{} tables", tables.len());
    for (gpu, profile) in tables {
        let measured = Gpu { profile: Some(profile.clone()), ..gpu };
        for row in &profile.kernels {
            assert_eq!(kernel_time(&row.kernel, &measured), row.time, "{}: {:?}", measured.name, row.kernel);
        }
    }
}

/// Rows of a table that is judged by itself.
const MANY: usize = 20;

/// Each row forecast from the others of its table, where they are around it: nearer over all tables, and in each that has many
/// such rows. (Of a few, measured by people with other clocks and libraries, one says little of another.)
#[test]
fn between_measured_shapes_a_table_is_nearer_than_the_forecast() {
    let mut all = [Vec::new(), Vec::new()];
    let mut judged = 0;
    for (plain, profile) in tables() {
        let mut errors = [Vec::new(), Vec::new()];
        for row in &profile.kernels {
            let others = profile.kernels.iter().filter(|other| other.kernel != row.kernel).copied().collect();
            let others = DeviceProfile { kernels: others, ..profile.clone() };
            let gpu = Gpu { profile: Some(others), ..plain.clone() };
            let times = [&plain, &gpu].map(|gpu| kernel_time(&row.kernel, gpu));
            if times[0] != times[1] {
                for (errors, time) in errors.iter_mut().zip(times) {
                    errors.push(100.0 * (time / row.time - 1.0).abs());
                }
            }
        }
        if errors[0].is_empty() {
            continue;
        }
        all.iter_mut().zip(&errors).for_each(|(all, of_table)| all.extend(of_table));
        let rows = errors[0].len();
        let [forecast, table] = errors.each_mut().map(|errors| median(errors));
        println!("{:16} {rows:4} rows: forecast {forecast:.1} %, table {table:.1} %", plain.name);
        if rows >= MANY {
            judged += 1;
            assert!(table <= 0.8 * forecast, "{}: {table} against {forecast}", plain.name);
        }
    }
    let [forecast, table] = all.each_mut().map(|errors| median(errors));
    println!("{:16} {:4} rows: forecast {forecast:.1} %, table {table:.1} %", "all", all[0].len());
    assert!(table <= 0.8 * forecast, "{table} against {forecast}");
    assert!(judged >= 2, "{judged} tables have many such rows");
}
