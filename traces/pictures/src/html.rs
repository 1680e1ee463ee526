//! A page for any browser: tables, pictures, and a timeline that can be zoomed; one file that loads nothing.
//!
//! ```text
//! title
//! sections, each a heading over words, a table, bars, a picture, or a timeline
//! ```
//!
//! A timeline's spans and memory stand in the page as JSON; `html/timeline.js` draws them. The same sections always give
//! the same text.

mod data;

use std::fmt::Write;
use trainwright_spec::program::{Axis, Stream};
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_timeline::report::{Report, TimeShares};
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
}

/// How long bars are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarScale {
    /// The longer the time, the longer.
    Common,
    /// All equally long: each shows the parts of its time.
    Bar,
}

/// A bar of a breakdown.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its label.
    pub name: String,
    /// Its parts, from left to right.
    pub parts: Vec<Part>,
}

/// A part of a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The use of the time.
    pub name: String,
    /// How much.
    pub time: Seconds,
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

impl Bar {
    /// The bar of a rank, or of the mean over ranks.
    pub fn of(name: String, shares: &TimeShares) -> Bar {
        let part = |name: &str, time: Picoseconds| Part { name: name.into(), time: Seconds::from(time) };
        let mut parts = vec![part("compute", shares.compute)];
        for axis in Axis::ALL {
            parts
                .push(part(&format!("exposed {}", axis.name()), shares.communication[axis as usize].exposed));
        }
        for (stream, time) in Stream::OFFLOAD.iter().zip(shares.offload) {
            parts.push(part(&format!("exposed {}", stream.name()), time.exposed));
        }
        parts.push(part("bubble", shares.bubble));
        parts.retain(|part| part.time > Seconds::ZERO);
        Bar { name, parts }
    }

    /// The bars of a report, one for each pipeline rank's first rank.
    pub fn of_ranks(report: &Report) -> Vec<Bar> {
        let mut ranks: Vec<_> = report.ranks.iter().collect();
        ranks.sort_by_key(|rank| (rank.pipeline_rank, rank.rank));
        ranks.dedup_by_key(|rank| rank.pipeline_rank);
        ranks
            .iter()
            .map(|rank| Bar::of(format!("pipeline rank {}", rank.pipeline_rank), &rank.time))
            .collect()
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
            Section::Bars(bars, scale) => self::bars(bars, *scale),
            Section::Picture(svg) => format!("<figure>{}</figure>\n", without_declaration(svg)),
            Section::Timeline(data) => timeline(data),
        });
    }
    let title = escape(title);
    let style = include_str!("html/page.css");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
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

/// Colours of the parts that most bars have, the same on every page and in the timeline.
const KNOWN: [(&str, &str); 5] = [
    ("compute", "#3f7fbf"),
    ("exposed tensor", "#c0392b"),
    ("exposed data", "#1b9e77"),
    ("exposed pipeline", "#8e6bbf"),
    ("bubble", "#d8d8d8"),
];
const OTHERS: [&str; 5] = ["#a6761d", "#e7298a", "#66a61e", "#17becf", "#e6ab02"];

fn bars(bars: &[Bar], scale: BarScale) -> String {
    let total = |bar: &Bar| bar.parts.iter().map(|part| part.time).sum::<Seconds>();
    let longest = bars.iter().map(total).fold(Seconds::ZERO, Seconds::max);
    let mut names: Vec<&str> = Vec::new();
    for part in bars.iter().flat_map(|bar| &bar.parts) {
        if !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    // The bubble comes last.
    names.sort_by_key(|name| *name == "bubble");
    let colour = |name: &str| match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, colour)) => colour,
        None => OTHERS[names.iter().position(|other| *other == name).unwrap_or(0) % OTHERS.len()],
    };
    let mut text = String::from("<div class=\"bars\">\n<p class=\"legend\">");
    for name in &names {
        let _ = write!(text, "<span><i style=\"background:{}\"></i>{}</span> ", colour(name), escape(name));
    }
    text.push_str("</p>\n");
    for bar in bars {
        let _ = write!(text, "<div class=\"bar\"><b>{}</b><div>", escape(&bar.name));
        let full = match scale {
            BarScale::Common => longest,
            BarScale::Bar => total(bar),
        };
        for part in &bar.parts {
            let share = if full > Seconds::ZERO { 100.0 * (part.time / full) } else { 0.0 };
            let hint = format!("{}: {} ({:.1} %)", part.name, part.time, 100.0 * (part.time / total(bar)));
            let _ = write!(
                text,
                "<i style=\"width:{share:.3}%;background:{}\" title=\"{}\"></i>",
                colour(&part.name),
                escape(&hint)
            );
        }
        let _ = writeln!(text, "</div><em>{}</em></div>", total(bar));
    }
    text + "</div>\n"
}

fn timeline(data: &TimelineData) -> String {
    let script = include_str!("html/timeline.js");
    format!(
        "<p class=\"hint\">{}</p>\n<div id=\"timeline\"><p class=\"tools\"><button data-zoom=\"2\">zoom in</button> \
         <button data-zoom=\"0.5\">zoom out</button> <button data-zoom=\"0\">all</button> \
         <span id=\"window\"></span></p>\n<canvas id=\"spans\" tabindex=\"0\" role=\"img\" \
         aria-label=\"What each rank does over time\"></canvas>\n<p class=\"legend\" id=\"legend\"></p>\n\
         <h3>Memory</h3>\n<canvas id=\"memory\" role=\"img\" aria-label=\"Memory of each rank over time\"></canvas>\n\
         <p class=\"legend\" id=\"ranks\"></p>\n<div id=\"tip\" hidden></div></div>\n\
         <script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{script}</script>\n",
        escape(&data.note),
        // Inside a script nothing is escaped; only its end must not stand there.
        data.json.replace("</", "<\\/")
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
        assert!(!text.contains("<script>"), "nothing here needs a script");
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("src="));
    }

    #[test]
    fn bars_share_a_scale_or_have_one_each() {
        let part = |name: &str, time: f64| Part { name: name.into(), time: Seconds::new(time) };
        let bar = |name: &str, parts: Vec<Part>| Bar { name: name.into(), parts };
        let both = [
            bar("one", vec![part("compute", 1.0), part("bubble", 1.0)]),
            bar("two", vec![part("compute", 4.0)]),
        ];
        assert!(bars(&both, BarScale::Bar).contains("width:50.000%;background:#d8d8d8"));
        let text = bars(&both, BarScale::Common);
        assert!(text.contains("width:25.000%;background:#3f7fbf"));
        assert!(text.contains("width:25.000%;background:#d8d8d8"));
        assert!(text.contains("width:100.000%"));
        assert!(text.contains("bubble: 1.00 s (50.0 %)"));
    }
}
