//! The classic facts of capacity planning, by the examples of the same names.

#[path = "../examples/chinchilla.rs"]
mod chinchilla;
#[path = "../examples/gpt3_in_35_a100s.rs"]
mod gpt3_in_35_a100s;
#[path = "../examples/gpt3_in_430_zettaflops.rs"]
mod gpt3_in_430_zettaflops;
#[path = "../examples/gpt3_on_one_v100.rs"]
mod gpt3_on_one_v100;
#[path = "../examples/llama_energy.rs"]
mod llama_energy;

fn assert_close(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not within {tolerance} of {expected}");
}

#[test]
fn gpt3_takes_288_years_of_one_v100() {
    gpt3_on_one_v100::main();
    // 8 · 300e9 · 175e9 FLOPs in 288 years are 46.2 TFLOP/s, of 125.
    assert_close(gpt3_on_one_v100::part_of_peak(288.0), 46.2 / 125.0, 0.01);
    assert_eq!(gpt3_on_one_v100::years(0.37).round(), 288.0);
}

#[test]
fn gpt3_fills_35_a100s() {
    gpt3_in_35_a100s::main();
    let (bytes, gpus) = gpt3_in_35_a100s::state();
    assert_close(bytes.get(), 2.8e12, 0.01);
    assert_eq!(gpus, 35);
}

#[test]
fn gpt3_takes_430_zettaflops_and_34_days() {
    gpt3_in_430_zettaflops::main();
    assert_close(gpt3_in_430_zettaflops::iteration().get(), 4.5e18, 0.01);
    assert_close(gpt3_in_430_zettaflops::training().get(), 430e21, 0.01);
    assert_eq!(gpt3_in_430_zettaflops::days(175e9, 300e9, 1024, 140.0).round(), 34.0);
    // 83.2 days with a trillion parameters; the paper's 84 are of its 1,008 billion.
    assert_eq!(gpt3_in_430_zettaflops::days(1.008e12, 450e9, 3072, 163.0).round(), 84.0);
}

#[test]
fn gophers_budget_is_chinchillas() {
    chinchilla::main();
    let best = chinchilla::optimum("chinchilla-refitted");
    assert_close(best.parameters, 70e9, 0.05);
    assert_close(best.tokens, 1.4e12, 0.06);
    let (gopher, chinchilla) = chinchilla::gopher_and_chinchilla("chinchilla");
    assert!(chinchilla < gopher, "{chinchilla} {gopher}");
}

#[test]
fn llama_took_449_mwh_and_21_days() {
    llama_energy::main();
    assert_close(llama_energy::of(1_022_362.0).as_mwh(), 449.0, 0.002);
    // Table 15 prints 36 MWh for LLaMA 7B's 82,432 GPU-hours.
    assert_close(llama_energy::of(82_432.0).as_mwh(), 36.0, 0.02);
    assert_close(llama_energy::days(), 21.0, 0.02);
}
