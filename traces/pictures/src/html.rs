//! A page for any browser: tables, pictures, and a timeline that can be zoomed; one file that loads nothing.
//!
//! ```text
//! title
//! sections, each a heading over words, a table, bars, a picture, a timeline, or jobs on GPUs over time
//! ```
//!
//! A timeline's spans and memory stand in the page as JSON, and `html/timeline.js` draws them; so do jobs for `html/gantt.js`.
//! `html/zoom.js` is of both. The same sections always give
//! the same text.

mod bars;
mod data;

pub use bars::{Bar, BarScale, Part};

use crate::gantt::Gantt;
use crate::palette::page_variables;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use trainwright_spec::units::Bytes;
use trainwright_timeline::timeline::Timeline;

/// A part of a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Section {
    /// A title above what follows.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// Rows under headings; numbers are aligned to the right.
    Table {
        /// Headings of the columns.
        headings: Vec<String>,
        /// Rows, with a cell for each column.
        rows: Vec<Vec<String>>,
    },
    /// Where time goes, a bar for each name.
    Bars(Vec<Bar>, BarScale),
    /// An SVG document, as this crate draws them.
    Picture(String),
    /// Spans and memory of every rank, to be zoomed. One to a page.
    Timeline(TimelineData),
    /// Jobs on GPUs over time, to be zoomed. One to a page, without a timeline.
    Gantt(Gantt),
}

/// A timeline as the page holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineData {
    json: String,
    note: String,
}

impl TimelineData {
    /// Collects the data of the page; `gpu_memory` is drawn as the limit.
    pub fn new(timeline: &Timeline, gpu_memory: Bytes) -> TimelineData {
        data::collect(timeline, gpu_memory)
    }
}

/// The page.
pub fn page(title: &str, sections: &[Section]) -> String {
    let mut body = String::new();
    for section in sections {
        body.push_str(&match section {
            Section::Heading(text) => format!("<h2>{}</h2>\n", escape(text)),
            Section::Text(text) => format!("<p>{}</p>\n", escape(text)),
            Section::Table { headings, rows } => table(headings, rows),
            Section::Bars(bars, scale) => bars::bars(bars, *scale),
            Section::Picture(svg) => format!("<figure>{}</figure>\n", without_declaration(svg)),
            Section::Timeline(data) => timeline(data),
            Section::Gantt(gantt) => jobs(gantt),
        });
    }
    if sections.iter().any(|section| matches!(section, Section::Table { .. })) {
        let _ = writeln!(body, "<script>{TABLES}</script>");
    }
    let title = escape(title);
    let (variables, style, policy) = (page_variables(), include_str!("html/page.css"), policy());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{variables}{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// The scripts of pages, between their tags.
const TABLES: &str = include_str!("html/tables.js");
const TIMELINE: &str = concat!(include_str!("html/zoom.js"), include_str!("html/timeline.js"));
const GANTT: &str = concat!(include_str!("html/zoom.js"), include_str!("html/gantt.js"));

/// What a browser lets the page do: run these scripts, known by their hashes, and nothing else; load nothing.
fn policy() -> String {
    let hash = |script: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)));
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src {} {} {}; base-uri 'none'; form-action 'none'",
        hash(TABLES),
        hash(TIMELINE),
        hash(GANTT)
    )
}

fn table(headings: &[String], rows: &[Vec<String>]) -> String {
    let numeric = |text: &str| text.starts_with(|c: char| c.is_ascii_digit() || "+-−<".contains(c));
    let cell = |tag: &str, text: &str, right: bool| {
        format!("<{tag}{}>{}</{tag}>", if right { " class=\"number\"" } else { "" }, escape(text))
    };
    let right: Vec<bool> = (0..headings.len())
        .map(|column| rows.iter().all(|row| row[column].is_empty() || numeric(&row[column])))
        .collect();
    let line = |tag: &str, cells: &[String]| -> String {
        let cells = cells.iter().zip(&right).map(|(text, right)| cell(tag, text, *right));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = rows.iter().map(|row| line("td", row)).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
        line("th", headings)
    )
}

/// Buttons for what a script zooms, and where it says what is shown.
const TOOLS: &str = "<p class=\"tools\"><button data-zoom=\"2\">zoom in</button> \
    <button data-zoom=\"0.5\">zoom out</button> <button data-zoom=\"0\">all</button> <span id=\"window\"></span></p>";

/// Data for a script of the page, and the script. Inside a script nothing is escaped; only its end must not stand there.
fn script(json: &str, script: &str) -> String {
    let json = json.replace("</", "<\\/");
    format!("<script type=\"application/json\" id=\"data\">{json}</script>\n<script>{script}</script>\n")
}

fn jobs(gantt: &Gantt) -> String {
    format!(
        "<p class=\"hint\">Zoom with the wheel or + and −, move by dragging or with the arrows.</p>\n<div id=\"timeline\">{TOOLS}\n\
         <canvas id=\"jobs\" tabindex=\"0\" role=\"img\" aria-label=\"{}\"></canvas>\n<div id=\"tip\" hidden></div></div>\n{}",
        escape(&gantt.title),
        script(&gantt.json().to_string(), GANTT)
    )
}

fn timeline(data: &TimelineData) -> String {
    format!(
        "<p class=\"hint\">{}</p>\n<div id=\"timeline\">{TOOLS}\n<canvas id=\"spans\" tabindex=\"0\" role=\"img\" \
         aria-label=\"What each rank does over time\"></canvas>\n<p class=\"legend\" id=\"legend\"></p>\n\
         <h3>Memory</h3>\n<canvas id=\"memory\" role=\"img\" aria-label=\"Memory of each rank over time\"></canvas>\n\
         <p class=\"legend\" id=\"ranks\"></p>\n<div id=\"tip\" hidden></div></div>\n{}",
        escape(&data.note),
        script(&data.json, TIMELINE)
    )
}

fn without_declaration(svg: &str) -> &str {
    match svg.find("<svg") {
        Some(start) => &svg[start..],
        None => svg,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup_and_nothing_is_loaded() {
        let table = Section::Table { headings: vec!["<b>".into()], rows: vec![vec!["a & \"b\"".into()]] };
        let sections = [Section::Heading("</title><script>".into()), Section::Text("1 < 2".into()), table];
        let text = page("<x>", &sections);
        assert!(text.contains("<title>&lt;x&gt;</title>"));
        assert!(text.contains("&lt;/title&gt;&lt;script&gt;"));
        assert!(text.contains("a &amp; &quot;b&quot;"));
        assert_eq!(text.matches("<script>").count(), 1, "the page's own script, which sorts its table");
        // A browser runs a script only if the page's policy has the hash of what stands between its tags.
        let (_, rest) = text.split_once("<script>").unwrap();
        let (script, _) = rest.split_once("</script>").unwrap();
        let hash = STANDARD.encode(Sha256::digest(script));
        assert!(text.contains(&format!("script-src 'sha256-{hash}'")));
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("src="));
    }
}
