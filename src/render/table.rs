//! Tables: columns that are two spaces apart under one line.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

/// No table is wider, whatever the terminal: the same arguments give the same bytes.
pub const MOST_COLUMNS: usize = 120;

/// A column's heading and alignment.
pub enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Draws rows under their headings, in lines that end with a newline.
pub fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| match column {
        Column::Left(heading) | Column::Right(heading) => *heading,
    }));
    table.add_rows(rows);
    for (index, (column, drawn)) in columns.iter().zip(table.column_iter_mut()).enumerate() {
        drawn.set_padding((if index == 0 { 0 } else { 2 }, 0));
        drawn.set_cell_alignment(match column {
            Column::Left(_) => CellAlignment::Left,
            Column::Right(_) => CellAlignment::Right,
        });
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Rows of successive ranks, where those that look the same become one: `1-14`.
pub fn merge_ranks(rows: impl IntoIterator<Item = (usize, Vec<String>)>) -> Vec<Vec<String>> {
    let mut merged: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for (rank, cells) in rows {
        match merged.last_mut() {
            Some((_, last, same)) if *same == cells && *last + 1 == rank => *last = rank,
            _ => merged.push((rank, rank, cells)),
        }
    }
    let label = |first: usize, last: usize| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    merged
        .into_iter()
        .map(|(first, last, cells)| std::iter::once(label(first, last)).chain(cells).collect())
        .collect()
}

/// Cuts the last column of rows so that the table stays within `MOST_COLUMNS`.
pub fn cut_last(rows: &mut [Vec<String>]) {
    let width = |text: &String| text.chars().count();
    let Some(columns) = rows.first().map(Vec::len) else { return };
    let before: usize = (0..columns - 1)
        .map(|column| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0) + 2)
        .sum();
    // Headings are at most a few letters wider than their cells.
    let room = MOST_COLUMNS.saturating_sub(before + 16).max(20);
    for last in rows.iter_mut().filter_map(|row| row.last_mut()).filter(|text| width(text) > room) {
        *last = last.chars().take(room - 1).collect::<String>().trim_end().to_string() + "…";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_under_a_line() {
        let rows = [vec!["a".to_string(), "1".to_string()], vec!["bcd".to_string(), "234".to_string()]];
        let drawn = table(&[Column::Left("x"), Column::Right("n")], rows);
        assert_eq!(drawn, "x      n\n────────\na      1\nbcd  234\n");
    }

    #[test]
    fn ranks_that_look_the_same_are_one_row() {
        let row = |rank, cell: &str| (rank, vec![cell.to_string()]);
        let rows = [row(0, "a"), row(1, "b"), row(2, "b"), row(3, "b"), row(4, "a")];
        let merged = merge_ranks(rows).iter().map(|row| row.join(" ")).collect::<Vec<_>>();
        assert_eq!(merged, ["0 a", "1-3 b", "4 a"]);
    }
}
