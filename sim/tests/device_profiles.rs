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

/// Each row forecast from the others of its table, where they bracket it.
#[test]
fn between_measured_shapes_a_table_is_nearer_than_the_forecast() {
    let mut judged = 0;
    for (plain, profile) in tables() {
        let (mut forecast, mut interpolated) = (Vec::new(), Vec::new());
        for row in &profile.kernels {
            let others = profile.kernels.iter().filter(|other| other.kernel != row.kernel).copied().collect();
            let others = DeviceProfile { kernels: others, ..profile.clone() };
            let gpu = Gpu { profile: Some(others), ..plain.clone() };
            let [without, with] = [&plain, &gpu].map(|gpu| kernel_time(&row.kernel, gpu));
            if with != without {
                forecast.push((without / row.time - 1.0).abs());
                interpolated.push((with / row.time - 1.0).abs());
            }
        }
        if forecast.len() < 10 {
            continue;
        }
        judged += 1;
        let rows = forecast.len();
        let [forecast, interpolated] =
            [&mut forecast, &mut interpolated].map(|errors| 100.0 * median(errors));
        println!(
            "{:16} {rows:4} bracketed rows: forecast {forecast:.1} %, table {interpolated:.1} %",
            plain.name
        );
        assert!(interpolated <= forecast, "{}: {interpolated} against {forecast}", plain.name);
    }
    assert!(judged >= 2, "{judged} tables have bracketed rows");
}
