//! Jobs on GPUs over time, as SVG or PNG, or in a page: a row for each node, split into its GPUs.

use crate::axis::Axis;
use crate::canvas::{self, Anchor, Canvas, Font, Level, Point, Text};
use crate::palette::{CURVES, Colour, GREY, INK, Meaning, PAPER};
use serde_json::{Value, json};

/// A job on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct GanttBox {
    /// Its name.
    pub name: String,
    /// What is shown when it is pointed at.
    pub tip: String,
    /// Which colour: jobs with equal numbers have equal ones.
    pub colour: usize,
    /// The node.
    pub node: usize,
    /// Its GPUs on the node, ascending.
    pub gpus: Vec<usize>,
    /// Start and end in hours.
    pub hours: (f64, f64),
}

/// A picture of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Gantt {
    /// The title.
    pub title: String,
    /// Name and GPUs of each node.
    pub nodes: Vec<(String, usize)>,
    /// The jobs.
    pub boxes: Vec<GanttBox>,
}

impl Gantt {
    /// What a page holds for `html/gantt.js`: `{ "unit", "until", "nodes": [ [ name, GPUs ] ], "boxes": [ { "name", "tip", "colour",
    /// "node", "runs": [ [ first GPU, GPUs ] ], "from", "to" } ] }`, times in the unit.
    pub(crate) fn json(&self) -> Value {
        let (unit, of_hour) = self.unit();
        let boxes = self.boxes.iter().map(|of| {
            let runs = of.gpus.chunk_by(|one, other| one + 1 == *other);
            let runs: Vec<(usize, usize)> = runs.map(|run| (run[0], run.len())).collect();
            let (from, to) = (of_hour * of.hours.0, of_hour * of.hours.1);
            json!({
                "name": of.name, "tip": of.tip, "colour": page_colour(of.colour), "node": of.node, "runs": runs,
                "from": from, "to": to,
            })
        });
        let until = of_hour * self.hours().max(f64::MIN_POSITIVE);
        json!({ "unit": unit, "until": until, "nodes": self.nodes, "boxes": boxes.collect::<Vec<_>>() })
    }

    /// The end of the last job in hours.
    fn hours(&self) -> f64 {
        self.boxes.iter().map(|of| of.hours.1).fold(0.0, f64::max)
    }

    /// The unit of its axis, and how many of them an hour has.
    fn unit(&self) -> (&'static str, f64) {
        match 60.0 * self.hours() {
            0.0..4.0 => ("seconds", 3600.0),
            4.0..240.0 => ("minutes", 60.0),
            _ => ("hours", 1.0),
        }
    }
}

/// A job's colour in a page, where ink and grey depend on the reader's setting.
fn page_colour(number: usize) -> String {
    match CURVES[number % CURVES.len()] {
        INK => "var(--ink)".into(),
        GREY => "var(--grey)".into(),
        other => other.css(),
    }
}

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 16.0;
const LABEL: Font = Font { em: 11.0, height: 11.0, bold: false };
const TITLE: Font = Font { em: 16.0, height: 16.0, bold: true };
/// Estimated width of a character in pixels.
const CHARACTER: f64 = 6.2;
/// Pixels between nodes.
const GAP: f64 = 4.0;

/// Draws it as an SVG document.
pub fn gantt_svg(gantt: &Gantt) -> String {
    canvas::svg::document(&draw(gantt), &gantt.title)
}

/// Draws it as a PNG file.
pub fn gantt_png(gantt: &Gantt) -> Vec<u8> {
    canvas::png::file(&draw(gantt))
}

fn label(place: Point, anchor: Anchor, colour: Colour, words: &str) -> Text {
    Text { place, anchor, level: Level::Middle, font: LABEL, colour, text: words.into() }
}

fn draw(gantt: &Gantt) -> Canvas {
    let gpus: usize = gantt.nodes.iter().map(|(_, gpus)| gpus).sum();
    let pitch = (640.0 / gpus.max(1) as f64).clamp(2.0, 18.0);
    let longest = gantt.nodes.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let left = MARGIN + longest as f64 * CHARACTER + 8.0;
    let width = WIDTH - MARGIN - left;
    let (unit, of_hour) = gantt.unit();
    let axis = Axis::linear(gantt.boxes.iter().map(|of| of_hour * of.hours.1).chain([0.0]));
    let x = |time: f64| left + width * axis.place(time);
    let mut canvas = Canvas::new(WIDTH, 0.0);
    canvas.text(Text { font: TITLE, ..label((MARGIN, 24.0), Anchor::Start, INK, &gantt.title) });
    let mut tops = Vec::new();
    let mut top = 44.0;
    for (name, gpus) in &gantt.nodes {
        let height = pitch * *gpus as f64;
        canvas.rect(left, top, width, height, Meaning::Wait.colour());
        canvas.text(label((left - 8.0, top + height / 2.0), Anchor::End, INK, name));
        tops.push(top);
        top += height + GAP;
    }
    for of in &gantt.boxes {
        let (start, end) = (x(of_hour * of.hours.0), x(of_hour * of.hours.1));
        let colour = CURVES[of.colour % CURVES.len()];
        canvas.open_group(&of.tip);
        // One rectangle for each run of successive GPUs; the name is in the first.
        let runs = of.gpus.chunk_by(|one, other| one + 1 == *other);
        for (index, run) in runs.enumerate() {
            let (y, height) = (tops[of.node] + pitch * run[0] as f64, pitch * run.len() as f64);
            canvas.rect(start, y, (end - start).max(0.5), (height - 0.5).max(0.5), colour);
            let has_room = end - start > of.name.chars().count() as f64 * CHARACTER + 4.0 && height >= 10.0;
            if index == 0 && has_room {
                let middle = ((start + end) / 2.0, y + height / 2.0);
                canvas.text(label(middle, Anchor::Middle, PAPER, &of.name));
            }
        }
        canvas.close_group();
    }
    let mut lines = vec![vec![(left, top), (left + width, top)]];
    for tick in &axis.ticks {
        lines.push(vec![(x(*tick), top), (x(*tick), top + 4.0)]);
        canvas.text(label((x(*tick), top + 12.0), Anchor::Middle, INK, &axis.name(*tick)));
    }
    canvas.lines(lines, GREY, 0.8);
    canvas.text(label((left + width / 2.0, top + 28.0), Anchor::Middle, GREY, unit));
    canvas.height = top + 44.0;
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_where_there_is_room_and_tips_are_always_there() {
        let of = |name: &str, hours| GanttBox {
            name: name.into(),
            tip: format!("{name}: tip"),
            colour: 0,
            node: 0,
            gpus: vec![0, 1, 3],
            hours,
        };
        let boxes = vec![of("wide", (0.0, 9.0)), of("narrow", (9.0, 9.1))];
        let gantt = Gantt { title: "title".into(), nodes: vec![("node 0".into(), 4)], boxes };
        let drawn = gantt_svg(&gantt);
        for word in ["title", "node 0", ">wide<", "wide: tip", "narrow: tip", "hours"] {
            assert!(drawn.contains(word), "{word}");
        }
        assert!(!drawn.contains(">narrow<"));
        assert_eq!(gantt_png(&gantt), gantt_png(&gantt));
    }
}
