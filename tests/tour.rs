//! The tour of docs/tour.md: its files are there, and define what it names.

use std::fs;
use std::path::Path;

#[test]
fn every_name_of_the_tour_is_defined_where_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/tour.md")).unwrap().replace('\n', " ");
    let mut found = 0;
    // `](../path) `name``
    for after in page.split("](../").skip(1) {
        let (path, rest) = after.split_once(')').unwrap();
        let name =
            rest.trim_start().strip_prefix('`').and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
        let name = name.unwrap_or_else(|| panic!("docs/tour.md names nothing of {path}"));
        let text = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let defines = ["fn", "struct", "trait", "enum"].iter().any(|kind| {
            let definition = format!("{kind} {name}");
            text.match_indices(&definition).any(|(at, _)| {
                !text[at + definition.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
            })
        });
        assert!(defines, "{path} does not define `{name}`");
        found += 1;
    }
    assert!(found >= 20, "only {found} names");
    assert_eq!((1..=10).filter(|stop| page.contains(&format!(" {stop}. **"))).count(), 10, "ten stops");
}
