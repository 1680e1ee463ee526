//! Tables: each column is a heading and the cell that it has for an entry; printed as text, as part of a page, or in Markdown.

use crate::output::{self, Tables};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};
use std::iter::once;
use trainwright_pictures::html::Section;

/// No table is wider, whatever the terminal: the same arguments give the same bytes.
const MOST_COLUMNS: usize = 120;

/// Spaces between columns.
const GAP: usize = 2;

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A row for each entry; columns are added from left to right.
///
/// ```ignore
/// Table::of(&models).left("model", |model| &model.name).right("blocks", |model| model.layers()).text()
/// ```
pub struct Table<'a, E> {
    entries: &'a [E],
    columns: Vec<(String, CellAlignment)>,
    rows: Vec<Vec<String>>,
}

impl<'a, E> Table<'a, E> {
    /// Without columns.
    pub fn of(entries: &'a [E]) -> Self {
        Self { entries, columns: Vec::new(), rows: vec![Vec::new(); entries.len()] }
    }

    /// Adds a column of text.
    pub fn left<S: ToString>(self, heading: &str, cell: impl Fn(&'a E) -> S) -> Self {
        self.column(heading, CellAlignment::Left, cell)
    }

    /// Adds a column of numbers.
    pub fn right<S: ToString>(self, heading: &str, cell: impl Fn(&'a E) -> S) -> Self {
        self.column(heading, CellAlignment::Right, cell)
    }

    fn column<S: ToString>(mut self, heading: &str, align: CellAlignment, cell: impl Fn(&'a E) -> S) -> Self {
        self.columns.push((heading.into(), align));
        for (row, entry) in self.rows.iter_mut().zip(self.entries) {
            row.push(cell(entry).to_string());
        }
        self
    }

    /// As `text`, with the rank of each entry first. Successive ranks whose other cells are equal become one row: `1-14`.
    pub fn text_by_rank(mut self, rank: impl Fn(&E) -> usize) -> String {
        let mut merged: Vec<(usize, usize, Vec<String>)> = Vec::new();
        for (rank, cells) in self.entries.iter().map(rank).zip(self.rows) {
            match merged.last_mut() {
                Some((_, last, previous)) if *previous == cells && *last + 1 == rank => *last = rank,
                _ => merged.push((rank, rank, cells)),
            }
        }
        let label = |first: usize, last: usize| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let merged = merged.into_iter();
        self.rows =
            merged.map(|(first, last, cells)| once(label(first, last)).chain(cells).collect()).collect();
        self.columns.insert(0, ("rank".into(), CellAlignment::Right));
        self.text()
    }

    /// Lines that end with a newline, the columns two spaces apart.
    pub fn text(self) -> String {
        self.draw(ContentArrangement::Disabled)
    }

    /// As `text`; where a table would be too wide, cells are broken into lines.
    pub fn wrapped(self) -> String {
        self.draw(ContentArrangement::Dynamic)
    }

    /// As `text`; where a table would be too wide, the last column is cut.
    pub fn cut(mut self) -> String {
        let width = |text: &str| text.chars().count();
        let widest = |(index, (heading, _)): (usize, &(String, CellAlignment))| {
            self.rows.iter().map(|row| width(&row[index])).fold(width(heading), usize::max) + GAP
        };
        let before: usize =
            self.columns.iter().enumerate().take(self.columns.len().saturating_sub(1)).map(widest).sum();
        let room = MOST_COLUMNS.saturating_sub(before);
        for last in self.rows.iter_mut().filter_map(|row| row.last_mut()).filter(|text| width(text) > room) {
            let kept: String = last.chars().take(room.saturating_sub(1)).collect();
            *last = kept.trim_end().to_string() + "…";
        }
        self.text()
    }

    /// The rows with their headings in CSV.
    fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let headings = self.columns.iter().map(|(heading, _)| heading.as_str());
        writer.write_record(headings).expect("memory takes all of it");
        self.rows.iter().for_each(|row| writer.write_record(row).expect("rows have a cell for each heading"));
        String::from_utf8(writer.into_inner().expect("memory takes all of it")).expect("cells are text")
    }

    fn draw(self, arrangement: ContentArrangement) -> String {
        match output::tables_as() {
            Tables::Text => {}
            // A line before it keeps it apart from a heading.
            Tables::Markdown => return format!("\n{}\n", self.markdown()),
            Tables::Csv => output::keep_table(self.csv()),
        }
        let mut table = comfy_table::Table::new();
        table.load_style(STYLE).set_content_arrangement(arrangement).set_width(MOST_COLUMNS as u16);
        table.set_header(self.columns.iter().map(|(heading, _)| heading));
        table.add_rows(self.rows);
        for (index, ((_, align), drawn)) in self.columns.iter().zip(table.column_iter_mut()).enumerate() {
            // The style puts one space between columns.
            drawn.set_padding((if index == 0 { 0 } else { GAP as u16 - 1 }, 0));
            drawn.set_cell_alignment(*align);
        }
        table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
    }

    /// As part of a page for a browser.
    pub fn section(self) -> Section {
        Section::Table {
            headings: self.columns.into_iter().map(|(heading, _)| heading).collect(),
            rows: self.rows,
        }
    }

    /// Aligns every column to the left.
    pub fn all_left(mut self) -> Self {
        self.columns.iter_mut().for_each(|(_, align)| *align = CellAlignment::Left);
        self
    }

    /// In Markdown.
    pub fn markdown(self) -> String {
        let line = |cells: &[String]| {
            let cells =
                cells.iter().map(|cell| if cell.is_empty() { " |".into() } else { format!(" {cell} |") });
            format!("|{}\n", cells.collect::<String>())
        };
        let (headings, aligns): (Vec<_>, Vec<_>) = self.columns.into_iter().unzip();
        let rule =
            aligns.iter().map(|align| if *align == CellAlignment::Left { " --- |" } else { " ---: |" });
        let rule: String = rule.collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}|{rule}\n{rows}", line(&headings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_under_a_line() {
        let table = || Table::of(&[("a", 1), ("bcd", 234)]).left("x", |row| row.0).right("n", |row| row.1);
        assert_eq!(table().text(), "x      n\n────────\na      1\nbcd  234\n");
        assert_eq!(table().markdown(), "| x | n |\n| --- | ---: |\n| a | 1 |\n| bcd | 234 |\n");
    }

    #[test]
    fn long_cells_are_cut_or_broken_at_the_last_column() {
        let table = || Table::of(&["name"]).left("a", |name| *name).left("b", |_| "word ".repeat(40));
        let check = |drawn: String, lines: usize| {
            assert_eq!(drawn.lines().count(), lines, "{drawn}");
            assert!(drawn.lines().all(|line| line.chars().count() <= MOST_COLUMNS), "{drawn}");
        };
        check(table().cut(), 3);
        check(table().wrapped(), 4);
        assert!(table().cut().ends_with("…\n"));
    }

    #[test]
    fn successive_ranks_with_equal_cells_are_one_row() {
        let entries = [(0, "a"), (1, "b"), (2, "b"), (3, "b"), (4, "a")];
        let drawn = Table::of(&entries).left("cell", |entry| entry.1).text_by_rank(|entry| entry.0);
        assert_eq!(drawn, "rank  cell\n──────────\n   0  a\n 1-3  b\n   4  a\n");
    }
}
