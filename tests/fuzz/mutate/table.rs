//! Damage to tables that leaves them tables: cells, columns and rows.

use super::{Draws, Words, numbers, text};

/// A CSV with one to four damages; `None` if it is none.
pub fn csv(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(intact);
    let rows = reader.records().map(|row| Some(row.ok()?.iter().map(String::from).collect()));
    let mut rows: Vec<Vec<String>> = rows.collect::<Option<_>>()?;
    for _ in 0..1 + draws.below(4) {
        damage(&mut rows, words, draws)?;
    }
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.write_record(row)).ok()?;
    writer.into_inner().ok()
}

fn damage(rows: &mut Vec<Vec<String>>, words: &Words, draws: &mut Draws) -> Option<()> {
    if rows.is_empty() {
        return None;
    }
    let (row, other) = (draws.below(rows.len()), draws.below(rows.len()));
    let column = draws.below(rows[row].len().max(1));
    let cell = |rows: &mut Vec<Vec<String>>, text: String| {
        rows[row].get_mut(column).into_iter().for_each(|cell| *cell = text.clone());
    };
    match draws.below(16) {
        0 => drop(rows.remove(row)),
        1 => rows.insert(row, rows[other].clone()),
        2 => rows.swap(row, other),
        3 => rows.iter_mut().filter(|row| column < row.len()).for_each(|row| drop(row.remove(column))),
        4 => rows.iter_mut().filter(|row| column < row.len()).for_each(|row| row.push(row[column].clone())),
        5 => rows[0].get_mut(column).into_iter().for_each(|name| *name = words.draw(draws).into()),
        6 => cell(rows, numbers::odd(draws)),
        7 => cell(rows, words.draw(draws).into()),
        8 => {
            let text = rows[other].get(column).cloned().unwrap_or_default();
            cell(rows, text);
        }
        9 => {
            let text = rows[row].get(column).map_or(String::new(), |old| text::damaged(old, words, draws));
            cell(rows, text);
        }
        10 => {
            // A whole column of one number.
            let number = numbers::whole(draws).to_string();
            rows.iter_mut()
                .skip(1)
                .filter_map(|row| row.get_mut(column))
                .for_each(|cell| *cell = number.clone());
        }
        _ => {
            let old = rows[row].get(column).cloned().unwrap_or_default();
            cell(rows, numbers::written(&old, draws));
        }
    }
    Some(())
}
