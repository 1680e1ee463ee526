//! A canvas as an SVG document.

use super::{Anchor, Canvas, Circle, DASH, Dash, Element, Level, Path, Text};
use crate::palette::{Colour, INK, PAPER, svg_style};
use std::fmt::Write;

/// Size of text without a size.
const EM: f64 = 11.0;

/// The picture as a document with a title. The same canvas always gives the same text.
pub fn document(canvas: &Canvas, title: &str) -> String {
    let (width, height, title) = (number(canvas.width), number(canvas.height), escaped(title));
    let body: String = canvas.elements.iter().map(element).collect();
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="{EM}" fill="{ink}">
<title>{title}</title>
{style}
<rect width="{width}" height="{height}" fill="{paper}"/>
{body}</svg>
"##,
        ink = INK.css(),
        style = svg_style(),
        paper = PAPER.css(),
    )
}

fn element(element: &Element) -> String {
    match element {
        Element::Rect(sides, fill) => {
            let [x, y, width, height] = sides.map(number);
            let fill = fill.css();
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>\n")
        }
        Element::Path(path) => lines(path),
        Element::Circle(circle) => self::circle(circle),
        Element::Text(text) => label(text),
        Element::OpenGroup(tip) => format!("<g><title>{}</title>\n", escaped(tip)),
        Element::CloseGroup => "</g>\n".into(),
    }
}

fn lines(path: &Path) -> String {
    let mut data = String::new();
    for line in &path.lines {
        let mut before = None;
        for &(x, y) in line {
            let _ = match before {
                None => write!(data, "M{} {}", number(x), number(y)),
                Some((_, level)) if level == y => write!(data, "H{}", number(x)),
                Some((column, _)) if column == x => write!(data, "V{}", number(y)),
                Some(_) => write!(data, "L{} {}", number(x), number(y)),
            };
            before = Some((x, y));
        }
    }
    let fill = path.fill.map_or_else(|| "none".into(), Colour::css);
    let dash = match path.dash {
        Dash::Solid => String::new(),
        Dash::Dashed => format!(" stroke-dasharray=\"{DASH} {DASH}\""),
    };
    let (stroke, width) = (path.stroke.css(), path.width);
    format!("<path d=\"{data}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{width}\"{dash}/>\n")
}

fn circle(circle: &Circle) -> String {
    let (x, y, radius) = (number(circle.centre.0), number(circle.centre.1), number(circle.radius));
    let colour = circle.colour.css();
    let style = match circle.edge {
        Some(width) => format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\""),
        None => format!("fill=\"{colour}\""),
    };
    format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {style}/>\n")
}

fn label(text: &Text) -> String {
    let mut attributes = String::new();
    match text.level {
        Level::Top => attributes += " dy=\"0.76em\"",
        Level::Middle => attributes += " dy=\"0.5ex\"",
        Level::Baseline => {}
        Level::Bottom => attributes += " dy=\"-0.5ex\"",
    }
    match text.anchor {
        Anchor::Start => {}
        Anchor::Middle => attributes += " text-anchor=\"middle\"",
        Anchor::End => attributes += " text-anchor=\"end\"",
    }
    if text.font.em != EM {
        let _ = write!(attributes, " font-size=\"{}\"", number(text.font.em));
    }
    if text.font.bold {
        attributes += " font-weight=\"bold\"";
    }
    if text.colour != INK {
        let _ = write!(attributes, " fill=\"{}\"", text.colour.css());
    }
    let (x, y, text) = (number(text.place.0), number(text.place.1), escaped(&text.text));
    format!("<text x=\"{x}\" y=\"{y}\"{attributes}>{text}</text>\n")
}

/// A length with at most two decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Text as XML can hold it: control characters are not allowed and become spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
