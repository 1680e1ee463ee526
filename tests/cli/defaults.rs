//! Options of a file and of the environment, and the formats of tables.

use crate::{Folder, Ran, program};

fn run(folder: &Folder, variables: &[(&str, &str)], arguments: &str) -> Ran {
    let mut command = program(folder.0.path(), arguments);
    Ran::from(command.envs(variables.iter().copied()).output().unwrap())
}

const QUESTION: &str = "plan --model gpt2 --seq 256 --global-batch 8 --tensor 1 --pipeline 1";

#[test]
fn options_come_from_the_command_line_the_environment_and_a_file() {
    let folder = Folder::new();
    let said = |cluster: &str| {
        let ran = folder.run(&format!("{QUESTION} --cluster {cluster} --stack pytorch-eager"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        ran.stdout
    };
    let [one, two, three] = ["dgx-h100", "dgx-h100:2", "dgx-a100"].map(said);
    folder.write(
        "trainwright.toml",
        "cluster = \"dgx-h100\"\n[plan]\nstack = \"pytorch-eager\"\n[fit]\nout = \"x.toml\"\n",
    );
    let ran = folder.run(QUESTION);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, one.as_str()), "{}", ran.stderr);
    assert_eq!(ran.stderr, "by default --cluster=dgx-h100 --stack=pytorch-eager\n");
    let variable = [("TRAINWRIGHT_DEFAULT_CLUSTER", "dgx-h100:2")];
    assert_eq!(run(&folder, &variable, QUESTION).stdout, two);
    assert_eq!(run(&folder, &variable, &format!("{QUESTION} --cluster dgx-a100")).stdout, three);
    assert_eq!(run(&folder, &variable, &format!("--quiet {QUESTION}")).stderr, "");
    // Another file, and none.
    folder.write("other.toml", "[plan]\ncluster = \"dgx-a100\"\nstack = \"pytorch-eager\"\n");
    assert_eq!(run(&folder, &[("TRAINWRIGHT_DEFAULTS", "other.toml")], QUESTION).stdout, three);
    assert_eq!(run(&folder, &[("TRAINWRIGHT_DEFAULTS", "")], QUESTION).code, 2);
    // A plan of `serve` has its cluster.
    let conflict = run(&folder, &[], "serve --plan none.toml --rate 1 --requests 10");
    assert!(!conflict.stderr.contains("cannot be used with"), "{}", conflict.stderr);
    assert_eq!(folder.run("show gpus").code, 0);
}

#[test]
fn defaults_that_are_no_options_are_refused() {
    let folder = Folder::new();
    let check = |text: &str, message: &str| {
        folder.write("trainwright.toml", text);
        let ran = folder.run(QUESTION);
        assert_eq!((ran.code, ran.stderr), (2, format!("error: trainwright.toml: {message}\n")), "{text}");
    };
    check("clustre = \"dgx-h100\"", "`clustre` is no option; the nearest are cluster");
    check("[plan]\nclustre = 1", "`plan.clustre` is no option; the nearest are cluster, picture");
    check("[plane]\ncluster = \"x\"", "`[plane]` is no command; the nearest are plan, replay");
    let missing = run(&folder, &[("TRAINWRIGHT_DEFAULTS", "no.toml")], QUESTION);
    assert_eq!(missing.code, 2);
    assert!(
        missing.stderr.starts_with("error: TRAINWRIGHT_DEFAULTS: cannot read no.toml: "),
        "{}",
        missing.stderr
    );
}

#[test]
fn tables_have_formats() {
    let folder = Folder::new();
    let listed = folder.run("show optimizers --format csv");
    assert_eq!((listed.code, listed.stderr.as_str()), (0, ""));
    let mut rows = csv::Reader::from_reader(listed.stdout.as_bytes());
    assert_eq!(rows.headers().unwrap().iter().next(), Some("optimizer"));
    let names: Vec<String> = rows.records().map(|row| row.unwrap()[0].to_string()).collect();
    let known: Vec<&str> = trainwright_spec::optimizer::OPTIMIZERS.iter().map(|known| known.name()).collect();
    assert_eq!(names, known);
    let listed = folder.run("--format md show optimizers").stdout;
    assert!(listed.starts_with("\n| optimizer | bf16 |") && listed.contains("\n| --- | ---: |"), "{listed}");

    let question = format!("{QUESTION} --cluster dgx-h100");
    let [json, same] =
        ["--json", "--format json"].map(|json| folder.run(&format!("{question} {json}")).stdout);
    assert_eq!(json, same);
    // All tables of an answer, each with as many cells in a row as headings.
    let tables = folder.run(&format!("{question} --format csv")).stdout;
    let mut count = 0;
    for table in tables.split("\n\n") {
        let mut reader = csv::ReaderBuilder::new().from_reader(table.as_bytes());
        assert!(reader.records().all(|row| row.is_ok()), "{table}");
        count += 1;
    }
    assert!(count >= 2 && tables.contains("choices,"), "{tables}");
    assert_eq!(folder.run("show gpus --format xml").code, 2);
}
