//! Tables: columns that are two spaces apart under one line.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

/// No table is wider, whatever the terminal: the same arguments give the same bytes.
pub const MOST_COLUMNS: usize = 120;

/// A column's heading and alignment.
pub enum Column<'a> {
    /// Text.
    Left(&'a str),
    /// Numbers.
    Right(&'a str),
}

impl<'a> Column<'a> {
    fn heading(&self) -> &'a str {
        match self {
            Column::Left(heading) | Column::Right(heading) => heading,
        }
    }
}

/// Spaces between columns.
const GAP: usize = 2;

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Draws rows under their headings, in lines that end with a newline.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    draw(columns, rows, ContentArrangement::Disabled)
}

/// Draws rows as `table` does; where they would be too wide, cells are broken into lines.
pub fn wrapped_table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    draw(columns, rows, ContentArrangement::Dynamic)
}

/// Draws rows as `table` does; where they would be too wide, the last column is cut.
pub fn cut_table(columns: &[Column], mut rows: Vec<Vec<String>>) -> String {
    let width = |text: &str| text.chars().count();
    let widest = |index: usize, heading: &str| {
        rows.iter().map(|row| width(&row[index])).fold(width(heading), usize::max) + GAP
    };
    let before = columns.split_last().map_or(&[][..], |(_, before)| before);
    let before: usize =
        before.iter().enumerate().map(|(index, column)| widest(index, column.heading())).sum();
    let room = MOST_COLUMNS.saturating_sub(before);
    for last in rows.iter_mut().filter_map(|row| row.last_mut()).filter(|text| width(text) > room) {
        *last = last.chars().take(room.saturating_sub(1)).collect::<String>().trim_end().to_string() + "…";
    }
    table(columns, rows)
}

fn draw(columns: &[Column], rows: Vec<Vec<String>>, arrangement: ContentArrangement) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(STYLE).set_content_arrangement(arrangement).set_width(MOST_COLUMNS as u16);
    table.set_header(columns.iter().map(Column::heading));
    table.add_rows(rows);
    for (index, (column, drawn)) in columns.iter().zip(table.column_iter_mut()).enumerate() {
        // The style puts one space between columns.
        drawn.set_padding((if index == 0 { 0 } else { GAP as u16 - 1 }, 0));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_under_a_line() {
        let rows = vec![vec!["a".to_string(), "1".to_string()], vec!["bcd".to_string(), "234".to_string()]];
        let drawn = table(&[Column::Left("x"), Column::Right("n")], rows);
        assert_eq!(drawn, "x      n\n────────\na      1\nbcd  234\n");
    }

    #[test]
    fn long_cells_are_cut_or_broken_at_the_last_column() {
        let rows = || vec![vec!["name".to_string(), "word ".repeat(40)]];
        let check = |drawn: String, lines: usize| {
            assert_eq!(drawn.lines().count(), lines, "{drawn}");
            assert!(drawn.lines().all(|line| line.chars().count() <= MOST_COLUMNS), "{drawn}");
        };
        let columns = [Column::Left("a"), Column::Left("b")];
        check(cut_table(&columns, rows()), 3);
        check(wrapped_table(&columns, rows()), 4);
        assert!(cut_table(&columns, rows()).ends_with("…\n"));
    }

    #[test]
    fn ranks_that_look_the_same_are_one_row() {
        let row = |rank, cell: &str| (rank, vec![cell.to_string()]);
        let rows = [row(0, "a"), row(1, "b"), row(2, "b"), row(3, "b"), row(4, "a")];
        let merged = merge_ranks(rows).iter().map(|row| row.join(" ")).collect::<Vec<_>>();
        assert_eq!(merged, ["0 a", "1-3 b", "4 a"]);
    }
}
