//! The few SVG elements that a picture needs, as text.

use std::fmt::Write;

/// Colour of text.
pub const INK: &str = "#222222";
/// Colour of what should not catch the eye.
pub const GREY: &str = "#666666";

/// The elements of a document, in drawing order.
#[derive(Debug, Default)]
pub struct Canvas(String);

impl Canvas {
    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let (x, y, width, height) = (number(x), number(y), number(width), number(height));
        let _ =
            writeln!(self.0, r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#);
    }

    /// A path of `data` in SVG's notation; `attributes` as in a tag.
    pub fn path(&mut self, data: &str, attributes: &str) {
        let _ = writeln!(self.0, r#"<path d="{data}" {attributes}/>"#);
    }

    /// A text at its baseline; `attributes` as in a tag.
    pub fn text(&mut self, x: f64, y: f64, attributes: &str, text: &str) {
        let (x, y, text) = (number(x), number(y), escaped(text));
        let space = if attributes.is_empty() { "" } else { " " };
        let _ = writeln!(self.0, r#"<text x="{x}" y="{y}"{space}{attributes}>{text}</text>"#);
    }

    /// Starts a group of elements that shows `tip` when pointed at.
    pub fn open_group(&mut self, tip: &str) {
        let _ = writeln!(self.0, "<g><title>{}</title>", escaped(tip));
    }

    /// Ends the group.
    pub fn close_group(&mut self) {
        self.0.push_str("</g>\n");
    }

    /// The whole document.
    pub fn document(self, width: f64, height: f64, title: &str) -> String {
        let (width, height, title, size) = (number(width), number(height), escaped(title), super::FONT_SIZE);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="{size}" fill="{INK}">
<title>{title}</title>
<rect width="{width}" height="{height}" fill="#ffffff"/>
{}</svg>
"##,
            self.0
        )
    }
}

/// Pixels with at most two decimals.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Text as XML can hold it: control characters have no place there and become spaces.
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
