use trainwright_evidence::serving::ServingTable;
fn main() {
    for path in std::env::args().skip(1) {
        let table = ServingTable::read(std::fs::File::open(&path).unwrap()).unwrap();
        let start = std::time::Instant::now();
        let forecasts = table.forecasts();
        eprintln!("{path}: {} rows, {:?}", forecasts.len(), start.elapsed());
        let name = std::path::Path::new(&path).file_name().unwrap().to_str().unwrap().to_string();
        table.write(&forecasts, std::fs::File::create(format!("/tmp/serve_out/{name}")).unwrap()).unwrap();
    }
}
