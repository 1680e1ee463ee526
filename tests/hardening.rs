//! What is promised of the sources and the manifests: where `unsafe` is, what is allowed of dependencies, which compiler is
//! needed, and the limits that `docs/hardening.md` lists.

use std::fs;
use std::path::{Path, PathBuf};
use trainwright_spec::limits;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file of Rust in the repository.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from(ROOT)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match entry.file_type().unwrap().is_dir() {
                true if name != "target" && !name.starts_with('.') => folders.push(path),
                false if name.ends_with(".rs") => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Lines in front of a block of `unsafe` in which its reason stands.
const REASON: usize = 6;

#[test]
fn unsafe_is_in_the_kernels_alone_and_each_block_has_a_reason() {
    let mut blocks = 0;
    for path in sources() {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_block = ["unsafe {", "unsafe impl"].iter().any(|word| code.contains(word));
            // A text that says the word, as here, is in quotes.
            if !is_block || code.contains("\"unsafe") {
                continue;
            }
            blocks += 1;
            let place = format!("{}:{}", path.display(), at + 1);
            assert!(path.starts_with(Path::new(ROOT).join("kernels")), "{place} is not in kernels/");
            let reason = lines[at.saturating_sub(REASON)..=at].iter().any(|line| line.contains("SAFETY"));
            assert!(reason, "{place} has no SAFETY sentence");
        }
    }
    assert!(blocks > 50, "{blocks}: the kernels have more");
}

#[test]
fn every_crate_but_the_kernels_forbids_unsafe_or_is_made_of_macros() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    assert_eq!(workspace["workspace"]["lints"]["rust"]["unsafe_code"].as_str(), Some("forbid"));
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap();
        let manifest: toml::Table = read(format!("{member}/Cargo.toml")).parse().unwrap();
        let inherits = manifest["lints"].get("workspace").and_then(toml::Value::as_bool) == Some(true);
        // The macros of the Python package expand to such blocks.
        assert_eq!(inherits, !["kernels", "python"].contains(&member), "{member}");
    }
}

#[test]
fn the_oldest_compiler_is_the_same_everywhere() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let oldest = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        let manifest: toml::Table = read(format!("{}/Cargo.toml", member.as_str().unwrap())).parse().unwrap();
        let inherited = &manifest["package"]["rust-version"];
        assert_eq!(inherited.get("workspace").and_then(toml::Value::as_bool), Some(true), "{member}");
    }
    assert!(
        read("docs/hardening.md").contains(&format!("Rust {oldest}")),
        "docs/hardening.md names Rust {oldest}"
    );
}

/// Sources of crates: the registry, by the lock file.
#[test]
fn every_dependency_is_of_the_registry_with_a_checksum() {
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    let packages = lock["package"].as_array().unwrap();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        match package.get("source").and_then(toml::Value::as_str) {
            Some(source) => {
                assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{name}");
                assert!(package.get("checksum").is_some(), "{name}");
            }
            None => assert!(name.starts_with("trainwright"), "{name} is a folder"),
        }
    }
    assert!(packages.len() > 50);
}

/// The table of counts in `docs/hardening.md`. `TRAINWRIGHT_BLESS=1` writes it.
#[test]
fn the_page_lists_the_limits_of_the_code() {
    let row = |count: &limits::Count| format!("| {} | {} | {} |\n", count.meaning, count.least, count.most);
    let mut table = String::from("| a number in a file | least | most |\n| --- | --: | --: |\n");
    table.extend(limits::COUNTS.iter().map(row));
    let (begin, end) = ("<!-- limits -->\n", "<!-- end of limits -->");
    let page = read("docs/hardening.md");
    let (before, rest) = page.split_once(begin).expect("the page has a place for the table");
    let (written, after) = rest.split_once(end).expect("the table ends");
    if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
        let path = Path::new(ROOT).join("docs/hardening.md");
        fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(written, table, "docs/hardening.md: TRAINWRIGHT_BLESS=1 writes the table");
}
