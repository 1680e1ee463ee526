//! The few elements that a picture needs, and how they are written as SVG.

use std::fmt::Write;

/// Colour of text.
pub const INK: Colour = Colour([0x22; 3]);
/// Colour of what should not catch the eye.
pub const GREY: Colour = Colour([0x66; 3]);

/// Red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub [u8; 3]);

/// One thing that is drawn. Lengths are pixels, from the upper left corner.
#[derive(Debug, Clone, PartialEq)]
pub enum Element {
    /// A filled rectangle: left, top, width, height.
    Rect([f64; 4], Colour),
    /// Lines along the axes.
    Path(Path),
    /// A text at its baseline.
    Text(Text),
    /// The elements up to `Close` show this when they are pointed at.
    Open(String),
    /// The end of a group.
    Close,
}

/// Lines along the axes, each of them from a point over its next ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Points of each line.
    pub lines: Vec<Vec<(f64, f64)>>,
    /// What the lines enclose.
    pub fill: Option<Colour>,
    /// The lines themselves.
    pub stroke: Colour,
    /// Whether they are interrupted.
    pub dash: Dash,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    /// Without a gap.
    Solid,
    /// As long as its gaps.
    Dashed,
}

/// Pixels of a dash and of a gap.
pub const DASH: f64 = 3.0;
/// Width of lines.
pub const STROKE: f64 = 0.8;

/// A line of text.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    /// Where it is anchored.
    pub x: f64,
    /// Its baseline.
    pub y: f64,
    /// What of it is there.
    pub anchor: Anchor,
    /// Its size.
    pub size: Size,
    /// Its colour.
    pub colour: Colour,
    /// What it says.
    pub text: String,
}

/// Which part of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// How large a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As the title.
    Title,
    /// As everything else.
    Label,
}

impl Size {
    /// In pixels.
    pub fn pixels(self) -> f64 {
        match self {
            Size::Title => 16.0,
            Size::Label => super::FONT_SIZE,
        }
    }
}

/// The elements of a picture, in drawing order.
#[derive(Debug, Default)]
pub struct Canvas {
    /// Everything that is drawn.
    pub elements: Vec<Element>,
}

impl Canvas {
    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: Colour) {
        self.elements.push(Element::Rect([x, y, width, height], fill));
    }

    /// Lines along the axes.
    pub fn path(&mut self, path: Path) {
        self.elements.push(Element::Path(path));
    }

    /// A text in the size and colour of labels at its baseline.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.coloured((x, y), anchor, INK, text);
    }

    /// The same in any colour.
    pub fn coloured(&mut self, (x, y): (f64, f64), anchor: Anchor, colour: Colour, text: &str) {
        self.elements.push(Element::Text(Text {
            x,
            y,
            anchor,
            size: Size::Label,
            colour,
            text: text.into(),
        }));
    }

    /// What stands above everything.
    pub fn title(&mut self, (x, y): (f64, f64), text: &str) {
        let (anchor, size) = (Anchor::Start, Size::Title);
        self.elements.push(Element::Text(Text { x, y, anchor, size, colour: INK, text: text.into() }));
    }

    /// Starts a group of elements that shows `tip` when pointed at.
    pub fn open_group(&mut self, tip: &str) {
        self.elements.push(Element::Open(tip.into()));
    }

    /// Ends the group.
    pub fn close_group(&mut self) {
        self.elements.push(Element::Close);
    }

    /// The whole picture as an SVG document.
    pub fn document(&self, width: f64, height: f64, title: &str) -> String {
        let (width, height, title, size) = (number(width), number(height), escaped(title), super::FONT_SIZE);
        let body: String = self.elements.iter().map(Element::svg).collect();
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="{size}" fill="{ink}">
<title>{title}</title>
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}</svg>
"##,
            ink = INK.css(),
        )
    }
}

impl Colour {
    /// As SVG and CSS write it.
    pub fn css(self) -> String {
        let [red, green, blue] = self.0;
        format!("#{red:02x}{green:02x}{blue:02x}")
    }
}

impl Element {
    fn svg(&self) -> String {
        match self {
            Element::Rect(sides, fill) => {
                let [x, y, width, height] = sides.map(number);
                let fill = fill.css();
                format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>\n")
            }
            Element::Path(path) => path.svg(),
            Element::Text(text) => text.svg(),
            Element::Open(tip) => format!("<g><title>{}</title>\n", escaped(tip)),
            Element::Close => "</g>\n".into(),
        }
    }
}

impl Path {
    fn svg(&self) -> String {
        let mut data = String::new();
        for line in &self.lines {
            let mut before = None;
            for &(x, y) in line {
                let _ = match before {
                    None => write!(data, "M{} {}", number(x), number(y)),
                    Some((_, level)) if level == y => write!(data, "H{}", number(x)),
                    Some(_) => write!(data, "V{}", number(y)),
                };
                before = Some((x, y));
            }
        }
        let fill = self.fill.map_or_else(|| "none".into(), Colour::css);
        let dash = match self.dash {
            Dash::Solid => String::new(),
            Dash::Dashed => format!(" stroke-dasharray=\"{DASH} {DASH}\""),
        };
        let stroke = self.stroke.css();
        format!("<path d=\"{data}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{STROKE}\"{dash}/>\n")
    }
}

impl Text {
    fn svg(&self) -> String {
        let mut attributes = String::new();
        match self.anchor {
            Anchor::Start => {}
            Anchor::Middle => attributes += " text-anchor=\"middle\"",
            Anchor::End => attributes += " text-anchor=\"end\"",
        }
        if self.size == Size::Title {
            let _ = write!(attributes, " font-size=\"{}\" font-weight=\"bold\"", self.size.pixels());
        }
        if self.colour != INK {
            let _ = write!(attributes, " fill=\"{}\"", self.colour.css());
        }
        let (x, y, text) = (number(self.x), number(self.y), escaped(&self.text));
        format!("<text x=\"{x}\" y=\"{y}\"{attributes}>{text}</text>\n")
    }
}

/// Pixels with at most two decimals.
fn number(value: f64) -> String {
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
