//! Imports between crates and rooms: the table in ARCHITECTURE.md against the manifests and `use` lines, and no circles between the rooms of a crate.
//!
//! A room is a file or folder directly under a crate's `src`, a file together with the folder of its name. What a file takes by
//! `use` counts, from the file that defines it; what it hands on by `pub use` and names in paths does not, so that a folder's face
//! may list what is in it. Nor does what a file of a folder takes from the folder's face: a type that several files implement is
//! defined there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The largest circle of files inside a room.
const LARGEST_CIRCLE: usize = 3;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every crate of the workspace but the program itself: its folder, and what its row of the table lets it use.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let page = read(&Path::new(ROOT).join("ARCHITECTURE.md"));
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", folder, _, uses, ""] = cells[..] else { return None };
        let folder = folder.strip_prefix('`')?.strip_suffix("/`")?;
        let known = Path::new(ROOT).join(folder).join("Cargo.toml").exists();
        let uses =
            uses.split(',').map(|name| name.trim().trim_matches('`').trim_end_matches('/').to_string());
        known.then(|| (folder.to_string(), uses.filter(|name| name != "nothing of ours").collect()))
    });
    rows.collect()
}

/// The workspace's members by folder: their package names.
fn members() -> BTreeMap<String, String> {
    let manifest: toml::Table = read(&Path::new(ROOT).join("Cargo.toml")).parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let name = |folder: &str| {
        let manifest: toml::Table = read(&Path::new(ROOT).join(folder).join("Cargo.toml")).parse().unwrap();
        manifest["package"]["name"].as_str().unwrap().to_string()
    };
    members
        .iter()
        .map(|member| member.as_str().unwrap())
        .map(|folder| (folder.into(), name(folder)))
        .collect()
}

#[test]
fn crates_use_what_the_table_allows() {
    let (members, allowed) = (members(), allowed());
    let folders: BTreeSet<&String> = members.keys().collect();
    assert_eq!(allowed.keys().collect::<BTreeSet<_>>(), folders, "ARCHITECTURE.md has a row for each crate");
    let folder_of: BTreeMap<&str, &str> =
        members.iter().map(|(folder, name)| (name.as_str(), folder.as_str())).collect();
    for (folder, uses) in &allowed {
        let manifest: toml::Table = read(&Path::new(ROOT).join(folder).join("Cargo.toml")).parse().unwrap();
        let declared = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten();
        let declared: BTreeSet<String> = declared
            .filter_map(|(name, _)| folder_of.get(name.as_str()))
            .map(|folder| folder.to_string())
            .collect();
        let more: Vec<&String> = declared.difference(uses).collect();
        assert!(more.is_empty(), "{folder} uses {more:?}, which its row of the table does not allow");
        for used in &declared {
            let back = &allowed[used];
            assert!(!back.contains(folder), "{folder} and {used} may use each other");
        }
    }
}

/// The files of a crate by module path.
fn modules(source: &Path) -> BTreeMap<Vec<String>, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(source.to_path_buf(), Vec::new())];
    while let Some((folder, path)) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let with = |name: &str| [path.clone(), vec![name.to_string()]].concat();
            if entry.file_type().unwrap().is_dir() {
                folders.push((entry.path(), with(&name)));
            } else if let Some(stem) = name.strip_suffix(".rs") {
                let module = match stem {
                    "lib" | "main" | "mod" => path.clone(),
                    _ => with(stem),
                };
                found.insert(module, entry.path());
            }
        }
    }
    found
}

/// Which `use` items are meant.
#[derive(Clone, Copy, PartialEq)]
enum Items {
    /// Those that take names for the file itself.
    Private,
    /// Those that hand names on.
    Public,
}

/// The paths that `use` items name, from the crate's root; test modules left out.
fn used(
    text: &str,
    items: Items,
    module: &[String],
    modules: &BTreeMap<Vec<String>, PathBuf>,
) -> Vec<Vec<String>> {
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let mut paths = Vec::new();
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let lines = lines.join("\n");
    for (at, _) in lines.match_indices("use ") {
        let before = lines[..at].rsplit('\n').next().unwrap_or_default().trim();
        let kind = match before {
            "" => Items::Private,
            _ if before.starts_with("pub") => Items::Public,
            _ => continue,
        };
        if let (true, Some(end)) = (kind == items, lines[at..].find(';')) {
            expand(&lines[at + 4..at + end], &[], &mut paths);
        }
    }
    let child = |name: &String| modules.contains_key(&[module, std::slice::from_ref(name)].concat());
    let absolute = |path: Vec<String>| -> Option<Vec<String>> {
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|step| *step == "super").count();
                Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ if child(&path[0]) => Some([module, &path[..]].concat()),
            _ => None,
        }
    };
    paths.into_iter().filter_map(absolute).collect()
}

/// The single paths of a `use` tree.
fn expand(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (head, group) =
        tree.split_once('{').map_or((tree, None), |(head, rest)| (head, rest.rsplit_once('}')));
    let head = head.split(" as ").next().unwrap_or_default();
    let steps = head
        .split("::")
        .map(str::trim)
        .filter(|step| !step.is_empty() && *step != "self" || before.is_empty());
    let path: Vec<String> =
        before.iter().cloned().chain(steps.filter(|step| !step.is_empty()).map(String::from)).collect();
    let Some((inside, _)) = group else {
        paths.push(path);
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inside[start..at].trim().is_empty() {
                    expand(&inside[start..at], &path, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// A crate's files with those that each imports, by module path.
fn imports(source: &Path) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules = modules(source);
    // A name that a file hands on belongs to the file that it is from.
    let handed: BTreeMap<Vec<String>, Vec<Vec<String>>> = modules
        .iter()
        .map(|(module, path)| (module.clone(), used(&read(path), Items::Public, module, &modules)))
        .collect();
    let home = |path: &[String]| -> Option<Vec<String>> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
            let (module, name) = (path[..length].to_vec(), path.get(length));
            let from =
                name.and_then(|name| handed[&module].iter().find(|handed| handed.last() == Some(name)));
            match from {
                Some(from) if *from != path => path = from.clone(),
                _ => return Some(module),
            }
        }
        None
    };
    let of = |(module, path): (&Vec<String>, &PathBuf)| {
        let used_modules = used(&read(path), Items::Private, module, &modules);
        let used_modules = used_modules.into_iter().filter_map(|path| home(&path));
        let is_face = |other: &Vec<String>| !other.is_empty() && module.starts_with(other);
        (module.clone(), used_modules.filter(|other| !is_face(other)).collect())
    };
    modules.iter().map(of).collect()
}

/// Sets of files each of which imports, in the end, all others of the set.
fn circles(imports: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<BTreeSet<Vec<String>>> {
    let reach = |start: &Vec<String>| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(next) = open.pop() {
            for other in &imports[&next] {
                if seen.insert(other.clone()) {
                    open.push(other.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        imports.keys().map(|module| (module, reach(module))).collect();
    let mut found: Vec<BTreeSet<Vec<String>>> = Vec::new();
    for (module, reached) in &all {
        let circle: BTreeSet<Vec<String>> =
            reached.iter().filter(|other| all[other].contains(*module)).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[test]
fn no_circle_goes_through_two_rooms() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for folder in members().keys().map(String::as_str).chain([""]) {
        let source = Path::new(ROOT).join(folder).join("src");
        let imports = imports(&source);
        checked += imports.values().map(BTreeSet::len).sum::<usize>();
        for circle in circles(&imports) {
            let rooms: BTreeSet<&String> = circle.iter().filter_map(|module| module.first()).collect();
            if rooms.len() > 1 || circle.len() > LARGEST_CIRCLE {
                let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
                faults.push(format!("{folder}/src: {}", names.join(", ")));
            }
        }
    }
    assert!(checked > 500, "only {checked} imports were found");
    assert!(faults.is_empty(), "circles:\n{}", faults.join("\n"));
}

#[test]
fn use_trees_are_read() {
    let mut paths = Vec::new();
    expand("crate::a::{b, c::{D, E as F}, self}", &[], &mut paths);
    let read: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(read, ["crate::a::b", "crate::a::c::D", "crate::a::c::E", "crate::a"]);
    let edges = |pairs: &[(&str, &str)]| {
        let mut all: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for (from, to) in pairs {
            all.entry(vec![to.to_string()]).or_default();
            all.entry(vec![from.to_string()]).or_default().insert(vec![to.to_string()]);
        }
        all
    };
    assert_eq!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])).len(), 0);
    let found = circles(&edges(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].len(), 3);
}
